"""Which ranks behave alike, and why are they not all one class per stage?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.program.ir import RankClass
from simulator.results.step import ClassMemory


@dataclass(frozen=True)
class Likeness:
    """Classes of ranks that stand apart for the same reason.

    Attributes:
        cause: The reason.
        stages: Pipeline stages that such classes are in, ascending.
        classes: How many classes they are.
        ranks: How many ranks they stand for.
        first_rank: The lowest of them.
    """

    cause: str
    stages: tuple[int, ...]
    classes: int
    ranks: int
    first_rank: int


def likenesses(classes: Sequence[RankClass]) -> tuple[Likeness, ...]:
    """Classes grouped by their cause, the fewest ranks first; empty where none has one."""
    by_cause: dict[str, list[RankClass]] = {}
    for rank_class in classes:
        if rank_class.cause:
            by_cause.setdefault(rank_class.cause, []).append(rank_class)
    found = [
        Likeness(
            cause,
            tuple(sorted({each.stage for each in alike})),
            len(alike),
            sum(each.count for each in alike),
            min(each.first_rank for each in alike),
        )
        for cause, alike in by_cause.items()
    ]
    return tuple(sorted(found, key=lambda likeness: likeness.ranks))


def fullest_of_each_stage(memory: Sequence[ClassMemory]) -> list[ClassMemory]:
    """The memory of one class per stage and role, the one with the highest peak."""
    fullest: dict[tuple[int, str], ClassMemory] = {}
    for each in memory:
        key = each.stage, each.role
        known = fullest.setdefault(key, each)
        if each.peak_allocated_bytes > known.peak_allocated_bytes:
            fullest[key] = each
    return list(fullest.values())
