"""Computation beside communication: how much slower, and from when to when?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import simpy

from simulator.described.cluster.common import shipped_common
from simulator.engine.device import Devices


def computed_at(
    holds: Sequence[tuple[float, float, int]], works: Sequence[float], sm_count: int = 100
) -> list[float]:
    """Ends of works run one after another while (start, end, SMs) are held."""
    env = simpy.Environment()
    devices = Devices(env, [sm_count], shipped_common())
    ended = []

    def hold(start_s, end_s, count):
        yield env.timeout(start_s)
        devices.take(0, count)
        yield env.timeout(end_s - start_s)
        devices.give(0, count)

    def compute():
        for seconds in works:
            done = env.event()
            devices.compute([0], seconds, done.succeed)
            yield done
            ended.append(env.now)

    # Holders first: they act first at equal times.
    for each in holds:
        env.process(hold(*each))
    env.process(compute())
    env.run()
    return ended


def test_alone_work_takes_its_own_time():
    assert computed_at([], [2.0]) == [2.0]


def test_held_multiprocessors_and_what_else_is_shared_slow_work():
    """13 of 100, and 7 % for memory, caches and power."""
    assert shipped_common().beside_share == 0.07
    assert computed_at([(0.0, 100.0, 13)], [2.0]) == [pytest.approx(2.0 / 0.8)]


def test_only_the_overlap_is_slowed():
    """1 s alone, 1 s at 0.8, 1.2 s alone: 3 s of work done after 3.2 s."""
    assert computed_at([(1.0, 2.0, 13)], [3.0]) == [pytest.approx(3.2)]


def test_two_communications_hold_their_sum():
    """At 0.7 from 0 to 1, at 0.9 from 1 to 2; 0.4 s of work is left."""
    assert computed_at([(0.0, 1.0, 20), (0.0, 2.0, 3)], [2.0]) == [pytest.approx(2.4)]


def test_communication_never_takes_more_than_half_of_the_device():
    assert computed_at([(0.0, 100.0, 90)], [2.0]) == [pytest.approx(4.0)]


def test_changes_at_one_instant_count_once():
    """Two start together at 1, both end together at 2."""
    assert computed_at([(1.0, 2.0, 10), (1.0, 2.0, 3)], [3.0]) == [pytest.approx(3.2)]


def test_a_hold_that_begins_as_work_ends_slows_only_what_follows():
    assert computed_at([(1.0, 3.0, 50)], [1.0, 1.0]) == pytest.approx([1.0, 3.0])


def test_a_hold_that_ends_as_work_begins_does_not_slow_it():
    assert computed_at([(0.0, 1.0, 50)], [0.5, 1.0]) == pytest.approx([1.0, 2.0])


def test_holding_nothing_changes_nothing():
    assert computed_at([(0.5, 1.5, 0)], [2.0]) == [2.0]


def test_a_device_without_multiprocessors_has_no_interference():
    assert computed_at([(0.0, 9.0, 50)], [2.0], sm_count=0) == [2.0]
