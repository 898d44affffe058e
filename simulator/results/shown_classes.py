"""Which rank classes stand for all, where not all can be shown?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.grid.placement import rank_coordinates
from simulator.program.ir import RankClass


def spread(count: int, limit: int | None) -> list[int]:
    """At most ``limit`` of ``count`` indices, evenly from the first to the last."""
    if limit is None or limit >= count:
        return list(range(count))
    return sorted({round(i) for i in np.linspace(0, count - 1, max(limit, 1))})


def class_words(rank_class: RankClass) -> str:
    """The name of a class, and its GPU where the cluster has several kinds."""
    return f"{rank_class.name} {rank_class.cause}" if rank_class.device else rank_class.name


def classes_of(ranks: Sequence[int], job: Job, classes: Sequence[RankClass]) -> list[int]:
    """Indices of the classes that stand for some ranks, ascending.

    Raises:
        InputError: The job has no such rank.
    """
    stage_of = rank_coordinates(job)["pp"]
    found = set()
    for rank in ranks:
        if not 0 <= rank < stage_of.size:
            rule = f"must be a rank of the job, 0 to {stage_of.size - 1}"
            raise InputError.single("ranks", rule, rank)
        found |= {
            index
            for index, each in enumerate(classes)
            # A class that is a whole stage does not list its ranks.
            if (rank in each.ranks if each.ranks else each.stage == stage_of[rank])
        }
    return sorted(found)
