"""What small blocks reserve is bounded, and found out only where it can matter."""

from __future__ import annotations

from random import Random

import pytest

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator.exchanges import Exchange, reserved_bytes, told_apart
from tests.results.plain_allocator import MIB

SMALL = [512, 1024, 4096, 100_000, 262_144, 300_000, 524_288, 700_000, MIB]


def random_steps(seed, *, large=()):
    """Steps of small blocks on two streams that come and go in any order."""
    random = Random(seed)
    known = [*random.sample(SMALL, random.randint(1, 4)), *large]
    there, step = [], []
    for _ in range(random.randint(1, 10)):
        takes = random.choices(known, k=random.randint(0, 30))
        there += takes
        random.shuffle(there)
        count = random.randint(0, len(there))
        own = tuple(size for size in takes if size <= MIB)[:3]
        step.append(Exchange(tuple(takes), tuple(there[:count]), own, own))
        there = there[count:]
    rest = Exchange((), tuple(there))
    first = [*step, rest, Exchange(tuple(random.choices(SMALL, k=2)), ())]
    return told_apart([*step, rest], first=first)


@pytest.mark.parametrize("seed", range(300))
def test_less_than_the_least_is_never_said_of_what_reserves_more(seed):
    """Whatever the least is, the larger of it and what is reserved is the same."""
    steps, random = random_steps(seed, large=(3 * MIB, 24 * MIB)[: seed % 3]), Random(seed)
    settings = AllocatorSettings(expandable_segments=seed % 4 == 0)
    exact = reserved_bytes(steps, settings, steps=3)
    for least in (0.0, 0.9 * exact, exact, exact + random.uniform(0, 60 * MIB), 10.0 * exact):
        found = reserved_bytes(steps, settings, steps=3, least_bytes=least)
        assert found == exact or exact <= found <= least


def test_a_bound_that_is_low_enough_is_all_that_is_found_out():
    """Segments of 2 MiB hold four blocks of half a MiB; the bound counts more of them."""
    steps = told_apart([Exchange((2**19,) * 8, (2**19,) * 8)])
    exact = reserved_bytes(steps, AllocatorSettings())
    assert exact == 4 * MIB
    assert exact < reserved_bytes(steps, AllocatorSettings(), least_bytes=64.0 * MIB) < 64 * MIB
