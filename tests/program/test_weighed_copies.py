"""What do experts of torchtitan do to copies of tokens beside their products?"""

from __future__ import annotations

import pytest

from simulator.described.plan.plan import Plan
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, model_layer
from simulator.program.layer.pieces import Layer, MemoryBound
from tests.jobs import small_model
from tests.program.kernels_of_torch import moved_bytes

torch = pytest.importorskip("torch")

TOKENS, TOP_K, EXPERTS, WIDTH = 64, 2, 4, 256
COPIES = TOKENS * TOP_K
WEIGHING = ("weighing_cast", "weighing", "weighing_gradient", "weighed_cast")


def experts_of(stack: str | dict[str, object]) -> Layer:
    experts = {"count": EXPERTS, "top_k": TOP_K, "ffn_hidden": 128}
    model, plan = small_model(hidden=WIDTH, experts=experts), Plan(stack=stack)
    return model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, TOKENS))


def weighing(layer: Layer) -> list[MemoryBound]:
    return [p for p in layer.pieces if isinstance(p, MemoryBound) and p.name in WEIGHING]


def test_weighing_copies_in_fp32_moves_what_torch_counts():
    copies = torch.randn(COPIES, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    scores = torch.rand(COPIES, 1, requires_grad=True)
    results = []

    def forward() -> None:
        results.append((copies.to(torch.float32) * scores).to(copies.dtype))

    pieces = weighing(experts_of("torchtitan"))
    expected = moved_bytes(forward)
    assert sum(each.forward_bytes for each in pieces) == pytest.approx(expected, rel=0.01)
    (result,), gradient = results, torch.randn(COPIES, WIDTH, dtype=torch.bfloat16)
    expected = moved_bytes(lambda: result.backward(gradient))
    assert sum(each.backward_bytes for each in pieces) == pytest.approx(expected, rel=0.01)


def test_experts_that_weigh_copies_themselves_move_no_more():
    own = {"base": "torchtitan", "weighs_copies_in_fp32": False}
    assert weighing(experts_of(own)) == []
    assert weighing(experts_of("megatron-core")) == []
