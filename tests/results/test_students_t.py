"""Student's t, held against its tables and against scipy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.results.students_t import students_t_quantile, students_t_share


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
