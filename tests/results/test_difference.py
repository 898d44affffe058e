"""Differences of two steps: causes that sum to what they explain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.program.ir import Category
from simulator.results.step import StepResult
from simulator.results.views.difference import difference
from tests.factories import Pipeline

STEP = Pipeline(stages=2, microbatches=2).result()
SECONDS = st.lists(st.floats(0, 1e3), min_size=3, max_size=3)


def step(tokens_per_gpu: float = 1000.0, **seconds: float) -> StepResult:
    """A step that spends its time like that."""
    total_s = sum(seconds.values())
    return replace(
        STEP,
        step_time_s=total_s,
        tokens_per_s_per_gpu=tokens_per_gpu / total_s,
        breakdown_s={Category(name): value for name, value in seconds.items()},
    )


def rounding_s(found):
    """What the causes leave of the difference [s]."""
    return found.difference_s - math.fsum(cause.difference_s for cause in found.causes)


def test_each_cause_is_the_difference_of_its_category():
    found = difference(step(forward=2.0, bubble=1.0), step(forward=2.5, tensor_parallel=0.25))
    by_cause = {cause.category.value: cause.difference_s for cause in found.causes}
    assert by_cause == {"forward": 0.5, "bubble": -1.0, "tensor_parallel": 0.25}
    assert found.difference_s == -0.25
    assert found.gain == pytest.approx(3.0 / 2.75 - 1)


@given(first=SECONDS, other=SECONDS)
def test_the_causes_sum_to_the_difference(first, other):
    names = ("forward", "backward", "bubble")
    a, b = (step(**dict(zip(names, (x + 1 for x in s), strict=True))) for s in (first, other))
    found = difference(a, b)
    assert abs(rounding_s(found)) <= 1e-12 * (found.first_s + found.second_s)


def test_the_causes_of_simulated_steps_sum_to_the_difference():
    first = Pipeline(stages=4, microbatches=8, tensor_parallel_s=0.1).result()
    second = Pipeline(stages=4, microbatches=8, recompute_s=0.2).result()
    found = difference(first, second)
    assert found.difference_s == second.step_time_s - first.step_time_s
    assert abs(rounding_s(found)) <= 1e-12 * found.first_s


def test_a_longer_step_that_trains_as_much_more_is_not_slower():
    found = difference(step(forward=2.0), step(2000.0, forward=4.0))
    assert found.tokens_ratio == 2
    assert (found.difference_s, found.gain) == (0.0, 0.0)


def test_a_step_does_not_differ_from_itself():
    found = difference(STEP, STEP)
    assert found.difference_s == rounding_s(found) == 0
    assert all(cause.difference_s == 0 for cause in found.causes)
