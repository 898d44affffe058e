"""What do a model's compiler and ``torch.autocast`` keep from forward to backward?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.nn.functional import cross_entropy, gelu, layer_norm

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import total_bytes
from simulator.program.layer.layer_kinds import layer_kinds, layer_tensors, model_layer
from simulator.program.layer.pieces import Role
from simulator.program.price.stage_cost import StageCosts
from simulator.validate.published.framework_stacks import stack_facts
from tests.jobs import small_job

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS, WIDTH, VOCAB = 48, 32, 640
COMPILED = {"fused_elementwise": True, "fused_rmsnorm": True, "fused_rotary": True}


class Mlp(nn.Module):
    """A norm as autocast runs it, an MLP and its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.weight, self.bias = (nn.Parameter(torch.ones(WIDTH)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = layer_norm(x.float(), (WIDTH,), self.weight, self.bias)
        return x + self.down(gelu(self.up(normed)))


class Lm(nn.Module):
    """Layers that return logits and their loss, as nanoGPT's model does."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Mlp() for _ in range(layers)))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.layers(x))
        return logits, cross_entropy(logits.float(), targets)


class Scores(nn.Module):
    """Attention in operators, as autocast runs it."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = (x @ x.T / WIDTH**0.5).masked_fill(mask, float("-inf"))
        values = torch.softmax(scores.float(), -1) @ x
        return values, values.sum()


def kept_by_torch(
    model: nn.Module, second: torch.Tensor, *, of_weights: bool = False
) -> list[torch.Tensor]:
    """What the compiled forward of a model returns, but for its weights and scalars.

    Args:
        model: It.
        second: Its second argument.
        of_weights: Whether copies of weights are asked for, which it returns transposed.
    """
    kept: list[torch.Tensor] = []

    def forward(module: torch.fx.GraphModule, _: list[torch.Tensor]):
        outputs = next(node for node in module.graph.nodes if node.op == "output").args[0]
        made = {node for node in outputs if node is not None and node.op == "call_function"}
        views = {node for node in made if "permute" in node.name}
        kept.extend(node.meta["val"] for node in (views if of_weights else made - views))
        return make_boxed_func(module.forward)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda module, _: make_boxed_func(module.forward),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    x = torch.zeros(ROWS, WIDTH, requires_grad=True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.compile(model, backend=backend)(x, second)[1].backward()
    finally:
        torch._dynamo.reset()
    return [each for each in kept if isinstance(each, torch.Tensor)]


def kept_by_lm(layers: int) -> list[torch.Tensor]:
    return kept_by_torch(Lm(layers), torch.zeros(ROWS, dtype=torch.int64))


def sizes(tensors: list[torch.Tensor]) -> Iterator[int]:
    return (each.numel() * each.element_size() for each in tensors if each.numel() >= ROWS * WIDTH)


def costs(**plan: object) -> StageCosts:
    return StageCosts(a_job(**plan))


def a_job(**plan: object) -> Job:
    return small_job(stack={"base": "torch", **COMPILED}, zero=0, **plan)


def test_a_loss_in_the_compiled_model_keeps_16_bit_logits_alone():
    logits = [each for each in kept_by_lm(1) if each.numel() == ROWS * VOCAB]
    assert {each.dtype for each in logits} == {torch.bfloat16}


def test_a_compiled_norm_keeps_fp32_numbers_under_autocast_and_16_bit_ones_of_a_cast_model():
    """A layer of torch's keeps 4 bytes of a norm's numbers, 2 that the product reads, 8 + 8."""
    torchs = sum(sizes(kept_by_lm(3))) - sum(sizes(kept_by_lm(2)))
    assert torchs == (4 + 2 + 8 + 8) * ROWS * WIDTH
    layer = Slice(0, 1)
    wide, narrow = costs(), costs(master_weights=False)
    tokens, width, norms = 64, 64, 2
    difference = total_bytes(wide.saved(layer)) - total_bytes(narrow.saved(layer))
    copies = _copies_bytes(wide)
    assert difference == norms * (4 - 2) * tokens * width + copies


def test_a_compiler_keeps_16_bit_copies_of_all_weights_that_products_read_under_autocast():
    """Two of WIDTH x 4 WIDTH numbers in each of torch's layers, and the head's."""
    none = torch.zeros(ROWS, dtype=torch.int64)
    kept = kept_by_torch(Lm(3), none, of_weights=True)
    assert {each.dtype for each in kept} == {torch.bfloat16}
    matrices = 3 * 2 * WIDTH * 4 * WIDTH + WIDTH * VOCAB
    assert sum(each.numel() for each in kept) == matrices
    job = a_job()
    layer = sum(tensor.numel for tensor in layer_tensors(job.model, 0) if len(tensor.shape) > 1)
    assert _copies_bytes(StageCosts(job)) == 2 * layer
    assert _copies_bytes(costs(master_weights=False)) == 0


def _copies_bytes(of: StageCosts) -> float:
    """16-bit copies of a layer's weights that are kept for backward [B]."""
    layer = model_layer(of.job.model, layer_kinds(of.job.model)[0], of.job.plan, of.units.shape)
    return sum(saved.num_bytes for saved in layer.saved if saved.role is Role.WEIGHT_COPY)


def test_a_compiler_makes_one_kernel_of_what_is_done_to_scores():
    """It keeps them and their probabilities in 16 bits, and nothing between."""
    mask = torch.ones(ROWS, ROWS).triu(1).bool()
    scores = kept_by_torch(Scores(), mask) + kept_by_torch(Scores(), mask, of_weights=True)
    of_all = [each for each in scores if each.numel() == ROWS * ROWS and each.dtype != torch.bool]
    assert [each.dtype for each in of_all] == 2 * [torch.bfloat16]
    facts = stack_facts("torch", "torch.compile")
    assert facts["fused_softmax"] is True
    fused, flash = (
        total_bytes(StageCosts(small_job(stack=facts, attention=kernel)).saved(Slice(0, 1)))
        for kernel in ("unfused", "flash")
    )
    model, tokens = small_job().model, 64
    assert fused - flash == model.heads * tokens * (2 * 2 * tokens - 4)
