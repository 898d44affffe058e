"""What do the links of a torus give to a group of its chips?

A chip has two links per dimension, to its neighbours. A group is taken as a block of the most equal
sides. A side as long as a ring of the system, or a multiple, is closed to a ring and passes data on
both ways; a shorter one is a line, whose ends have one link. All sides work at once.

Source: How to Scale Your Model (jax-ml.github.io/scaling-book), part 2 for the wiring, part 3 for
gathers over several axes and for the all_to_all of a ring.
Ignores: twisted tori; groups that lie across the block of others.
"""

from __future__ import annotations

from math import isqrt

from simulator.described.cluster.network import Torus


def sides_of(ranks: int, torus: Torus) -> tuple[int, ...]:
    """Chips along each dimension of the block of so many, the longest last.

    Example:
        >>> sides_of(32, Torus(dimensions=2, ring=16))
        (4, 8)
    """
    sides = [1] * torus.dimensions
    for factor in sorted(_prime_factors(ranks), reverse=True):
        sides[0] *= factor
        sides.sort()
    return tuple(sides)


def ring_link_share(ranks: int, torus: Torus) -> float:
    """Share of a chip's links that a gather, a reduction or a transfer of the block uses."""
    links = sum(_links(side, torus) for side in sides_of(ranks, torus))
    return max(1, links) / (2 * torus.dimensions)


def ring_hops(ranks: int, torus: Torus) -> int:
    """Hops in a row from one corner of the block to the chip farthest from it."""
    sides = sides_of(ranks, torus)
    return sum(side // 2 if _links(side, torus) > 1 else side - 1 for side in sides)


def all_to_all_share(ranks: int, torus: Torus) -> float:
    """Rate of an all_to_all of the block over that of a switch with a chip's links.

    Of a buffer of S bytes per rank, half crosses the middle of the longest side, L chips: L/4 S
    through the one link of a line, L/8 S through each link of a ring. Through a switch a chip of n
    sends all but its own part, (n - 1)/n S.
    """
    if ranks == 1:
        return 1.0
    side = sides_of(ranks, torus)[-1]
    crossings = side / 4 / _links(side, torus)
    return min(1.0, (ranks - 1) / ranks / crossings / (2 * torus.dimensions))


def _links(side: int, torus: Torus) -> int:
    """Links with which the ends of a side pass on what they get: both ways around a ring."""
    if side == 1:
        return 0
    return 1 if side % torus.ring else 2


def _prime_factors(number: int) -> list[int]:
    for factor in range(2, isqrt(number) + 1):
        if number % factor == 0:
            return [factor, *_prime_factors(number // factor)]
    return [number] if number > 1 else []
