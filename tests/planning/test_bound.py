"""The bound of a plan's memory, against the simulated peaks of all plans of a space."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.described.load import load_job
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.planning.search.bound import (
    _active_interleaved,
    _rounds_s,
    _slowed_s,
    plan_bounds,
)
from simulator.planning.search.plan_costs import Exposure, Pipeline, PlanTimes
from simulator.planning.search.space import plan_space
from simulator.program.build import build_program
from simulator.results.simulation import run_step
from simulator.schedule.orders.one_f_one_b import interleaved_one_f_one_b, round_length
from simulator.schedule.slots import Order, Phase
from tests.bench.cases import LARGE
from tests.jobs import network_profile, small_job, small_model

WHOLE = {
    "plan.tp": [1, 2],
    "plan.pp": [1, 4],
    "plan.zero": [0, 1],
    "plan.schedule": ["1f1b", "gpipe"],
    "plan.recompute": ["none", "full"],
}
"""Plans whose passes run one by one and as a whole, if there are several microbatches: the only
backward is the last, which reductions may cut."""

INTERLEAVED = {
    "plan.tp": [1],
    "plan.pp": [2, 4],
    "plan.vpp": [2],
    "plan.zero": [0, 1],
    "plan.schedule": ["interleaved-1f1b"],
    "plan.recompute": ["none", "full"],
}
"""The same, in several chunks per rank: the fullest moment may be any backward of a round."""

CUT = {
    "plan.pp": [1, 4],
    "plan.zero": [2, 3],
    "plan.vpp": [1, 2],
    "plan.schedule": [None, "zb-h1", "zb-v", "chimera"],
}
"""Plans of which pieces, buffers or halves of passes are left out."""


def bounded_and_simulated(vary, **plan):
    """What the fullest GPU of every plan holds in tensors: bound, and at the simulated peak."""
    job = small_job(small_model(layers=8), gpus=8, global_batch=64, **plan)
    space = plan_space(job, vary)
    simulated = [
        max(
            memory.peak_allocated_bytes
            for memory in run_step(space.plan_job(plan), "replay").memory
        )
        for plan in range(len(space))
    ]
    assert len(space) > 8
    return plan_bounds(space).peak_allocated_bytes, np.asarray(simulated), space


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-lm-2021", "internevo"])
def test_the_bound_is_the_simulated_peak_where_passes_are_whole(stack):
    bound, simulated, space = bounded_and_simulated(WHOLE, stack=stack)
    several = space.microbatches > 1
    assert np.count_nonzero(several) > 100
    assert bound[several] == pytest.approx(simulated[several], rel=1e-6)
    assert (bound <= simulated * (1 + 1e-6)).all()


@pytest.mark.parametrize("overlap_p2p", [False, True])
def test_the_bound_of_interleaved_plans_is_their_peak_but_for_transfers_under_way(overlap_p2p):
    bound, simulated, space = bounded_and_simulated(INTERLEAVED, overlap_p2p=overlap_p2p)
    several = space.microbatches > 1
    assert np.count_nonzero(several) > 30
    # A send and a receive of 64 tokens of 64 numbers in 16 bits, for each sequence.
    sequences = np.asarray([space.plan_job(plan).batch.micro_batch for plan in range(len(space))])
    under_way = 2 * sequences * 64 * 64 * 2 * overlap_p2p
    assert (simulated - bound <= under_way + 1e-6 * simulated)[several].all()
    assert (bound <= simulated * (1 + 1e-6)).all()


@given(
    stages=st.integers(2, 5),
    chunks=st.integers(1, 4),
    rounds=st.integers(1, 4),
    more=st.integers(0, 4),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_the_fullest_moment_of_an_interleaved_order_is_within_its_first_round(
    stages, chunks, rounds, more, data
):
    """Every pass of the order in turn, against the closed form; chunks of any size."""
    microbatches = rounds * (stages + more)
    length = round_length(stages, microbatches)
    assume(microbatches % length == 0)
    sizes = [
        [(data.draw(st.integers(1, 9)), data.draw(st.integers(0, 9))) for _ in range(chunks)]
        for _ in range(stages)
    ]
    parts = np.arange(stages)[:, None] + stages * np.arange(chunks)
    shapes = np.zeros(stages * chunks, dtype=np.int64)
    pipeline = Pipeline(
        "interleaved-1f1b",
        stages,
        chunks,
        (),
        shapes,
        parts,
        0 * parts[:, 0],
        1,
        True,
        False,
        False,
    )
    saved_bytes, working_bytes = np.moveaxis(np.asarray([sizes], dtype=float), -1, 0)
    closed = _active_interleaved(pipeline, saved_bytes, working_bytes, np.asarray([microbatches]))
    for rank, order in enumerate(interleaved_one_f_one_b(stages, chunks, microbatches)):
        saved, working = zip(*sizes[rank], strict=True)
        now, most = [0] * chunks, 0
        for slot in order:
            chunk = slot.stage // stages
            if slot.phase is Phase.FORWARD:
                now[chunk] += 1
                continue
            most = max(most, sum(np.multiply(now, saved)) + working[chunk])
            now[chunk] -= 1
        assert closed[0, rank] == most


def ends_at(order: Order, forward_s, backward_s, transfer_s: float) -> float:
    """When the last pass of an order ends, if nothing but other passes holds one up."""
    ended: dict[tuple[Phase, int, int], float] = {}
    free_s, left = [0.0] * len(order), [deque(slots) for slots in order]
    last = len(forward_s) - 1
    while any(left):
        for rank, slots in enumerate(left):
            while slots:
                phase, stage, microbatch = slots[0].phase, slots[0].stage, slots[0].microbatch
                is_forward = phase is Phase.FORWARD
                before, delay_s = (phase, stage - 1 if is_forward else stage + 1), transfer_s
                if not is_forward and stage == last:
                    before, delay_s = (Phase.FORWARD, stage), 0.0
                begins = is_forward and stage == 0
                if not begins and (*before, microbatch) not in ended:
                    break
                ready_s = 0.0 if begins else ended[*before, microbatch] + delay_s
                seconds = (forward_s if is_forward else backward_s)[stage]
                free_s[rank] = max(free_s[rank], ready_s) + seconds
                ended[phase, stage, microbatch] = free_s[rank]
                slots.popleft()
    return max(ended.values())


@given(
    stages=st.integers(2, 5),
    chunks=st.integers(2, 4),
    rounds=st.integers(1, 4),
    more=st.integers(-2, 4),
    transfer_s=st.integers(0, 5),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_an_interleaved_order_ends_no_sooner_than_its_way_there_and_back(
    stages, chunks, rounds, more, transfer_s, data
):
    """Every pass of the order in turn, against the closed form; stages that take any time."""
    microbatches = max(1, rounds * (stages + more))
    assume(microbatches % round_length(stages, microbatches) == 0)
    times = st.lists(st.integers(1, 9), min_size=stages * chunks, max_size=stages * chunks)
    forward_s, backward_s = data.draw(times), data.draw(times)
    least_s = rounds_s(stages, chunks, microbatches, forward_s, backward_s, transfer_s)
    order = interleaved_one_f_one_b(stages, chunks, microbatches)
    assert least_s <= ends_at(order, forward_s, backward_s, transfer_s)


def rounds_s(stages, chunks, microbatches, forward_s, backward_s, transfer_s) -> float:
    """The closed form."""
    parts = np.arange(stages)[:, None] + stages * np.arange(chunks)
    pipeline = Pipeline(
        "interleaved-1f1b", stages, chunks, (), parts.ravel(), parts, 0 * parts[:, 0], 1, True,
        False, False,
    )  # fmt: skip
    nothing = np.zeros((1, stages * chunks))
    there, back = np.asarray([[forward_s], [backward_s]], dtype=float)
    times = PlanTimes(there, back, *[nothing] * 7)
    found = _rounds_s(pipeline, times, np.asarray([[transfer_s]]), np.asarray([microbatches]))
    return float(found[0])


@pytest.mark.parametrize("transfer_s", [0.0, 0.1])
def test_equal_stages_without_gaps_end_with_their_way_there_and_back(transfer_s):
    """Two ranks of two chunks, four microbatches: 8 passes each way and a bubble of one of each.

    A microbatch changes ranks three times on its way there, and three times on its way back.
    """
    least_s = rounds_s(2, 2, 4, [1.0] * 4, [1.0] * 4, transfer_s)
    assert least_s == pytest.approx(2 * (8 + 1) + 6 * transfer_s)
    order = interleaved_one_f_one_b(2, 2, 4)
    assert ends_at(order, [1.0] * 4, [1.0] * 4, transfer_s) >= least_s - 1e-9


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan"])
def test_no_plan_holds_less_than_its_bound(stack):
    bound, simulated, _ = bounded_and_simulated(CUT, stack=stack)
    assert (bound <= simulated).all()
    assert (bound > 0.2 * simulated).all()


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_bound_of_a_plan_does_not_depend_on_the_plans_beside_it(stack, tied):
    """Costs are shared by plans of which they are the same, and by no others."""
    job = small_job(
        small_model(tied_embeddings=tied, vocab=65536), gpus=8, global_batch=16, stack=stack
    )
    space = plan_space(job, {"plan.cp": [1], "batch.micro": [2], "plan.recompute": ["none"]})
    together = plan_bounds(space)
    for number in range(len(space)):
        axes = {path: [value] for path, value in space.changes(number).items()}
        alone = plan_bounds(plan_space(job, axes))
        for name in ("step_time_s", "peak_device_bytes"):
            shared = getattr(together, name)[number]
            assert getattr(alone, name)[0] == pytest.approx(shared, rel=1e-12)


def test_exchanges_beside_the_middle_of_a_step_slow_it_by_their_share():
    """Two of four microbatches' exchanges of 10 s lie in its ends; the others take a tenth."""
    runs = np.arange(1)
    pipeline = Pipeline("1f1b", 1, 1, (), runs, runs[:, None], runs, 1, True, False, False)
    nothing, ten, tenth = np.zeros((1, 1)), np.full((1, 1), 10.0), np.full((1, 1), 0.1)
    costs = PlanTimes(*[nothing] * 4, ten, nothing, nothing, tenth, tenth)
    beside = Exposure(*[nothing] * len(Exposure._fields))
    between = beside._replace(reduces_between=np.ones((1, 1)))
    passes, ends_s = np.asarray([[4.0]]), np.asarray([[20.0]])
    assert _slowed_s(pipeline, costs, beside, passes, ends_s) == pytest.approx(0.1 * (40 - 20))
    assert _slowed_s(pipeline, costs, between, passes, ends_s) == 0


def test_a_bound_knows_what_exchanges_slow():
    """Weights and gradients of many chunks are exchanged beside passes, which replay ignores."""
    fields = {"tp": 8, "pp": 8, "vpp": 16, "cp": 4, "zero": 1, "recompute": "none"}
    changes = {**{f"plan.{name}": value for name, value in fields.items()}, "batch.micro": 1}
    job = load_job(LARGE).replace(changes)
    space = plan_space(job, {path: [value] for path, value in changes.items()})
    bound_s = plan_bounds(space).step_time_s[0]
    program = build_program(job)
    assert replay(program).step_time_s < bound_s <= simulate_program(program).step_time_s


@pytest.mark.parametrize("overlaps", [None, False])
@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan", "deepspeed"])
def test_a_step_on_a_slow_network_is_hardly_longer_than_its_exchanges_in_turn(stack, overlaps):
    """Gradients are reduced and weights gathered on one stream, whether or not computing hides it.

    A GPU that waits for them computes before and after; nothing else is left out.
    """
    slow = network_profile(fabric={"nic": "100 kB/s"})
    plan = {"overlap_grad_reduce": overlaps, "overlap_param_gather": overlaps}
    job = small_job(small_model(), profile=slow, gpus=8, global_batch=32, stack=stack, **plan)
    axes = {f"plan.{name}": [1] for name in ("tp", "pp", "vpp", "cp")}
    space = plan_space(job, {**axes, "plan.zero": [0, 1, 3], "batch.micro": [1, 4]})
    bound = plan_bounds(space).step_time_s
    steps = [run_step(space.plan_job(plan), "replay") for plan in range(len(space))]
    simulated = np.asarray([step.step_time_s for step in steps])
    assert len(space) >= 4
    assert (bound <= simulated).all()
    assert (bound > 0.98 * simulated).all()
