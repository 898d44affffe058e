"""Do steps spread as published ones do?"""

from __future__ import annotations

import pytest

from reports.make.planning.published_spreads import mean_largest, stragglers, verl, vime


def test_steps_of_verl_spread_by_their_lengths_as_measured():
    measured, predicted = verl().spreads
    for each in ("p5", "p95"):
        ratio = getattr(predicted, each) / predicted.mean
        assert ratio == pytest.approx(getattr(measured, each) / measured.mean, rel=0.01)
    assert predicted.mean == pytest.approx(measured.mean, rel=0.2)


def test_steps_of_fewer_tokens_are_shorter_in_both():
    run = vime()
    shortest = min(range(len(run.measured)), key=run.measured.__getitem__)
    assert run.predicted[shortest] == min(run.predicted)


def test_a_step_grows_with_the_ranks_that_wait_as_in_the_trace():
    growth = stragglers()
    assert growth.ranks == (1, 2, 4, 8, 16, 32)
    assert growth.predicted == pytest.approx(growth.measured, rel=0.06)


def test_the_mean_of_the_largest_counts_all_ways_to_choose():
    assert mean_largest([1.0, 2.0, 4.0], 2) == pytest.approx((2 + 4 + 4) / 3)
    assert mean_largest([1.0, 2.0, 4.0], 1) == pytest.approx(7 / 3)
