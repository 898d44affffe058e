"""What backward holds of 16-bit attention scores that a model's softmax reads in fp32."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402

from simulator.program.grid.stage_layers import Slice  # noqa: E402
from simulator.program.ir import total_bytes  # noqa: E402
from simulator.program.price.stage_cost import StageCosts  # noqa: E402
from tests.jobs import small_job, small_model  # noqa: E402

SEQUENCES, LENGTH, HEADS, HEAD_DIM = 2, 512, 8, 8
SCORES = SEQUENCES * HEADS * LENGTH * LENGTH


def held_by_program(precision: str, *, widens: bool = True) -> float:
    """Of a layer whose scores are most of it, at the fullest moment of its backward [B]."""
    model = small_model(hidden=HEADS * HEAD_DIM, heads=HEADS, kv_heads=HEADS, widens_scores=widens)
    costs = StageCosts(
        small_job(
            model,
            precision=precision,
            micro_batch=SEQUENCES,
            seq_len=LENGTH,
            attention="unfused",
            stack="torch",
            master_weights=False,
        )
    )
    memory = costs.backward(Slice(1, 2))
    return total_bytes(memory.rest) + total_bytes(memory.holds)


def held_by_torch(cast: torch.dtype | None) -> int:
    """The same of core attention alone in bf16, its softmax in a format [B]."""
    shape = (SEQUENCES, HEADS, LENGTH, HEAD_DIM)
    query, key, value = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(3))
    for each in (query, key, value):
        each.requires_grad_()
    tracker = MemTracker()
    with tracker:
        scores = query @ key.transpose(-1, -2) * HEAD_DIM**-0.5
        shares = torch.softmax(scores, dim=-1, dtype=cast).to(query.dtype)
        del scores
        attended = shares @ value
        del shares
        tracker.reset_mod_stats()
        attended.sum().backward()
    ((_, snapshot),) = tracker.get_tracker_snapshot("peak").items()
    return snapshot["Total"]


@pytest.mark.parametrize(("widens", "cast"), [(True, torch.float32), (False, None)])
def test_the_fullest_moment_has_the_scores_that_torch_has(widens, cast):
    """And on a GPU their product with their gradients (``Tensor tmp`` of ``SoftMax.cu``)."""
    rest = 40 * SEQUENCES * LENGTH * HEADS * HEAD_DIM
    held = held_by_program("bf16", widens=widens)
    product = SCORES * (cast or torch.bfloat16).itemsize
    assert held == pytest.approx(held_by_torch(cast) + product, abs=rest)


def test_fp32_scores_their_gradients_their_product_and_what_it_gives_are_there_at_once():
    assert held_by_program("bf16") == pytest.approx((4 + 4 + 4 + 4) * SCORES, rel=0.1)


def test_the_kernel_of_cuda_reads_fp16_scores_itself_and_gives_their_gradients():
    """``half_to_float`` of ``_softmax`` and the ``input_dtype`` of its backward."""
    assert held_by_program("fp16") == pytest.approx((4 + 4 + 4 + 2) * SCORES, rel=0.1)
