"""What memory of own runs tells: shares of a prediction, contexts, and odds of fitting."""

from __future__ import annotations

import math

import pytest

from simulator.results.fit_probability import MemorySpread
from simulator.results.own_memory import MeasuredMemory, memory_lesson

GIB = 2.0**30
PRIOR = MemorySpread(math.hypot(0.12, 0.1), 3)
"""Of which 8 % is of the single run, and 12 % of the system."""


def told(*pairs: tuple[float, float], prior: MemorySpread = PRIOR):
    return memory_lesson([MeasuredMemory(m * GIB, p * GIB) for m, p in pairs], prior)


def test_a_surplus_of_ten_gib_is_a_share_of_what_is_predicted():
    """Prior variance over all variance: 0.12^2 of 0.12^2 + 0.1^2 + (0.5 / 50)^2."""
    found = told((60.0, 50.0))
    believed = 0.12**2 / (0.12**2 + 0.1**2 + 0.01**2)
    assert math.expm1(found.spread.centre) == pytest.approx(0.2 * believed)
    assert abs(found.context_bytes) < 0.1 * GIB


def test_a_surplus_of_a_small_job_is_mostly_context():
    found = told((1.5, 1.0))
    assert found.context_bytes > 0.4 * GIB
    assert found.spread.centre < math.log(1.05)


def test_a_run_that_was_measured_to_fit_makes_jobs_like_it_surer_to_fit():
    """A run of 61 GiB on 80, of which 51 were predicted."""
    before = MemorySpread(0.112, 3, 0.043)
    found = told((61.0, 51.0), prior=before)
    assert found.spread.probability(51, 80) > before.probability(51, 80)
    assert found.spread.probability(65, 80) < before.probability(65, 80)


def test_more_runs_that_agree_narrow_the_spread():
    scales = [told(*[(55.0, 50.0)] * runs).spread.scale for runs in (1, 3, 10)]
    assert [PRIOR.scale, *scales] == sorted([PRIOR.scale, *scales], reverse=True)
    assert scales[-1] > 0.02


def test_runs_far_apart_leave_more_open_than_runs_that_agree():
    apart = told((40.0, 50.0), (75.0, 50.0)).spread.scale
    assert apart > told((57.0, 50.0), (58.0, 50.0)).spread.scale
