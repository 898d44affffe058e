"""Alarms: when do they ring if they are set anew?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.instant import Alarm, Clock

times_s = st.floats(0.0, 1e3)


def rings_at(settings: Sequence[tuple[float, float]]) -> list[float]:
    """When an alarm rings that is set, at each first time, to the second."""
    env = Clock()
    rung = []

    class Recorded(Alarm):
        def ring(self) -> None:
            rung.append(env.now)

    alarm = Recorded(env)

    def sets():
        for at_s, due_s in settings:
            yield env.timeout(at_s - env.now)
            alarm.set_at(due_s)

    env.process(sets())
    env.run()
    return rung


@pytest.mark.parametrize(
    ("settings", "rung"),
    [
        ([(0.0, 2.0)], [2.0]),
        ([(0.0, 2.0), (1.0, 5.0)], [5.0]),
        ([(0.0, 5.0), (1.0, 2.0)], [2.0]),
        ([(0.0, 5.0), (1.0, 2.0), (1.5, 6.0)], [6.0]),
        ([(0.0, 1.0), (2.0, 3.0)], [1.0, 3.0]),
        ([(1.0, 1.0)], [1.0]),
    ],
    ids=["once", "later", "sooner", "sooner, then later", "after it rang", "now"],
)
def test_only_the_last_setting_rings(settings, rung):
    assert rings_at(settings) == rung


@given(times_s, times_s)
def test_it_rings_at_the_time_that_it_was_set_to_to_the_last_bit(now_s, delay_s):
    assert rings_at([(now_s, now_s + delay_s)]) == [now_s + delay_s]
