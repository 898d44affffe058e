"""Few classes stand for many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.results.views.rank_classes import spread


def test_five_of_seventeen_are_every_fourth() -> None:
    assert spread(17, 5) == [0, 4, 8, 12, 16]


def test_no_limit_keeps_all() -> None:
    assert spread(3, None) == [0, 1, 2]


@given(st.integers(1, 300), st.integers(2, 300))
def test_first_and_last_are_always_kept_and_the_limit_holds(count: int, limit: int) -> None:
    chosen = spread(count, limit)
    assert chosen[0] == 0
    assert chosen[-1] == count - 1
    assert len(chosen) == min(count, limit)
    assert chosen == sorted(set(chosen))
