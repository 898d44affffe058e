"""Do simulated campaigns keep time, and do they meet the closed forms?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.planning.campaign.checkpoints import (
    NS,
    CheckpointCycle,
    Segment,
    Spent,
    checkpoint_cycle,
)
from simulator.planning.campaign.failures import Conditions, Fleet, Hazard, Recovery
from simulator.planning.campaign.failures import simulated_run as run_under
from simulator.planning.campaign.goodput import daly_interval_s, young_interval_s
from tests.planning.closed_forms import expected_wall_s

HOUR = 3600 * NS
ONE_NODE = Fleet(1)


def simulated_run(work_ns, cycle, hazards, recovery, fleet, seed, most_failures):
    conditions = Conditions(cycle, hazards, recovery, fleet)
    return run_under(work_ns, conditions, seed, most_failures)


@st.composite
def rhythms(draw: st.DrawFn) -> CheckpointCycle:
    interval, stall, write = (draw(st.floats(0, 50)) for _ in range(3))
    return checkpoint_cycle(interval, stall, write, draw(st.floats(0, 2)))


@given(rhythms(), st.integers(1, 10**12), st.integers(1, 4), st.floats(0, 1))
def test_what_a_stretch_spends_adds_up_to_its_time(cycle, left, ranks, share):
    segment = Segment(cycle, left, ranks, 4)
    time_ns = round(share * segment.end_ns)
    spent = segment.spent_ns(time_ns)
    assert sum(spent.values()) == time_ns
    assert min(spent.values()) >= 0
    saved = segment.spent_if_saved_ns(time_ns)
    assert sum(saved.values()) == time_ns
    assert min(saved.values()) >= 0
    assert saved[Spent.PRODUCTIVE] >= spent[Spent.PRODUCTIVE]


@given(rhythms(), st.integers(1, 10**12), st.integers(1, 4))
def test_a_stretch_that_is_not_cut_off_does_all_its_work(cycle, left, ranks):
    segment = Segment(cycle, left, ranks, 4)
    spent = segment.spent_ns(segment.end_ns)
    assert spent[Spent.PRODUCTIVE] == segment.saved_ns(segment.end_ns) == left
    assert spent[Spent.LOST_WORK] == 0


def test_a_stretch_by_eye():
    # 10 s of training, 2 s of standstill, 4 s of writing that lose 1 s: cycles of 13 s.
    segment = Segment(CheckpointCycle(10, 2, 4, 1), 30)
    assert segment.end_ns == 12 + 13 + 13 + 4
    assert [segment.saved_ns(t) for t in (15, 16, 28, 29, 42)] == [0, 10, 10, 20, 30]
    assert segment.spent_ns(20) == {
        Spent.PRODUCTIVE: 10,
        Spent.MISSING_RANKS: 0,
        Spent.CHECKPOINT: 2,
        Spent.INTERFERENCE: 1,
        Spent.LOST_WORK: 7,
    }


HAZARDS = st.lists(
    st.builds(
        Hazard,
        st.just("node"),
        st.floats(1e-5, 1e-3),
        st.sampled_from([0, HOUR, 20 * HOUR]),
        st.sampled_from([0, 60 * NS]),
    ),
    min_size=1,
    max_size=3,
)


@given(
    HAZARDS,
    rhythms(),
    st.builds(Fleet, st.just(4), st.integers(0, 2), st.just(4), st.booleans()),
    st.integers(0, 99),
)
def test_categories_add_up_to_wall_time_to_the_last_nanosecond(hazards, cycle, fleet, seed):
    recovery = Recovery(60 * NS, 300 * NS, 20 * NS, 40 * NS)
    run = simulated_run(5 * HOUR, cycle, tuple(hazards), recovery, fleet, (seed, 0), 2000)
    if run.has_ended:
        assert sum(run.spent_ns.values()) == run.wall_ns
        assert run.spent_ns[Spent.PRODUCTIVE] == 5 * HOUR
        assert min(run.spent_ns.values()) >= 0


@pytest.mark.parametrize("mtbf_s", [3600, 20_000, 500_000])
def test_the_mean_wall_time_is_dalys_within_the_error_of_the_ensemble(mtbf_s):
    work_s, interval_s, checkpoint_s, recovery_s = 100 * 900, 900, 60, 420
    cycle = checkpoint_cycle(interval_s, checkpoint_s, 0, 0)
    recovery = Recovery(120 * NS, 300 * NS)
    hazard = (Hazard("node", 1 / mtbf_s),)
    walls = [
        simulated_run(work_s * NS, cycle, hazard, recovery, ONE_NODE, (1, member), 10**6).wall_ns
        / NS
        for member in range(1500)
    ]
    mean = sum(walls) / len(walls)
    variance = sum((wall - mean) ** 2 for wall in walls) / (len(walls) - 1)
    error = (variance / len(walls)) ** 0.5
    expected = expected_wall_s(work_s, interval_s, checkpoint_s, recovery_s, mtbf_s)
    assert abs(mean - expected) < 3.5 * error
    assert error < 0.02 * expected


def test_the_number_of_failures_is_the_rate_times_the_time():
    hazards = (Hazard("gpu", 3e-4), Hazard("node", 1e-4))
    runs = [
        simulated_run(
            50 * HOUR,
            checkpoint_cycle(600, 5, 0, 0),
            hazards,
            Recovery(),
            ONE_NODE,
            (7, member),
            10**6,
        )
        for member in range(200)
    ]
    hours = sum(run.wall_ns for run in runs) / HOUR
    gpu = sum(run.failures["gpu"] for run in runs)
    node = sum(run.failures["node"] for run in runs)
    assert gpu == pytest.approx(hours * 3600 * 3e-4, rel=4 / gpu**0.5)
    assert node == pytest.approx(hours * 3600 * 1e-4, rel=4 / node**0.5)


def test_a_mended_node_lets_the_missing_rank_work_again():
    # One failure for sure within the first hour or so; the node is away for 2 hours.
    hazard = (Hazard("node", 1e-4, away_ns=2 * HOUR),)
    fleet = Fleet(4, ranks=4, is_elastic=True)
    run = simulated_run(
        30 * HOUR, checkpoint_cycle(600, 0, 0, 0), hazard, Recovery(), fleet, (3, 0), 1000
    )
    # While one of four is away, steps take a third longer.
    away_ns = run.failures["node"] * 2 * HOUR
    assert 0 < run.spent_ns[Spent.MISSING_RANKS] <= away_ns / 2
    assert Spent.WAITING not in run.spent_ns or run.spent_ns[Spent.WAITING] == 0


def test_without_a_spare_the_job_waits_and_with_one_it_does_not():
    hazard = (Hazard("node", 5e-5, away_ns=HOUR),)
    recovery, cycle = Recovery(restart_ns=60 * NS), checkpoint_cycle(600, 0, 0, 0)
    alone = simulated_run(100 * HOUR, cycle, hazard, recovery, Fleet(4), (5, 0), 1000)
    spared = simulated_run(
        100 * HOUR, cycle, hazard, recovery, Fleet(4, spare_nodes=2), (5, 0), 1000
    )
    assert alone.spent_ns[Spent.WAITING] > 0
    assert spared.spent_ns.get(Spent.WAITING, 0) == 0
    assert spared.wall_ns < alone.wall_ns


def test_a_warning_that_is_long_enough_loses_no_work():
    cycle, recovery = checkpoint_cycle(3600, 10, 0, 0), Recovery(600 * NS, 60 * NS)
    told = (Hazard("preemption", 1e-4, notice_ns=30 * NS),)
    untold = (Hazard("preemption", 1e-4, notice_ns=5 * NS),)
    saved = simulated_run(100 * HOUR, cycle, told, recovery, ONE_NODE, (9, 0), 10_000)
    lost = simulated_run(100 * HOUR, cycle, untold, recovery, ONE_NODE, (9, 0), 10_000)
    assert saved.failures["preemption"] > 10
    assert saved.spent_ns.get(Spent.LOST_WORK, 0) == 0
    assert lost.spent_ns[Spent.LOST_WORK] > 0
    assert saved.spent_ns.get(Spent.DETECTION, 0) == 0


def test_the_same_seed_gives_the_same_life_and_another_another():
    hazard, recovery = (Hazard("node", 1e-4),), Recovery(60 * NS, 300 * NS)
    first, again, other = (
        simulated_run(
            50 * HOUR, checkpoint_cycle(600, 5, 0, 0), hazard, recovery, ONE_NODE, (seed, 0), 10_000
        )
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_failures_that_come_faster_than_work_is_saved_end_it():
    hazard = (Hazard("node", 1.0),)
    assert not simulated_run(
        HOUR, checkpoint_cycle(600, 60, 0, 0), hazard, Recovery(), ONE_NODE, (0, 0), 500
    ).has_ended


def test_dalys_interval_is_youngs_where_checkpoints_are_quick():
    assert daly_interval_s(1, 1e6) == pytest.approx(young_interval_s(1, 1e6), rel=1e-3)
    assert daly_interval_s(30, 10) == 10


def test_no_other_interval_beats_dalys_closed_form_by_much():
    interval = daly_interval_s(60, 7200)
    best = expected_wall_s(1e6, interval, 60, 300, 7200)
    for factor in (0.5, 0.8, 1.25, 2):
        assert best < 1.0001 * expected_wall_s(1e6, factor * interval, 60, 300, 7200)
