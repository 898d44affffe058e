"""2D, 2.5D and 3D tensor parallelism: what moves, what is multiplied and what is held."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.collectives import Group
from simulator.described.job import Job
from simulator.described.plan.plan_blocks import TensorGrid
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.rank_groups import grid_groups
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Collective, Kind, Owner
from simulator.program.layer.layer_kinds import layer_tensors
from simulator.program.layer.model_ends import embedding_tensors, head_tensors
from simulator.program.layer.pieces import Axis, Gemm, GridProduct, Split
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.resident import padded_vocab, state_bytes
from simulator.program.strategies.grid_products import (
    cube_product,
    summa_product,
    tesseract_product,
)
from simulator.results.traffic import rank_collectives, sent_bytes
from simulator.schedule.slots import Phase
from tests.jobs import gpt_model, small_job

HALF = 2.0
KEPT = {"base": "megatron-core", "keeps_gathered": True}
GRIDS = {
    "2d": {"tp": 16, "tp_method": "2d"},
    "2.5d": {"tp": 8, "tp_method": "2.5d", "tp_depth": 2},
    "3d": {"tp": 8, "tp_method": "3d"},
}
SEQUENCES = {"2d": 4, "2.5d": 4, "3d": 4}


def grid_job(method: str, **plan: object) -> Job:
    fields = {**GRIDS[method], **plan}
    gpus = int(fields.pop("gpus", fields["tp"]))  # type: ignore[call-overload]
    model = gpt_model(heads=8, kv_heads=8, layers=2)
    return small_job(
        model, gpus=gpus, micro_batch=SEQUENCES[method],
        global_batch=2 * SEQUENCES[method] * gpus // int(fields["tp"]), seq_len=64, **fields,
    )  # fmt: skip


def of_layers(job: Job, phase: Phase) -> list[Collective]:
    """What the products of one microbatch through all layers move in one direction."""
    (run,) = stage_slices(job, 1)
    names = ("qkv", "attention_output", "mlp_up", "mlp_down")
    issued = StageCosts(job).work(run, phase).collectives
    return [each for each in issued if each.name.split(".")[0] in names]


def matrices(job: Job) -> tuple[float, float, float]:
    """Bytes of all inputs, weights and results of the products of all layers."""
    tokens, h = job.batch.micro_batch * job.batch.seq_len, job.model.hidden
    layers = job.model.layers * HALF
    return 7 * tokens * h * layers, 12 * h * h * layers, 9 * tokens * h * layers


def test_2d_moves_what_optimus_counts():
    """Optimus (arXiv 2104.05343): (7 b s h + 12 h^2) / q forward, and twice that backward."""
    job = grid_job("2d")
    inputs, weights, _ = matrices(job)
    forward = of_layers(job, Phase.FORWARD)
    backward = of_layers(job, Phase.BACKWARD)
    assert {each.kind for each in forward} == {Kind.BROADCAST}
    assert sum(each.num_bytes for each in forward) == (inputs + weights) / 4
    assert sum(each.num_bytes for each in backward) == 2 * (inputs + weights) / 4
    for axis, moved in (("tp-row", inputs), ("tp-column", weights)):
        along = [each for each in backward if each.axis == axis]
        assert sum(e.num_bytes for e in along if e.kind is Kind.BROADCAST) == moved / 4
        assert sum(e.num_bytes for e in along if e.kind is Kind.REDUCE) == moved / 4


def test_25d_moves_a_square_s_share_of_the_tokens_and_adds_weights_up_over_the_depth():
    """Tesseract (arXiv 2105.14500): inputs of 1/d of the tokens; weights over the depth."""
    job = grid_job("2.5d")
    inputs, weights, _ = matrices(job)
    assert sum(e.num_bytes for e in of_layers(job, Phase.FORWARD)) == (inputs / 2 + weights) / 2
    backward = of_layers(job, Phase.BACKWARD)
    depth = [each for each in backward if each.axis == "tp-depth"]
    assert {each.kind for each in depth} == {Kind.ALL_REDUCE}
    assert sum(each.num_bytes for each in depth) == weights / 4
    lines = sum(each.num_bytes for each in backward if each.axis != "tp-depth")
    assert lines == 2 * (inputs / 2 + weights) / 2


def test_3d_moves_six_parts_of_its_matrices():
    """3D (arXiv 2105.14450): (q-1)/q^3 of input, weight and result forward, and again."""
    job = grid_job("3d", stack=KEPT)
    share = (2 - 1) / 2**3
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        moved = sum(map(sent_bytes, of_layers(job, phase)))
        assert moved == pytest.approx(sum(matrices(job)) * share)


def test_3d_gathers_inputs_and_weights_again_unless_they_are_kept():
    inputs, weights, results = matrices(grid_job("3d"))
    moved = sum(map(sent_bytes, of_layers(grid_job("3d"), Phase.BACKWARD)))
    assert moved == pytest.approx((2 * inputs + 2 * weights + results) / 8)


def moves_over_a_matrix(product: GridProduct, elements: float, *, per_hop: bool) -> float:
    """Elements that the product passes on in all directions, over those of one matrix."""
    directions = (product.forward, product.input_gradient, product.weight_gradient)
    moves = [move for each in directions for move in each if move.axis is not Axis.DEPTH]
    q = 4
    per_message = (q - 1) if per_hop else (q - 1) / q
    return sum(m.times * m.num_bytes * per_message for m in moves) / elements


@pytest.mark.parametrize(
    ("method", "bandwidth"),
    [
        ("2d", 6 * 3 / 4),
        ("2.5d", 3 * 3 * (2 + 1) / (2 * 4)),
        ("3d", 6 * 3 / 4**3),
    ],
)
def test_a_square_product_costs_the_bandwidth_that_colossal_ai_documents(method, bandwidth):
    """6 (q-1)/q, 3 (q-1)(d+1)/(d q) and 6 (q-1)/q^3 of a matrix, every hop of a ring counted."""
    gemm = Gemm("mlp_up", 512, 512, 512, split=Split.COLUMN)
    product = {
        "2d": lambda: summa_product(gemm, TensorGrid("2d", 4, 1), 1.0),
        "2.5d": lambda: tesseract_product(gemm, TensorGrid("2.5d", 4, 2), 1.0),
        "3d": lambda: cube_product(gemm, TensorGrid("3d", 4, 4), 1.0, keeps_gathered=True),
    }[method]()
    per_hop = method != "3d"
    assert moves_over_a_matrix(product, 512 * 512, per_hop=per_hop) == pytest.approx(bandwidth)


@pytest.mark.parametrize("method", GRIDS)
def test_ranks_of_a_grid_compute_the_model_once_between_them(method):
    job = grid_job(method, stack={"pads_vocab": False})
    single = job.model_copy(update={"plan": job.plan.model_copy(update={"tp": 1})})
    for phase in Phase:
        runs = [stage_slices(each, 1)[0] for each in (job, single)]
        split, whole = (
            StageCosts(each).work(run, phase).flop
            for each, run in zip((job, single), runs, strict=True)
        )
        assert job.plan.tp * split == whole


@pytest.mark.parametrize("method", GRIDS)
def test_activations_are_divided_over_the_whole_grid(method):
    """All but the statistics of norms, a few bytes per token."""
    job = grid_job(method)
    single = job.model_copy(update={"plan": job.plan.model_copy(update={"tp": 1})})
    held = []
    for each in (job, single):
        (run,) = stage_slices(each, 1)
        sizes = [size for owner, size in StageCosts(each).saved(run) if owner is Owner.ACTIVATIONS]
        held.append(sorted(sizes, reverse=True))
    split, whole = held
    large = [size for size in whole if size >= 4 * 64 * 64]
    assert split[: len(large)] == [size / job.plan.tp for size in large]


def test_what_3d_keeps_gathered_takes_the_side_of_the_cube_as_much():
    plain, kept = (
        sum(size for _, size in StageCosts(job).saved(stage_slices(job, 1)[0]))
        for job in (grid_job("3d"), grid_job("3d", stack=KEPT))
    )
    inputs, weights, _ = matrices(grid_job("3d"))
    tokens_of_head = 4 * 64 * 64 * HALF
    head = tokens_of_head / 8 + 1024 * 64 * HALF / 4
    assert kept - plain == pytest.approx(inputs / 8 + weights / 4 + head)


@given(st.sampled_from(sorted(GRIDS)), st.integers(1, 3), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=30)
def test_ranks_of_a_grid_hold_every_parameter(method, zero_level, tied, with_bias):
    """Matrices once, or once per square; vectors as often as their few parts leave."""
    model = gpt_model(layers=2, tied_embeddings=tied, qkv_bias=with_bias)
    fields, zero = GRIDS[method], zero_level - 1
    gpus = 2 * int(fields["tp"])
    job = small_job(model, gpus=gpus, micro_batch=4, global_batch=16, zero=zero, **fields)
    grid = job.plan.tensor_grid
    assert grid is not None
    vocab = padded_vocab(job)
    tensors = [
        *embedding_tensors(model, vocab), *head_tensors(model, vocab),
        *(t for index in range(2) for t in layer_tensors(model, index)),
    ]  # fmt: skip
    table_ways = grid.vector_ways if method == "3d" else grid.weight_ways

    def ways(tensor):
        if tensor.name == "embedding.positions":
            return table_ways
        return grid.vector_ways if tensor.is_vector else grid.weight_ways

    whole = sum(tensor.numel * gpus / ways(tensor) for tensor in tensors)
    (rank_class,) = build_program(job).classes
    held = dict(rank_class.resident)
    per = state_bytes(job)
    assert rank_class.count * held[Owner.WEIGHTS] == pytest.approx(whole * per.weights)
    shards = 2 if zero else 1
    moments = rank_class.count * held[Owner.OPTIMIZER_STATES]
    assert moments == pytest.approx(whole * per.moments / shards)


@pytest.mark.parametrize(
    ("method", "lines"),
    [
        # Four GPUs per node: a row is a node; a column and the depth have a rank in each.
        ("2d", (Group(4, 4), Group(4, 1))),
        # Squares of 2 x 2 are nodes.
        ("2.5d", (Group(2, 2), Group(2, 2), Group(2, 1))),
        ("3d", (Group(2, 2), Group(2, 2), Group(2, 1))),
    ],
)
def test_neighbours_share_a_row_and_squares_lie_behind_each_other(method, lines):
    assert grid_groups(grid_job(method))[: len(lines)] == lines


def test_steps_of_summa_hide_what_they_can():
    """A step's operands travel beside the product of the one before, unless told otherwise."""

    def exchange_s(**plan: object) -> float:
        job = grid_job("2d", **plan)
        (run,) = stage_slices(job, 1)
        parts = StageCosts(job).work(run, Phase.FORWARD).parts
        return sum(p.seconds for p in parts if p.name.split(".")[-1] in ("input", "weights"))

    hidden, blocking = exchange_s(), exchange_s(overlap_tp=False)
    assert blocking / 4 <= hidden < blocking


@pytest.mark.parametrize("method", GRIDS)
@pytest.mark.parametrize("plan", [{}, {"pp": 2}, {"recompute": "full"}, {"zero": 2}])
def test_grids_compose_and_unfold(method, plan):
    job = grid_job(method, gpus=2 * GRIDS[method]["tp"], **plan)
    folded, unfolded = (
        replay(build_program(job, unfolded=each)).step_time_s for each in (False, True)
    )
    assert unfolded == pytest.approx(folded, rel=1e-12)


def test_deeper_tesseracts_move_less_between_ranks_of_a_square():
    moved = [
        sum(e.num_bytes for e in rank_collectives(build_program(job)) if e.axis == "tp-row")
        for job in (
            small_job(gpt_model(heads=8), gpus=16, tp=tp, micro_batch=8, global_batch=8 * 16 // tp,
                      tp_method="2.5d", tp_depth=depth)
            for tp, depth in ((4, 1), (8, 2), (16, 4))
        )
    ]  # fmt: skip
    assert all(later < earlier for earlier, later in pairwise(moved))


@pytest.mark.parametrize(
    ("plan", "path", "rule"),
    [
        ({"tp": 8, "tp_method": "2d"}, "plan.tp", "must be a square q x q"),
        ({"tp": 16, "tp_method": "3d"}, "plan.tp", "must be a cube"),
        ({"tp": 8, "tp_method": "2.5d", "tp_depth": 4}, "plan.tp", "q x q x tp_depth"),
        ({"tp": 4, "tp_method": "2d", "tp_depth": 2}, "plan.tp_depth", "does not apply"),
        ({"tp": 4, "tp_method": "2d", "micro_batch": 1}, "batch.micro", "multiple of 2"),
        ({"tp": 8, "tp_method": "3d", "micro_batch": 2}, "batch.micro", "multiple of 4"),
        ({"tp": 4, "tp_method": "2d", "cp": 2}, "plan.cp", "cannot be combined"),
        ({"tp": 4, "tp_method": "2d", "zero": 3}, "plan.zero", "in no framework"),
        ({"tp": 4, "tp_method": "2d", "sequence_parallel": True}, "plan.sequence_parallel",
         "already divides"),
        ({"tp": 8, "tp_method": "3d", "overlap_tp": True}, "plan.overlap_tp", "needs steps"),
    ],
)  # fmt: skip
def test_what_a_grid_cannot_run_is_refused_with_the_reason(plan, path, rule):
    sizes = {"micro_batch": 4, "global_batch": 64, **plan}
    with pytest.raises(InputError) as caught:
        small_job(gpt_model(), gpus=16, **sizes)
    assert any(fault.path == path and rule in fault.rule for fault in caught.value.faults)


def test_experts_on_a_grid_are_refused():
    experts = {"count": 4, "top_k": 2, "ffn_hidden": 64}
    with pytest.raises(InputError, match="mixtures of experts"):
        small_job(gpt_model(experts=experts), gpus=4, tp=4, tp_method="2d", micro_batch=2)
