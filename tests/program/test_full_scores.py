"""Separate kernels over attention scores of full precision, counted as torch dispatches them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from simulator.program.layer.pieces import FlashAttention, MemoryBound
from simulator.program.price.stage_cost import StageCosts
from tests.jobs import SIXTEEN_BIT_TORCH, gpt_model, small_job
from tests.program.kernels_of_torch import moved_bytes, size_bytes
from tests.program.test_eager_kernels_are_torchs import HEADS

torch = pytest.importorskip("torch")


class Moved(NamedTuple):
    """What the separate kernels of a layer move [B]."""

    forward: float
    backward: float
    scores: float


def softmax(
    *, causal: bool, precision: str, widens: bool = True, keeps_half_weights: bool = True, **facts
) -> Moved:
    """Mask and softmax, and all scores of a layer once."""
    stack = {**SIXTEEN_BIT_TORCH, "keeps_half_weights": keeps_half_weights, **facts}
    costs = StageCosts(
        small_job(
            gpt_model(causal=causal, widens_scores=widens),
            precision=precision,
            attention="unfused",
            stack=stack,
            zero=0,
        )
    )
    pieces, _ = costs.layer_pieces(costs.units.layers[0].kind)
    names = ("score_mask", "softmax")
    found = [p for p in pieces if isinstance(p, MemoryBound) and p.name in names]
    model, shape = costs.job.model, costs.units.shape
    length = costs.job.batch.seq_len
    scores = costs.job.batch.micro_batch * model.heads * length * length
    return Moved(
        sum(p.forward_bytes for p in found),
        sum(p.backward_bytes for p in found),
        scores * shape.element_bytes,
    )


PRODUCT_PASSES = 3
"""Backward of softmax multiplies its output by the gradient first, in a kernel of its own on a GPU
(``softmax_backward_cuda_out`` of PyTorch's ``SoftMax.cu``)."""


@pytest.mark.parametrize(("causal", "backward_passes"), [(True, 10), (False, 8)])
def test_full_scores_are_passed_over_six_times_forward_and_ten_backward(causal, backward_passes):
    """Scale, mask and softmax read and write; softmax reads three, and only a choice has a pass."""
    found = softmax(causal=causal, precision="fp32")
    assert found.forward == 6 * found.scores
    assert found.backward == backward_passes * found.scores


def test_a_model_that_casts_no_scores_passes_over_16_bit_ones_as_over_full_ones():
    found = softmax(causal=True, precision="bf16", widens=False)
    assert (found.forward, found.backward) == (6 * found.scores, 10 * found.scores)


@pytest.mark.parametrize(("causal", "adds"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("autocasts", [True, False])
def test_widened_scores_are_passed_over_as_torch_dispatches_their_kernels(causal, adds, autocasts):
    """Scale, mask, cast, softmax and cast back. Under autocast a mask that is added is fp32."""
    facts = {"keeps_half_weights": not autocasts, "adds_causal_mask": adds}
    found = softmax(causal=causal, precision="bf16", **facts)
    shape = (HEADS, 128, 128)
    scores = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
    choice = torch.ones(1, 128, 128, dtype=torch.bool).tril()
    added = torch.zeros(1, 1, 128, dtype=torch.float32 if autocasts else torch.bfloat16)
    results = []

    def forward() -> None:
        scaled = scores / 8.0
        selects = causal and not adds
        masked = torch.where(choice, scaled, -1e4) if selects else scaled + added
        results.append(torch.softmax(masked.float(), dim=-1).to(torch.bfloat16))

    ratio = found.scores / size_bytes(scores)
    assert found.forward == pytest.approx(ratio * moved_bytes(forward), rel=0.02)
    gradient = torch.randn(shape, dtype=torch.bfloat16)
    backward = moved_bytes(lambda: results[0].backward(gradient))
    product = PRODUCT_PASSES * 4 * scores.numel()
    assert found.backward == pytest.approx(ratio * (backward + product), rel=0.02)


@pytest.mark.parametrize(("adds", "backward_passes"), [(False, 10), ("rotary", 10), (True, 8)])
def test_a_causal_mask_may_be_added_for_models_with_rotary_positions_alone(adds, backward_passes):
    """GPT-2 has learned positions."""
    found = softmax(causal=True, precision="fp32", adds_causal_mask=adds)
    assert found.backward == backward_passes * found.scores


def copies_by_torch(sequences: int) -> tuple[int, int]:
    """Of queries, keys, values, outputs or their gradients, around two products: both ways."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copies(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.number += func is torch.ops.aten.clone.default
            return func(*args, **(kwargs or {}))

    projected = [torch.randn(sequences, 16, 32, requires_grad=True) for _ in range(3)]
    with Copies() as forward:
        query, key, value = (x.view(sequences, 16, 4, 8).transpose(1, 2) for x in projected)
        seen = torch.matmul(torch.matmul(query, key.transpose(-1, -2)), value)
        out = seen.transpose(1, 2).contiguous().view(sequences, 16, 32)
    with Copies() as backward:
        out.backward(torch.randn_like(out))
    return forward.number, backward.number


@pytest.mark.parametrize("sequences", [1, 2])
def test_several_sequences_are_copied_into_one_dimension_with_their_heads(sequences):
    """Every copy reads and writes 16-bit elements of all tokens and heads."""
    job = small_job(
        gpt_model(), attention="unfused", stack=SIXTEEN_BIT_TORCH, micro_batch=sequences,
        global_batch=sequences,
    )  # fmt: skip
    costs = StageCosts(job)
    pieces, _ = costs.layer_pieces(costs.units.layers[0].kind)
    (layout,) = (p for p in pieces if isinstance(p, MemoryBound) and p.name == "attention_layout")
    copied_bytes = 2 * 2 * sequences * job.batch.seq_len * job.model.heads * job.model.head_dim
    forward, backward = copies_by_torch(sequences)
    assert layout.forward_bytes == forward * copied_bytes
    # Keys' gradient is made transposed; what joins the three is counted as a copy of each.
    assert layout.backward_bytes >= backward * copied_bytes


@pytest.mark.parametrize(
    ("kv_heads", "precision", "is_fused"),
    [(2, "fp32", False), (4, "fp32", True), (2, "bf16", True)],
)
def test_no_fused_kernel_of_pytorch_reads_grouped_heads_of_32_bits(kv_heads, precision, is_fused):
    """Memory-efficient attention, which alone reads 32-bit numbers, takes no grouped heads."""
    model = gpt_model().model_copy(update={"heads": 4, "kv_heads": kv_heads})
    costs = StageCosts(small_job(model, precision=precision, stack="torch", zero=0))
    pieces, _ = costs.layer_pieces(costs.units.layers[0].kind)
    assert any(isinstance(piece, FlashAttention) for piece in pieces) is is_fused
