"""Eight of ten runs lie in a band, and a run is never held against its own source."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.calibrate.fit_training import LeftOut, residuals
from simulator.validate.error_band import Residual, covered_share, error_band, profile_band

RATIOS = st.lists(st.floats(0.1, 10), min_size=1, max_size=40)


def of(ratios, source: str = "a", profile: str = "h100") -> list[Residual]:
    return [Residual(source, profile, ratio) for ratio in ratios]


def test_a_tenth_of_equally_spread_runs_lies_beyond_either_end() -> None:
    band = error_band(of(math.exp(i / 1000) for i in range(1001)))
    assert (band.fastest, band.slowest) == pytest.approx((math.exp(0.1), math.exp(0.9)), abs=2e-3)


def test_runs_that_all_miss_alike_have_a_band_of_no_width() -> None:
    band = error_band(of([1.2] * 5))
    assert (band.fastest, band.slowest) == (1.2, 1.2)


def test_sources_count_alike_however_many_runs_they_publish() -> None:
    band = error_band(of([1.0] * 100, "many") + of([2.0], "one"))
    assert (band.fastest, band.slowest) == (1.0, 2.0)


@given(RATIOS)
def test_a_band_lies_inside_what_was_seen(ratios) -> None:
    band = error_band(of(ratios))
    assert min(ratios) - 1e-3 <= band.fastest <= band.slowest <= max(ratios) + 1e-3


def test_a_system_with_few_runs_takes_those_of_all() -> None:
    few, many = of([3.0] * 9, profile="rare"), of([1.0] * 9, "b")
    assert profile_band("rare", few + many) == error_band(few + many)
    assert profile_band("rare", [*few, *of([3.0], "c", "rare"), *many]).slowest == 3.0


def test_coverage_holds_a_run_against_other_sources() -> None:
    known = of([1.0] * 10, "a") + of([1.0] * 10, "b") + of([2.0] * 10, "c")
    assert covered_share(known[:10], known) == 1.0
    assert covered_share(known[20:], known) == 0.0


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
