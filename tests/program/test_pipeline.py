"""Passes, transfers and memory events of a pipeline order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.engine.dependencies import DeadlockError
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.errors import UnsupportedError
from simulator.program.build import build_program
from simulator.program.ir import Kind, Operation, Owner, Program, Stream, Work
from simulator.schedule import SCHEDULES, Phase, Slot, schedule_order
from simulator.schedule.orders.one_f_one_b import paired_interleaved
from simulator.schedule.registry import schedule_info
from simulator.schedule.unit_time import slot_times
from tests.jobs import EqualPasses, pipeline_program, small_job, small_model

SIZES = {
    "naive": [(3, 1, 4)],
    "gpipe": [(3, 1, 4)],
    "1f1b": [(3, 1, 4), (4, 1, 2)],
    "interleaved-1f1b": [(2, 2, 4), (3, 4, 6)],
    "looped-bfs": [(3, 2, 4)],
    "zb-h1": [(3, 1, 6)],
    "zb-h2": [(3, 1, 6)],
    "zb-v": [(3, 2, 6)],
    "v-half": [(4, 2, 8)],
    "v-min": [(4, 2, 8)],
    "varuna": [(3, 1, 4)],
}
"""Some (stages, chunks, microbatches) of every schedule that one copy of a model runs."""

CASES = [(name, *size) for name, sizes in SIZES.items() for size in sizes]
every_schedule = pytest.mark.parametrize("name", list(SCHEDULES))
everywhere = pytest.mark.parametrize(("name", "p", "v", "m"), CASES)


def transfers(program: Program) -> list[Operation]:
    return [op for op in program.operations if op.kind is Kind.SEND_RECV]


@everywhere
def test_each_slot_of_the_order_becomes_one_pass_on_its_rank(name, p, v, m):
    program = pipeline_program(name, p, v, m)
    kinds = {
        Phase.FORWARD: Kind.FORWARD,
        Phase.BACKWARD: Kind.BACKWARD,
        Phase.BACKWARD_INPUT: Kind.BACKWARD_INPUT,
        Phase.BACKWARD_WEIGHT: Kind.BACKWARD_WEIGHT,
    }
    for rank, slots in enumerate(schedule_order(name, p, v, m)):
        lane = [program.operations[i] for i in program.lanes[rank, Stream.COMPUTE]]
        assert [(op.kind, op.microbatch) for op in lane] == [
            (kinds[slot.phase], slot.microbatch) for slot in slots
        ]


@everywhere
def test_every_microbatch_crosses_every_boundary_once_each_way(name, p, v, m):
    """Boundaries inside a rank, as at the bottom of a V, need no transfer."""
    place = schedule_info(name).placement.rank
    boundaries = sum(place(stage, p) != place(stage + 1, p) for stage in range(p * v - 1))
    program = pipeline_program(name, p, v, m)
    assert len(transfers(program)) == 2 * m * boundaries
    counts = Counter(op.microbatch for op in transfers(program))
    assert counts == dict.fromkeys(range(m), 2 * boundaries)


@everywhere
@pytest.mark.parametrize("blocking", [False, True])
def test_transfers_join_a_sender_and_a_receiver(name, p, v, m, blocking):
    program = pipeline_program(name, p, v, m, blocking=blocking)
    for operation in transfers(program):
        (source, send), (target, receive) = operation.lanes
        assert source != target
        assert (send is Stream.COMPUTE) == blocking
        assert receive in (Stream.RECV_PREVIOUS, Stream.RECV_NEXT)
        (producer,) = operation.after
        assert program.operations[producer].lanes == ((source, Stream.COMPUTE),)


@everywhere
def test_each_receiving_stream_hears_from_one_sender(name, p, v, m):
    senders: dict[tuple[int, Stream], set[int]] = {}
    for operation in transfers(pipeline_program(name, p, v, m)):
        senders.setdefault(operation.lanes[1], set()).add(operation.lanes[0][0])
    assert all(len(sources) == 1 for sources in senders.values())


@everywhere
def test_free_transfers_give_the_unit_times_of_the_schedule(name, p, v, m):
    """Forward 1, input gradient 1, weight gradient 1: an independent little executor."""
    expected = slot_times(schedule_order(name, p, v, m), v, schedule_info(name).placement)
    timeline = replay(pipeline_program(name, p, v, m))
    for rank in range(p):
        lane = timeline.program.lanes[rank, Stream.COMPUTE]
        assert timeline.operation_start_s[lane].tolist() == pytest.approx(expected.start[rank])
    assert timeline.step_time_s == pytest.approx(expected.makespan)


@everywhere
def test_what_every_forward_takes_its_backward_gives_back(name, p, v, m):
    program = pipeline_program(name, p, v, m, costs=EqualPasses(saved_bytes=7.0))
    for rank in range(p):
        lane = [program.operations[i] for i in program.lanes[rank, Stream.COMPUTE]]
        taken = sum(size for op in lane for _, size in op.takes)
        given_back = sum(size for op in lane for _, size in op.gives)
        assert taken == given_back == 7.0 * m * v
        assert all(op.takes == () for op in lane if op.kind is not Kind.FORWARD)


@given(st.sampled_from(CASES), st.floats(0.0, 5.0), st.booleans())
@settings(deadline=None, max_examples=60)
def test_no_schedule_deadlocks_however_long_transfers_take(case, transfer_s, blocking):
    name, p, v, m = case
    program = pipeline_program(name, p, v, m, transfer=Work(transfer_s), blocking=blocking)
    assert simulate_program(program, contention=False).step_time_s == replay(program).step_time_s


@given(st.sampled_from(CASES), st.floats(0.0, 2.0), st.floats(0.01, 2.0))
@settings(deadline=None, max_examples=60)
def test_longer_transfers_never_shorten_a_pipeline(case, transfer_s, more_s):
    name, p, v, m = case
    steps = [
        replay(pipeline_program(name, p, v, m, transfer=Work(seconds))).step_time_s
        for seconds in (transfer_s, transfer_s + more_s)
    ]
    assert steps[0] <= steps[1]


@given(st.sampled_from(CASES), st.floats(0.0, 2.0))
@settings(deadline=None, max_examples=40)
def test_blocking_sends_never_shorten_a_pipeline(case, transfer_s):
    name, p, v, m = case
    free, blocking = (
        replay(
            pipeline_program(name, p, v, m, transfer=Work(transfer_s), blocking=held)
        ).step_time_s
        for held in (False, True)
    )
    assert free <= blocking


@pytest.mark.parametrize("engine", [replay, simulate_program])
def test_an_order_that_runs_backward_before_its_forward_is_a_deadlock(engine):
    """Stage 0 wants the gradient of a microbatch that it has not sent on."""
    order = [
        [Slot(Phase.BACKWARD, 0, 0), Slot(Phase.FORWARD, 0, 0)],
        [Slot(Phase.FORWARD, 1, 0), Slot(Phase.BACKWARD, 1, 0)],
    ]
    with pytest.raises(DeadlockError, match="backward of microbatch 0, chunk 0 on stage 0/compute"):
        engine(pipeline_program("1f1b", 2, 1, 1, order=order))


def test_a_split_backward_that_keeps_its_graph_keeps_what_it_recomputed_until_the_end():
    plan = {"schedule": "zb-h1", "recompute": "full"}
    plan["stack"] = {"base": "megatron-core", "keeps_graph_for_weights": True}
    job = small_job(small_model(layers=4), gpus=2, pp=2, global_batch=4, **plan)
    operations = build_program(job).operations
    taken = [op for op in operations if Owner.RECOMPUTE in dict(op.takes)]
    given = [op for op in operations if Owner.RECOMPUTE in dict(op.gives)]
    assert {op.kind for op in taken} == {Kind.BACKWARD_INPUT}
    assert {op.kind for op in given} == {Kind.BACKWARD_WEIGHT}
    assert len(taken) == len(given) == 8


def test_weight_gradients_gather_no_weights():
    fields = {"gpus": 4, "pp": 2, "global_batch": 8, "zero": 3}
    model = small_model(layers=4)
    whole, split = (
        sum(op.kind is Kind.ALL_GATHER for op in build_program(job).operations)
        for job in (
            small_job(model, schedule="1f1b", **fields),
            small_job(model, schedule="zb-h1", **fields),
        )
    )
    assert split <= whole


@every_schedule
@settings(max_examples=8, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data(), transfer_s=st.sampled_from([0.0, 0.3, 4.0]), blocking=st.booleans())
def test_any_schedule_of_any_size_ends_with_blocking_sends(name, data, transfer_s, blocking):
    """A send holds its rank until it has been received; receives are posted ahead."""
    info = schedule_info(name)
    least, most = info.chunks
    p, v = data.draw(st.integers(1, 6)), data.draw(st.integers(least, most or 3))
    m = data.draw(st.integers(1, 14))
    try:
        info.check(p, v, m)
    except UnsupportedError:
        assume(False)
    program = pipeline_program(name, p, v, m, transfer=Work(transfer_s), blocking=blocking)
    assert replay(program).step_time_s >= 3.0 * m


def test_a_joint_pair_waits_for_the_inputs_of_both_and_sends_after_both():
    """By hand: two ranks, rank 1 joins the forward of microbatch 1 with the backward of 0."""
    f, b = Phase.FORWARD, Phase.BACKWARD
    order = [
        [Slot(f, 0, 0), Slot(f, 0, 1), Slot(b, 0, 0), Slot(b, 0, 1)],
        [Slot(f, 1, 0), Slot(f, 1, 1, overlaps_next=True), Slot(b, 1, 0), Slot(b, 1, 1)],
    ]
    timeline = replay(pipeline_program("1f1b", 2, 1, 2, order=order))
    lane = timeline.program.lanes[0, Stream.COMPUTE]
    # Rank 1: F0 1-2, F1 2-3 and B0 3-5 together, B1 5-7; rank 0 hears of B0 at 5.
    assert timeline.operation_start_s[lane].tolist() == [0, 1, 5, 7]
    reverse = [order[0], [order[1][0], Slot(b, 1, 0), Slot(f, 1, 1), Slot(b, 1, 1)]]
    timeline = replay(pipeline_program("1f1b", 2, 1, 2, order=reverse))
    assert timeline.operation_start_s[lane].tolist() == [0, 1, 4, 7]


def test_a_forward_waits_for_the_host_where_exchanges_synchronise():
    program = pipeline_program("1f1b", 2, 1, 4, blocking=True, forward_host_s=0.5)
    plain = pipeline_program("1f1b", 2, 1, 4, blocking=True)
    forwards, later = (
        [op.work.seconds for op in found.operations if op.kind is Kind.FORWARD]
        for found in (plain, program)
    )
    assert [seconds + 0.5 for seconds in forwards] == later


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("v", [2, 3, 4])
def test_interleaved_pairs_never_wait_for_each_other_in_a_circle(p, v):
    """However few the microbatches: forwards that run ahead are in no pair."""
    for m in [m for m in range(1, 3 * p + 1) if m % max(1, m // p) == 0]:
        order = paired_interleaved(p, v, m)
        plain = schedule_order("interleaved-1f1b", p, v, m)
        assert [[s._replace(overlaps_next=False) for s in row] for row in order] == plain
        transfer = Work(0.1)
        replay(pipeline_program("interleaved-1f1b", p, v, m, order=order, transfer=transfer))
