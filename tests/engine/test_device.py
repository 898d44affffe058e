"""Computation beside communication: how much slower, and from when to when?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simulator.described.cluster.common import shipped_common
from simulator.engine.device import SharedDevice, compute
from simulator.engine.instant import Clock


def computed_at(holds: Sequence[tuple[float, float, float]], works: Sequence[float]) -> list[float]:
    """Ends of works run one after another while (start, end, share of the device) are taken."""
    env = Clock()
    device = SharedDevice(env, shipped_common())
    ended = []

    def hold(start_s, end_s, share):
        yield env.timeout(start_s)
        device.take(share)
        yield env.timeout(end_s - start_s)
        device.give(share)

    def run():
        for seconds in works:
            done = env.event()
            compute(env, [device], seconds, done.succeed)
            yield done
            ended.append(env.now)

    # Holders first: they act first at equal times.
    for each in holds:
        env.process(hold(*each))
    env.process(run())
    env.run()
    return ended


def test_alone_work_takes_its_own_time():
    assert computed_at([], [2.0]) == [2.0]


def test_work_goes_on_with_what_is_left_of_the_device():
    assert computed_at([(0.0, 100.0, 0.2)], [2.0]) == [pytest.approx(2.0 / 0.8)]


def test_only_the_overlap_is_slowed():
    """1 s alone, 1 s at 0.8, 1.2 s alone: 3 s of work done after 3.2 s."""
    assert computed_at([(1.0, 2.0, 0.2)], [3.0]) == [pytest.approx(3.2)]


def test_two_communications_take_their_sum():
    """At 0.7 from 0 to 1, at 0.9 from 1 to 2; 0.4 s of work is left."""
    assert computed_at([(0.0, 1.0, 0.2), (0.0, 2.0, 0.1)], [2.0]) == [pytest.approx(2.4)]


def test_communication_never_takes_more_than_half_of_the_device():
    assert computed_at([(0.0, 100.0, 0.9)], [2.0]) == [pytest.approx(4.0)]


def test_changes_at_one_instant_count_once():
    """Two start together at 1, both end together at 2."""
    assert computed_at([(1.0, 2.0, 0.15), (1.0, 2.0, 0.05)], [3.0]) == [pytest.approx(3.2)]


def test_a_hold_that_begins_as_work_ends_slows_only_what_follows():
    assert computed_at([(1.0, 3.0, 0.5)], [1.0, 1.0]) == pytest.approx([1.0, 3.0])


def test_a_hold_that_ends_as_work_begins_does_not_slow_it():
    assert computed_at([(0.0, 1.0, 0.5)], [0.5, 1.0]) == pytest.approx([1.0, 2.0])


def test_taking_nothing_changes_nothing():
    assert computed_at([(0.5, 1.5, 0.0)], [2.0]) == [2.0]
