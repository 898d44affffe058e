"""Where the time of a step goes: gaps, their causes, and sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.program.build import build_program
from simulator.program.ir import (
    Category,
    Kind,
    Operation,
    Part,
    Program,
    RankClass,
    Stream,
    Traffic,
    Work,
)
from simulator.results.waits import class_breakdowns, compute_waits, mean_over_ranks
from tests.factories import device_of
from tests.jobs import EqualPasses, jobs, pipeline_program

few = settings(max_examples=40, deadline=None)


def bubble_share(program: Program, engine=simulate_program) -> float:
    """Idle share of all stages together; nothing but bubble may be waited for."""
    timeline = engine(program)
    waits = compute_waits(timeline)
    assert set(waits.category) <= {Category.BUBBLE}
    return float(np.sum(waits.end_s - waits.start_s)) / (
        timeline.step_time_s * len(program.classes)
    )


@given(
    st.sampled_from(["gpipe", "1f1b"]),
    st.integers(1, 8),
    st.integers(1, 24),
    st.floats(0.1, 10),
    st.floats(0.1, 10),
)
@settings(deadline=None, max_examples=60)
def test_bubble_share_is_p_minus_1_over_m_plus_p_minus_1(schedule, p, m, forward_s, backward_s):
    costs = EqualPasses(forward_s, backward_s)
    if schedule == "1f1b" and m < p:
        m += p
    program = pipeline_program(schedule, p, 1, m, costs=costs)
    assert bubble_share(program) == pytest.approx((p - 1) / (m + p - 1), rel=1e-9)


@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 4), st.floats(0.1, 10))
@settings(deadline=None, max_examples=40)
def test_interleaving_v_chunks_leaves_a_bubble_of_p_minus_1_over_v_m_plus_p_minus_1(
    p, v, rounds, forward_s
):
    """Megatron-LM (arXiv 2104.04473), section 2.2.2, with backward twice as long."""
    m = p * rounds
    costs = EqualPasses(forward_s, 2 * forward_s)
    program = pipeline_program("interleaved-1f1b", p, v, m, costs=costs)
    assert bubble_share(program) == pytest.approx((p - 1) / (v * m + p - 1), rel=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 4), (3, 7)])
def test_one_microbatch_at_a_time_leaves_all_but_one_stage_idle(p, m):
    assert bubble_share(pipeline_program("naive", p, 1, m)) == pytest.approx((p - 1) / p)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (6, 12)])
def test_zb_h1_leaves_a_third_of_the_bubble_at_equal_times(p, m):
    """(p - 1)(tF + tI - tW) with tF = tI = tW: Zero Bubble (arXiv 2401.10241), table 2."""
    share = bubble_share(pipeline_program("zb-h1", p, 1, m))
    assert share == pytest.approx((p - 1) / (3 * m + p - 1), rel=1e-9)


@given(jobs(), st.sampled_from([replay, simulate_program]))
@few
def test_waits_fill_exactly_the_idle_time_inside_the_step_without_overlap(job, engine):
    timeline = engine(build_program(job))
    waits, step_s = compute_waits(timeline), timeline.step_time_s
    assert np.all(waits.start_s >= 0)
    assert np.all(waits.end_s <= step_s)
    assert np.all(waits.end_s > waits.start_s)
    for index in range(len(timeline.program.classes)):
        lane = timeline.program.lanes[index, Stream.COMPUTE]
        own = waits.rank_class == index
        spans = [
            *zip(waits.start_s[own], waits.end_s[own], strict=True),
            *zip(timeline.operation_start_s[lane], timeline.operation_end_s[lane], strict=True),
        ]
        spans.sort()
        ends = [0.0, *(end for _, end in spans)]
        starts = [*(start for start, _ in spans), step_s]
        assert starts == pytest.approx(ends, rel=1e-9, abs=2e-9 * step_s)


@given(jobs(), st.sampled_from([replay, simulate_program]))
@few
def test_the_breakdown_of_every_class_and_of_the_mean_rank_sums_to_the_step(job, engine):
    timeline = engine(build_program(job))
    breakdowns = class_breakdowns(timeline, compute_waits(timeline))
    for breakdown in [*breakdowns, mean_over_ranks(timeline, breakdowns)]:
        assert sum(breakdown.values()) == pytest.approx(timeline.step_time_s, rel=1e-12)
        assert all(seconds >= 0 for seconds in breakdown.values())


def test_a_mean_over_ranks_weighs_classes_by_their_size():
    program = Program((RankClass("stage 0", 0, 3, 0), RankClass("stage 1", 1, 1, 3)))
    program.add(forward(0, 4.0))
    timeline = replay(program)
    mean = mean_over_ranks(timeline, ({Category.FORWARD: 4.0}, {Category.BUBBLE: 4.0}))
    assert mean == {Category.FORWARD: 3.0, Category.BUBBLE: 1.0}


def forward(rank: int, seconds: float, *, after: tuple[int, ...] = ()) -> Operation:
    lanes = ((rank, Stream.COMPUTE),)
    return Operation(Kind.FORWARD, lanes, Work(seconds), Category.FORWARD, after)


def transfer(seconds: float, after: tuple[int, ...]) -> Operation:
    lanes = ((0, Stream.SEND_NEXT), (1, Stream.RECV_PREVIOUS))
    return Operation(Kind.SEND_RECV, lanes, Work(seconds), Category.PIPELINE, after)


def rows(program: Program) -> list[tuple[int, Category, float, float]]:
    waits = compute_waits(replay(program))
    found = zip(
        waits.rank_class.tolist(),
        waits.category,
        waits.start_s.tolist(),
        waits.end_s.tolist(),
        strict=True,
    )
    return sorted(found, key=lambda row: (row[0], row[2]))


@pytest.fixture
def two_ranks():
    return Program(tuple(RankClass(f"stage {i}", i, 1, i) for i in range(2)))


def test_waiting_for_an_input_is_bubble_while_it_is_computed_and_exposed_while_it_travels(
    two_ranks,
):
    two_ranks.add(forward(0, 2.0))
    two_ranks.add(transfer(1.0, (0,)))
    two_ranks.add(forward(1, 4.0, after=(1,)))
    assert rows(two_ranks) == [
        (0, Category.BUBBLE, 2.0, 7.0),
        (1, Category.BUBBLE, 0.0, 2.0),
        (1, Category.PIPELINE, 2.0, 3.0),
    ]


def test_communication_in_a_row_is_exposed_back_to_the_end_of_the_computation(two_ranks):
    """The second gather waits for the first, which began beside the forward."""
    for seconds in (3.0, 2.0):
        gather = Operation(
            Kind.ALL_GATHER, ((0, Stream.DATA_PARALLEL),), Work(seconds), Category.DATA_PARALLEL
        )
        two_ranks.add(gather)
    two_ranks.add(forward(0, 1.0))
    two_ranks.add(forward(0, 1.0, after=(1,)))
    gaps = [row for row in rows(two_ranks) if row[0] == 0]
    assert gaps == [
        (0, Category.DATA_PARALLEL, 1.0, 3.0),
        (0, Category.DATA_PARALLEL, 3.0, 5.0),
    ]


def test_an_operation_that_was_slowed_stretches_its_parts_alike():
    parts = (Part("product", Category.FORWARD, 3.0), Part("sum", Category.TENSOR_PARALLEL, 1.0))
    program = Program((RankClass("stage 0", 0, 1, 0),), ports={"fabric": 1e9}, device=device_of(2))
    work = Work(4.0, parts)
    program.add(Operation(Kind.FORWARD, ((0, Stream.COMPUTE),), work, Category.FORWARD))
    gather = Work(9.0, traffic=Traffic({"fabric": 9e9}, sm_count=1))
    lanes = ((0, Stream.DATA_PARALLEL),)
    program.add(Operation(Kind.ALL_GATHER, lanes, gather, Category.DATA_PARALLEL))
    timeline = simulate_program(program)
    (breakdown,) = class_breakdowns(timeline, compute_waits(timeline))
    # Half speed: 4 s take 8, and the gather ends 1 s later.
    assert breakdown[Category.FORWARD] == pytest.approx(6.0)
    assert breakdown[Category.TENSOR_PARALLEL] == pytest.approx(2.0)
    assert sum(breakdown.values()) == pytest.approx(9.0)


def test_time_of_an_operation_without_parts_is_its_categorys_and_the_rest_is_idle():
    program = Program((RankClass("first", 0, 1, 0), RankClass("second", 1, 1, 1)))
    for rank, seconds in ((0, 2.0), (1, 5.0)):
        lanes = ((rank, Stream.COMPUTE),)
        program.add(Operation(Kind.OPTIMIZER, lanes, Work(seconds), Category.OPTIMIZER))
    timeline = simulate_program(program)
    found = class_breakdowns(timeline, compute_waits(timeline))
    assert found == (
        {Category.OPTIMIZER: 2.0, Category.BUBBLE: 3.0},
        {Category.OPTIMIZER: 5.0},
    )


def test_a_gap_of_a_thousandth_of_the_step_is_a_gap_however_long_the_step_is():
    for unit_s in (1e-4, 1e4):
        program = Program((RankClass("first", 0, 1, 0), RankClass("second", 1, 1, 1)))
        lanes = [((rank, Stream.COMPUTE),) for rank in (0, 1)]
        last = program.add(Operation(Kind.FORWARD, lanes[1], Work(unit_s / 1000), Category.FORWARD))
        work = Work(unit_s)
        program.add(Operation(Kind.FORWARD, lanes[0], work, Category.FORWARD, after=(last,)))
        waits = compute_waits(simulate_program(program))
        assert waits.end_s[0] - waits.start_s[0] == pytest.approx(unit_s / 1000)
