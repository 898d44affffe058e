"""Eight of ten runs of a further source lie in a band; none is held against its own source."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.make.fit.error_band import Residual, covered_share, error_band, profile_band
from reports.make.fit.fit_training import LeftOut, residuals

RATIOS = st.lists(st.floats(0.7, 1.4), min_size=1, max_size=40)


def of(ratios, source: str = "a", profile: str = "h100") -> list[Residual]:
    return [Residual(source, profile, ratio) for ratio in ratios]


def sources_of_one_run_each(logs) -> list[Residual]:
    return [run for i, log in enumerate(logs) for run in of([math.exp(log)], f"source {i}")]


def test_two_sources_of_one_run_have_the_interval_of_one_degree_of_freedom() -> None:
    # variance of the means 2 x 0.1^2, of a third source 1.5 times that; t = tan(0.8 x 90 degrees)
    half_width = math.tan(0.8 * math.pi / 2) * 0.1 * math.sqrt(3)
    band = error_band(sources_of_one_run_each((-0.1, 0.1)))
    assert band.fastest == pytest.approx(math.exp(-half_width), abs=1e-3)
    assert band.slowest == pytest.approx(math.exp(half_width), abs=1e-3)


def test_sources_that_agree_have_the_spread_of_their_runs_alone() -> None:
    spread = [math.exp(log) for log in (-0.1, 0.0, 0.1)] * 200
    band = error_band([run for name in "abcdefgh" for run in of(spread, name)])
    # t = 1.282 with very many degrees of freedom, variance of the runs 0.02 / 3
    assert math.log(band.slowest) == pytest.approx(1.282 * math.sqrt(0.02 / 3), rel=0.01)


def test_runs_that_all_miss_alike_have_a_band_of_no_width() -> None:
    band = error_band(of([1.2] * 5) + of([1.2] * 3, "b"))
    assert (band.fastest, band.slowest) == (1.2, 1.2)


def test_sources_count_alike_however_many_runs_they_publish() -> None:
    band = error_band(of([1.0] * 100, "many") + of([2.0], "one"))
    assert band.fastest * band.slowest == pytest.approx(1.0 * 2.0, rel=1e-2)


def test_more_sources_that_differ_alike_make_a_narrower_band() -> None:
    few, many = (error_band(sources_of_one_run_each((-0.1, 0.1) * n)) for n in (2, 10))
    assert few.fastest < many.fastest < many.slowest < few.slowest


def test_eight_of_ten_runs_of_further_sources_lie_in_the_band() -> None:
    draw = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        means = draw.normal(0.0, 0.05, 5)
        *known, new = (
            of(np.exp(draw.normal(mean, 0.05, 8)), str(i)) for i, mean in enumerate(means)
        )
        band = error_band([run for source in known for run in source])
        inside.append(band.fastest <= new[0].ratio <= band.slowest)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.05)


@given(RATIOS, RATIOS)
def test_a_band_holds_the_middle_of_its_sources(ratios, others) -> None:
    band = error_band(of(ratios) + of(others, "b"))
    middle = math.exp((np.mean(np.log(ratios)) + np.mean(np.log(others))) / 2)
    assert band.fastest - 1e-3 <= middle <= band.slowest + 1e-3


def test_a_system_with_few_runs_takes_those_of_all() -> None:
    few, many = of([3.0] * 9, profile="rare"), of([1.0] * 9, "b")
    assert profile_band("rare", few + many) == error_band(few + many)
    assert profile_band("rare", [*few, *of([3.0], "c", "rare"), *many]).slowest == 3.0


def test_a_system_of_which_one_source_speaks_takes_the_runs_of_all() -> None:
    one, others = of([3.0] * 20, profile="rare"), of([1.0] * 9, "b")
    assert profile_band("rare", one + others) == error_band(one + others)


def test_coverage_holds_a_run_against_other_sources() -> None:
    known = of([1.0] * 10, "a") + of([1.0] * 10, "b") + of([2.0] * 10, "c")
    assert covered_share(known[:10], known) == 1.0
    assert covered_share(known[20:], known) == 0.0  # the others agree on a band of no width
    assert math.isnan(covered_share(known[:10], known[:20]))  # one other source is no band


def test_residuals_are_those_of_higher_grades_whose_system_others_speak_of() -> None:
    rows = [
        {"id": "a-1", "grade": "A", "profile": "h100", "measured_step_s": "3"},
        {"id": "a-2", "grade": "B", "profile": "h100", "measured_step_s": "3"},
        {"id": "b-1", "grade": "A", "profile": "h100", "measured_step_s": "3"},
    ]
    left_out = [
        LeftOut("a-1", True, 2.0), LeftOut("a-2", True, 2.0), LeftOut("b-1", False, 2.0),
    ]  # fmt: skip
    assert residuals(left_out, rows) == [Residual("a", "h100", 1.5)]
