"""The longest path over a program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.engine.dependencies import DeadlockError
from simulator.engine.des import simulate_program
from simulator.engine.replay import is_timed_alike, replay
from simulator.program.ir import (
    Category,
    Kind,
    Lane,
    Operation,
    Owner,
    Program,
    RankClass,
    Stream,
    Work,
)
from tests.factories import device_of

COMPUTE, SEND, RECEIVE = Stream.COMPUTE, Stream.SEND_NEXT, Stream.RECV_PREVIOUS


def program_of(*operations: tuple[float, tuple[Lane, ...], tuple[int, ...]]) -> Program:
    """Two classes and operations of (seconds, lanes, after)."""
    program = Program(tuple(RankClass(f"stage {i}", i, 1, i) for i in range(2)))
    for number, (seconds, lanes, after) in enumerate(operations):
        kind = Kind.SEND_RECV if len(lanes) > 1 else Kind.FORWARD
        category = Category.PIPELINE if len(lanes) > 1 else Category.FORWARD
        work = Work(seconds)
        program.add(Operation(kind, lanes, work, category, after, microbatch=number, chunk=0))
    return program


@pytest.fixture(params=[replay, simulate_program], ids=["replay", "des"])
def engine(request):
    return request.param


def test_a_stream_runs_first_in_first_out(engine):
    timeline = engine(program_of((1.0, ((0, COMPUTE),), ()), (2.0, ((0, COMPUTE),), ())))
    assert timeline.operation_start_s.tolist() == [0.0, 1.0]
    assert timeline.step_time_s == 3.0


def test_streams_of_one_rank_run_side_by_side(engine):
    timeline = engine(program_of((1.0, ((0, COMPUTE),), ()), (2.0, ((0, SEND),), ())))
    assert timeline.operation_start_s.tolist() == [0.0, 0.0]


def test_an_operation_waits_for_the_last_of_its_dependencies(engine):
    timeline = engine(
        program_of(
            (1.0, ((0, COMPUTE),), ()),
            (3.0, ((1, COMPUTE),), ()),
            (1.0, ((0, COMPUTE),), (0, 1)),
        )
    )
    assert timeline.operation_start_s.tolist() == [0.0, 0.0, 3.0]


def test_a_rendezvous_starts_when_its_last_lane_arrives_and_holds_all_of_them(engine):
    both: tuple[Lane, ...] = ((0, COMPUTE), (1, COMPUTE))
    timeline = engine(
        program_of(
            (1.0, ((0, COMPUTE),), ()),
            (4.0, ((1, COMPUTE),), ()),
            (2.0, both, ()),
            (1.0, ((0, COMPUTE),), ()),
        )
    )
    assert timeline.operation_start_s.tolist() == [0.0, 0.0, 4.0, 6.0]


def test_a_blocked_head_holds_up_what_is_behind_it(engine):
    """The second operation of lane 0 is free, but its lane's head waits for lane 1."""
    timeline = engine(
        program_of((5.0, ((1, COMPUTE),), ()), (1.0, ((0, SEND),), (0,)), (1.0, ((0, SEND),), ()))
    )
    assert timeline.operation_start_s.tolist() == [0.0, 5.0, 6.0]


def test_an_empty_program_takes_no_time(engine):
    assert engine(program_of()).step_time_s == 0.0


def test_dependencies_in_a_circle_are_a_deadlock_that_names_the_blocked(engine):
    program = program_of(
        (1.0, ((1, COMPUTE),), ()), (1.0, ((0, COMPUTE),), (2,)), (1.0, ((1, COMPUTE),), (1,))
    )
    with pytest.raises(DeadlockError) as raised:
        engine(program)
    text = str(raised.value)
    assert text.startswith("2 of 3 operations can never start")
    assert "forward of microbatch 1, chunk 0 on stage 0/compute" in text
    assert "forward of microbatch 2, chunk 0 on stage 1/compute" in text
    assert "microbatch 0" not in text


def test_transfers_in_opposite_orders_on_two_ranks_are_a_deadlock(engine):
    """Rank 0 meets A before B, rank 1 meets B before A."""
    program = program_of((1.0, ((0, SEND), (1, RECEIVE)), ()), (1.0, ((0, SEND), (1, RECEIVE)), ()))
    program.lanes[1, RECEIVE].reverse()
    with pytest.raises(DeadlockError, match=r"send_recv of microbatch 0.*stage 0/send_next"):
        engine(program)


def two_passes(**changes: object) -> Program:
    """A forward on each of two classes, with fields of the program or of its classes changed."""
    program = program_of((1.0, ((0, COMPUTE),), ()), (2.0, ((1, COMPUTE),), (0,)))
    return replace(program, **changes)


def test_programs_that_do_the_same_are_timed_alike_whatever_they_hold_in_memory():
    fuller = two_passes()
    first = fuller.operations[0]
    fuller.operations[0] = replace(first, takes=((Owner.ACTIVATIONS, 1e9),))
    assert is_timed_alike(two_passes(), two_passes())
    assert is_timed_alike(two_passes(), fuller)


@pytest.mark.parametrize(
    "other",
    [
        two_passes(device=device_of(108)),
        two_passes(ports={"link": 1.0}),
        two_passes(classes=(RankClass("stage 0", 0, 1, 0),)),
        program_of((1.0, ((0, COMPUTE),), ()), (2.5, ((1, COMPUTE),), (0,))),
        program_of((1.0, ((0, COMPUTE),), ()), (2.0, ((1, COMPUTE),), ())),
        program_of((1.0, ((0, COMPUTE),), ()), (2.0, ((1, SEND),), (0,))),
        program_of((1.0, ((0, COMPUTE),), ())),
    ],
    ids=["device", "ports", "classes", "seconds", "after", "lane", "operations"],
)
def test_one_difference_that_an_engine_sees_is_enough_to_time_programs_apart(other):
    assert not is_timed_alike(two_passes(), other)
    assert not is_timed_alike(other, two_passes())
