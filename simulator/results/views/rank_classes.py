"""Why are ranks not one class per stage, and which classes are shown where there are many?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.grid.placement import rank_coordinates
from simulator.program.ir import Category, RankClass
from simulator.program.unlike.conditions import rank_conditions
from simulator.results.step import ClassMemory, StepResult


@dataclass(frozen=True)
class ClassGroup:
    """Classes of ranks that differ from their stage for the same reason.

    Attributes:
        stages: Pipeline stages that such classes are in, ascending.
    """

    cause: str
    stages: tuple[int, ...]
    classes: int
    ranks: int
    first_rank: int


def classes_by_cause(classes: Sequence[RankClass]) -> tuple[ClassGroup, ...]:
    """Classes grouped by their cause, the fewest ranks first; empty where none has one."""
    by_cause: dict[str, list[RankClass]] = {}
    for rank_class in classes:
        if rank_class.cause:
            by_cause.setdefault(rank_class.cause, []).append(rank_class)
    found = [
        ClassGroup(
            cause,
            tuple(sorted({each.stage for each in group})),
            len(group),
            sum(each.count for each in group),
            min(each.first_rank for each in group),
        )
        for cause, group in by_cause.items()
    ]
    return tuple(sorted(found, key=lambda group: group.ranks))


def bubble_where_perturbed(job: Job, step: StepResult) -> tuple[tuple[int, ...], float]:
    """Stages with a GPU that is perturbed, and the least share of the step that one of them idles.

    A slow GPU costs nothing while its delay is shorter than what its stage idles anyhow.
    """
    stages = np.flatnonzero(rank_conditions(job).perturbed.any(axis=1)).tolist()
    idle_s = [
        breakdown.get(Category.BUBBLE, 0.0)
        for each, breakdown in zip(
            step.timeline.program.classes, step.class_breakdown_s, strict=True
        )
        if each.stage in stages
    ]
    return tuple(stages), min(idle_s, default=0.0) / step.step_time_s


def fullest_of_each_stage(memory: Sequence[ClassMemory]) -> list[ClassMemory]:
    """The memory of one class per stage and role, the one with the highest peak."""
    fullest: dict[tuple[int, str], ClassMemory] = {}
    for each in memory:
        key = each.stage, each.role
        known = fullest.setdefault(key, each)
        if each.peak_allocated_bytes > known.peak_allocated_bytes:
            fullest[key] = each
    return list(fullest.values())


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
            rule = f"must be a rank of the job, from 0 to {stage_of.size - 1}"
            raise InputError.single("ranks", rule, rank)
        found |= {
            index
            for index, each in enumerate(classes)
            # A class that is a whole stage does not list its ranks.
            if (rank in each.ranks if each.ranks else each.stage == stage_of[rank])
        }
    return sorted(found)
