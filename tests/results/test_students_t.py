"""Student's t, held against its tables and against scipy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from simulator.results.students_t import (
    skewed_t_quantile,
    skewed_t_share,
    students_t_quantile,
    students_t_share,
)


@pytest.mark.parametrize(
    ("freedom", "value", "share"),
    [(1, 1.0, 0.75), (2, 2.920, 0.95), (3, 2.353, 0.95), (4, 2.132, 0.95), (8, 1.860, 0.95)],
)
def test_shares_are_those_of_its_tables(freedom, value, share):
    assert students_t_share(value, freedom) == pytest.approx(share, abs=1e-4)
    assert students_t_share(-value, freedom) == pytest.approx(1 - share, abs=1e-4)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(2, 1.8856), (3, 1.6377), (5, 1.4759), (10, 1.3722), (1e9, 1.2816)]
)
def test_quantiles_are_those_of_its_tables(freedom, quantile):
    assert students_t_quantile(0.9, freedom) == pytest.approx(quantile, rel=1e-4)


@given(freedom=st.floats(0.5, 200), value=st.floats(-50, 50))
def test_degrees_of_freedom_need_not_be_whole(freedom, value):
    assert students_t_share(value, freedom) == pytest.approx(stats.t.cdf(value, freedom), abs=1e-11)


def test_half_of_all_errors_are_below_the_median():
    assert students_t_share(0.0, 1.88) == 0.5


@pytest.mark.parametrize("freedom", [1.88, 5.0])
@pytest.mark.parametrize("probability", [0.001, 0.1, 0.4])
def test_quantiles_below_the_median_mirror_those_above_it(probability, freedom):
    below, above = (students_t_quantile(each, freedom) for each in (probability, 1 - probability))
    assert below == pytest.approx(-above, rel=1e-9)
    assert below == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)


@pytest.mark.parametrize("value", [-2.0, -0.1, 0.0, 0.1, 2.0])
def test_a_skew_of_one_is_none(value):
    assert skewed_t_share(value, 3.0, 1.0) == pytest.approx(students_t_share(value, 3.0))


@pytest.mark.parametrize("skew", [0.5, 1.0, 1.4])
def test_errors_above_zero_are_as_many_as_the_squared_skew_to_one(skew):
    assert skewed_t_share(0.0, 3.0, skew) == pytest.approx(1 / (1 + skew**2))


@pytest.mark.parametrize("value", [-1.0, 0.0, 0.7, 3.0])
def test_a_skewed_t_has_the_density_of_t_stretched_above_zero_and_pressed_below(value):
    def density(at: float) -> float:
        stretched = at * 1.4 if at < 0 else at / 1.4
        return 2 / (1.4 + 1 / 1.4) * stats.t.pdf(stretched, 3.0)

    share, _ = integrate.quad(density, -float("inf"), value)
    assert skewed_t_share(value, 3.0, 1.4) == pytest.approx(share, abs=1e-7)


@given(probability=st.floats(0.001, 0.999), skew=st.floats(0.3, 3.0))
def test_a_share_stays_below_its_quantile(probability, skew):
    quantile = skewed_t_quantile(probability, 2.5, skew)
    assert skewed_t_share(quantile, 2.5, skew) == pytest.approx(probability, abs=1e-9)
