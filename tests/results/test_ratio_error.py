"""What is known of a gain, against variances that a person can add up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.described.load import load_job
from simulator.results.ratio_error import Compared, compared_step, gain_error
from simulator.results.simulation import run_step
from simulator.results.step_error import ASPECTS, StepError, shipped_errors

ALIKE = 0.01
"""Variance of each aspect."""


def a_step(
    *,
    launches: float = 0.0,
    traits: tuple[int, ...] = (0,) * len(ASPECTS),
    framework: str = "torch",
    system: str = "h100",
    common: float = 0.04,
) -> Compared:
    """Of a common error of 20 % of the step and of its launches, and one of 10 % of its own."""
    error = StepError(
        covariance=np.diag([common, 0.04, 0.0, 0.0]),
        noise=np.array([0.01, 0.0, 0.0, 0.0]),
        freedom=3.0,
        alike=np.full(len(ASPECTS), ALIKE),
        skew=1.2,
    )
    exposed = np.array([1.0, launches, 0.0, 0.0])
    return Compared(system, framework, False, error, exposed, traits)


def test_what_both_have_in_common_leaves_only_the_errors_of_single_runs():
    assert gain_error(a_step(), a_step(), 0.0).scale == pytest.approx(math.sqrt(0.01 + 0.01))


def test_launches_count_as_far_as_one_step_depends_on_them_more():
    found = gain_error(a_step(launches=0.1), a_step(launches=0.6), 0.0)
    assert found.scale == pytest.approx(math.sqrt(0.02 + 0.5**2 * 0.04))


def test_each_aspect_in_which_they_are_unlike_counts_for_both():
    unlike = a_step(traits=(0, 1, 1, 0, 0))
    assert gain_error(a_step(), unlike, 0.0).scale == pytest.approx(math.sqrt(0.02 + 2 * 2 * ALIKE))


def test_two_frameworks_have_nothing_in_common():
    found = gain_error(a_step(), a_step(framework="megatron-core"), 0.0)
    assert found.scale == pytest.approx(math.sqrt(2 * (0.04 + 0.01 + len(ASPECTS) * ALIKE)))


def test_what_the_numbers_of_one_system_leave_open_stays_between_two_systems():
    framework = shipped_errors().error_of((), "torch").covariance[0, 0]
    common = framework + 0.03
    found = gain_error(a_step(common=common), a_step(common=common, system="a100"), 0.0)
    assert found.scale == pytest.approx(math.sqrt(0.02 + 2 * 0.03))


def test_an_equal_rate_is_faster_as_often_as_not_and_a_gain_more_often():
    assert gain_error(a_step(), a_step(), 0.0).faster_probability == pytest.approx(0.5)
    faster = gain_error(a_step(), a_step(), 0.1)
    assert faster.log_gain == pytest.approx(math.log(1.1))
    assert 0.5 < faster.faster_probability < 1.0


def test_either_order_tells_the_same():
    one, other = a_step(launches=0.4), a_step(traits=(1, 0, 0, 0, 0))
    there, back = gain_error(one, other, 0.25), gain_error(other, one, 1 / 1.25 - 1)
    assert there.faster_probability == pytest.approx(1 - back.faster_probability)
    low, high = there.interval
    assert [1 / (1 + high) - 1, 1 / (1 + low) - 1] == pytest.approx(back.interval)


def test_a_small_change_of_a_job_is_surer_than_its_step():
    job = load_job("llama3-8b-8xh100")
    changed = job.replace({"batch.micro": 1, "plan.zero": 2})
    steps = []
    for each in (job, changed):
        result = run_step(each, "replay")
        step = compared_step(each, result.step_time_s, result.breakdown_s)
        assert step is not None
        steps.append(step)
    assert gain_error(*steps, gain=0.0).scale < steps[0].error.scale(steps[0].exposed)
