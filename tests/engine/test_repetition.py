"""Passing over what repeats itself, against simulating every operation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.des import simulate_program
from simulator.engine.fluid_network import FluidNetwork
from simulator.engine.repetition import OperationTable
from simulator.program.build import build_program
from simulator.program.ir import (
    Category,
    Kind,
    Operation,
    Program,
    RankClass,
    Stream,
    Traffic,
    Work,
)
from tests.engine.kept_waits import assert_waits_are_kept
from tests.factories import device_of
from tests.jobs import jobs, network_profile, small_job, small_model

FORWARD, BACKWARD = Work(2.0), Work(2.0)
FLOWS = Work(0.75, traffic=Traffic({"fabric": 0.75e9}, sm_count=13))


@pytest.fixture
def transfers(monkeypatch):
    """Every transfer that is simulated."""
    simulated = []
    transfer = FluidNetwork.transfer
    monkeypatch.setattr(
        FluidNetwork,
        "transfer",
        lambda self, route, ended: simulated.append(route) or transfer(self, route, ended),
    )
    return simulated


def with_microbatches(job, times: int):
    """The job with so many times the microbatches."""
    batch = job.batch.model_copy(update={"global_batch": job.batch.global_batch * times})
    return job.model_copy(update={"batch": batch})


def assert_all_times_agree(program: Program, rel: float = 1e-9) -> None:
    one_by_one = simulate_program(program, every_operation=True)
    passing_over = simulate_program(program)
    tolerance_s = rel * one_by_one.step_time_s
    for name in ("operation_start_s", "operation_end_s"):
        expected, found = getattr(one_by_one, name), getattr(passing_over, name)
        assert np.allclose(expected, found, rtol=0, atol=tolerance_s), name


@given(jobs(), st.integers(6, 16))
@settings(max_examples=15, deadline=None)
def test_passing_over_repeats_gives_the_times_of_simulating_them(job, times):
    assert_all_times_agree(build_program(with_microbatches(job, times)))


@given(jobs())
@settings(max_examples=8, deadline=None)
def test_nothing_starts_before_what_it_waits_for_where_something_was_passed_over(job):
    assert_waits_are_kept(simulate_program(build_program(with_microbatches(job, 12))))


@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved-1f1b", 2)])
def test_many_microbatches_cost_hardly_more_than_few(schedule, vpp, transfers):
    counts = []
    for microbatches in (64, 512):
        job = small_job(
            small_model(layers=8), gpus=4, pp=4, vpp=vpp, schedule=schedule,
            global_batch=microbatches, profile=network_profile(),
        )  # fmt: skip
        transfers.clear()
        simulate_program(build_program(job))
        counts.append(len(transfers))
    assert counts[1] < 1.2 * counts[0]


def two_ranks(microbatches: int, *, unlike: int = -1, waits_for: int = -1) -> Program:
    """One computes and sends, the other receives and computes, again and again.

    Args:
        microbatches: How often.
        unlike: A microbatch that takes longer on the second rank.
        waits_for: A microbatch after which the second rank's weights are reduced.
    """
    program = Program(
        tuple(RankClass(f"stage {i}", i, 1, i) for i in range(2)),
        ports={"fabric": 1e9},
        device=device_of(100),
    )
    send = ((0, Stream.SEND_NEXT), (1, Stream.RECV_PREVIOUS))
    for number in range(microbatches):
        lane = ((0, Stream.COMPUTE),)
        end = program.add(Operation(Kind.FORWARD, lane, FORWARD, Category.FORWARD))
        end = program.add(Operation(Kind.SEND_RECV, send, FLOWS, Category.PIPELINE, (end,)))
        work = Work(3.0) if number == unlike else BACKWARD
        lane = ((1, Stream.COMPUTE),)
        end = program.add(Operation(Kind.BACKWARD, lane, work, Category.BACKWARD, (end,)))
        if number == waits_for:
            reduce = ((1, Stream.DATA_PARALLEL),)
            program.add(Operation(Kind.ALL_REDUCE, reduce, FLOWS, Category.DATA_PARALLEL, (end,)))
    return program


@pytest.mark.parametrize("number", [0, 3, 100, 101, 150, 199])
def test_one_microbatch_that_is_unlike_the_others_is_simulated(number, transfers):
    program = two_ranks(200, unlike=number)
    assert_all_times_agree(program, rel=1e-12)
    assert len(transfers) < 200 + 40


@pytest.mark.parametrize("number", [0, 3, 100, 101, 150, 199])
def test_what_begins_in_the_middle_of_repeats_begins_in_its_time(number, transfers):
    """A collective after one microbatch slows the computation of those that follow."""
    program = two_ranks(200, waits_for=number)
    assert_all_times_agree(program, rel=1e-12)
    assert len(transfers) < 201 + 40
    timeline = simulate_program(program)
    (collective,) = program.lanes[1, Stream.DATA_PARALLEL]
    awaited = program.lanes[1, Stream.COMPUTE][number]
    assert timeline.operation_start_s[collective] == timeline.operation_end_s[awaited]


def test_operations_recur_where_work_lanes_and_what_they_wait_for_are():
    """Three operations for each microbatch; one lane each, and one of both ranks."""
    recurs = OperationTable(two_ranks(6, unlike=3)).recurs([1, 1, 1, 1])
    assert recurs.reshape(6, 3).tolist() == [
        [True, True, True],
        [True, True, True],
        [True, True, False],
        [True, True, False],
        [True, True, True],
        [False, False, False],
    ]
