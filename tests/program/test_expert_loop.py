"""Models that visit one expert after another in Python."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.described.plan.plan import Plan
from simulator.facts import host_launches
from simulator.program.grid.stage_layers import Slice
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, model_layer
from simulator.program.layer.pieces import MemoryBound
from simulator.program.price.stage_cost import StageCosts
from simulator.schedule.slots import Phase
from tests.jobs import small_job, small_model

COUNT, TOP_K = 4, 2
LOOP = {"expert_waits": "expert", "grouped_experts": False}


def loop_pieces(*, gated_mlp: bool = True, **stack: object) -> dict[str, MemoryBound]:
    """What the loop adds to a layer, by name."""
    experts = {"count": COUNT, "top_k": TOP_K, "ffn_hidden": 64}
    costs = StageCosts(small_job(small_model(experts=experts, gated_mlp=gated_mlp), stack=stack))
    pieces, _ = costs.layer_pieces(costs.units.layers[0].kind)
    return {
        p.name: p for p in pieces if isinstance(p, MemoryBound) and p.name.startswith("expert_loop")
    }


@pytest.mark.parametrize(
    "stack", [{**LOOP, "grouped_experts": True}, {**LOOP, "expert_waits": "layer"}]
)
def test_only_a_host_that_asks_for_each_expert_loops_over_them(stack):
    assert not loop_pieces(**stack)
    assert len(loop_pieces(**LOOP)) == 2


@pytest.mark.parametrize("work", [4.9, 13.6])
def test_a_loop_keeps_the_host_busy_as_long_as_all_its_operators_do(work):
    """10 operators forward and 20 backward per expert, of which products launch 2 and 4."""
    pieces = loop_pieces(**LOOP, host_work_per_launch=work)
    found = [
        pieces["expert_loop"].kernels + 2 * COUNT,
        pieces["expert_loop_gradient"].kernels + 4 * COUNT,
    ]
    all_launches = [COUNT * operators * host_launches("operator") / work for operators in (10, 20)]
    assert found == pytest.approx(all_launches, rel=0.17)


def test_backward_of_each_expert_passes_over_all_tokens_four_times():
    """Rows that were picked up have zeros as large as all tokens for a gradient."""
    costs = StageCosts(small_job(small_model()))
    shape = costs.units.shape
    row_bytes = small_model().hidden * shape.element_bytes
    moved = loop_pieces(**LOOP)["expert_loop_gradient"].backward_bytes
    of_copies = 12 * TOP_K * shape.tokens * row_bytes
    assert moved == of_copies + 4 * COUNT * shape.tokens * row_bytes


class Operators(TorchDispatchMode):
    """Counts what torch dispatches, but for views."""

    views = frozenset({"view", "_unsafe_view", "t", "transpose", "unsqueeze", "select", "detach",
                       "expand", "squeeze", "permute", "slice", "unbind"})  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ not in self.views
        return function(*args, **(kwargs or {}))


def operators_of_loop(experts: int, *, gated: bool = True) -> list[int]:
    """Operators forward and backward of a loop over so many experts."""
    hidden, width, tokens = 8, 4, 16
    weights = [
        [torch.randn(width, hidden), torch.randn(width, hidden), torch.randn(hidden, width)]
        for _ in range(experts)
    ]
    for matrix in (matrix for three in weights for matrix in three):
        matrix.requires_grad_()
    rows = torch.randn(tokens, hidden, requires_grad=True)
    shares, chosen = torch.topk(torch.rand(tokens, experts, requires_grad=True), 2)
    mask = torch.nn.functional.one_hot(chosen, experts).permute(2, 1, 0)
    output = torch.zeros_like(rows)
    with Operators() as forward:
        for expert, (gate, up, down) in enumerate(weights):
            rank, token = torch.where(mask[expert])
            mine = rows[None, token].reshape(-1, hidden)
            linear = torch.nn.functional.linear
            silu = torch.nn.functional.silu
            inner = silu(linear(mine, gate)) * linear(mine, up) if gated else silu(linear(mine, up))
            made = linear(inner, down)
            output.index_add_(0, token, made * shares[token, rank, None])
    total = output.sum()
    with Operators() as backward:
        total.backward()
    return [forward.count, backward.count]


@pytest.mark.parametrize(("gated", "operators"), [(True, [10, 20]), (False, [8, 15])])
def test_torch_dispatches_so_many_operators_for_each_expert(gated, operators):
    """Without a gate, a product and a multiplication less, and five operators less backward."""
    few, many = (operators_of_loop(count, gated=gated) for count in (4, 8))
    assert [(b - a) / 4 for a, b in zip(few, many, strict=True)] == operators


@pytest.mark.parametrize(("gated", "operators"), [(True, (10, 20)), (False, (8, 15))])
def test_a_host_that_launches_nothing_else_takes_those_of_torch_less_the_products(gated, operators):
    pieces = loop_pieces(**LOOP, gated_mlp=gated, host_work_per_launch=1)
    found = [pieces[name].kernels for name in ("expert_loop", "expert_loop_gradient")]
    launches = [round(count * host_launches("operator")) for count in operators]
    products = (2, 4)
    assert found == [COUNT * (all_of - few) for all_of, few in zip(launches, products, strict=True)]


class Casts(TorchDispatchMode):
    """Counts copies in another format, and what they read and write [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.num_bytes = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ == "_to_copy":
            self.count += 1
            self.num_bytes += args[0].nbytes + result.nbytes
        return result


@pytest.mark.parametrize("gated", [True, False])
def test_autocast_casts_weights_and_rows_of_each_expert_and_their_gradients(gated):
    hidden, width, tokens, experts = 64, 64, 32, 4
    rows = torch.randn(tokens, hidden, requires_grad=True)
    linear = torch.nn.functional.linear
    weights = [
        [torch.randn(width, hidden, requires_grad=True) for _ in range(2 + gated)]
        for _ in range(experts)
    ]
    made = []
    with torch.autocast("cpu", dtype=torch.bfloat16), Casts() as forward:
        for number, (up, down, *gate) in enumerate(weights):
            mine = rows[number % 2 :: 2]
            inner = linear(mine, up)
            made.append(linear(inner * linear(mine, gate[0]) if gate else inner, down))
    total = torch.cat(made).sum(dtype=torch.bfloat16)
    with Casts() as backward:
        total.backward()
    experts_of = {"count": experts, "top_k": 2, "ffn_hidden": width}
    model = small_model(experts=experts_of, gated_mlp=gated, hidden=hidden)
    plan = Plan(stack={"base": "torch", **LOOP}, precision="bf16", zero=0)
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, tokens))
    casts = [p for p in layer.pieces if p.name in ("expert_up_autocast", "expert_down_autocast")]
    assert plan.autocasts
    assert sum(piece.kernels for piece in casts) == forward.count == backward.count
    assert sum(piece.forward_bytes for piece in casts) == forward.num_bytes
    assert sum(piece.backward_bytes for piece in casts) == backward.num_bytes


def test_a_run_of_layers_takes_what_the_loop_takes():
    experts = {"count": COUNT, "top_k": TOP_K, "ffn_hidden": 64}
    costs = StageCosts(small_job(small_model(experts=experts, gated_mlp=True), stack=LOOP))
    names = {part.name for part in costs.work(Slice(0, 1), Phase.FORWARD).parts}
    assert "expert_loop" in names
