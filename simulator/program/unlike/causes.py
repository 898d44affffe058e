"""Why does a class of ranks behave in its own way?

Either something is wrong with its own ranks, or they meet a rank that something is wrong
with: nearest first, inside a pass, along the pipeline, or where gradients are added up.

Or its experts receive more tokens than those of the others. One rank of every expert-parallel
group is *hot*: it holds the busiest experts. The others enter every exchange early and leave it
with the hot one. That time is one operation after each of their passes: in a profile it is the
part of all_to_all kernels in which nothing moves.

Ignores: that ranks other than the busiest differ, too; they do what they do on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.program.grid.expert_tokens import (
    ExpertShare,
    busiest_rank,
    busiest_share,
    other_share,
)
from simulator.program.grid.rank_groups import Labels, rank_axes, rank_grid
from simulator.program.ir import Category, Kind, Lane, Operation, Part, Scope, Work
from simulator.program.unlike.conditions import RankConditions

_Near = dict[int, dict[int, None]]
"""Perturbed ranks by group label, each once and in order."""


class Causes:
    """Says of any rank why it differs from one that nothing is wrong with.

    Args:
        conditions: Of every rank.
        labels: Which places run an operation as one, by scope.
    """

    def __init__(self, conditions: RankConditions, labels: Mapping[Scope, Labels]) -> None:
        self._conditions = conditions
        self._pass, self._copies = labels[Scope.PASS], labels[Scope.COPIES]
        stages = range(len(conditions.ranks))
        self._same_pass = [self._near(stage, self._pass) for stage in stages]
        self._same_copies = [self._near(stage, self._copies) for stage in stages]
        self._same_pipeline = _merged(self._same_pass)
        self._next_pipeline = self._beside(self._same_pipeline)

    def text(self, stage: int, place: int) -> str:
        """One sentence about a rank, empty where no rank of the job is perturbed.

        Args:
            stage: Its stage.
            place: Its place in the stage.
        """
        own = self._conditions.text(stage, place)
        if own:
            return own
        for ranks, sentence in self._nearest(stage, place):
            if ranks:
                others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
                return sentence.format(f"rank {next(iter(ranks))}{others}")
        return "meets no perturbed rank before the end of the step" if self._same_pipeline else ""

    def _nearest(self, stage: int, place: int) -> Iterator[tuple[dict[int, None] | None, str]]:
        """The perturbed ranks that a rank meets, by how closely they work together."""
        own_pass, own_copies = int(self._pass[place]), int(self._copies[place])
        yield self._same_pass[stage].get(own_pass), "waits in every pass for {}"
        yield self._same_pipeline.get(own_pass), "is in the same pipeline as {}"
        yield self._same_copies[stage].get(own_copies), "reduces gradients with {}"
        yield (
            self._next_pipeline.get(own_copies),
            "reduces gradients with ranks that wait for {}",
        )

    def _near(self, stage: int, labels: Labels) -> _Near:
        near: _Near = {}
        perturbed: NDArray[np.bool_] = self._conditions.perturbed[stage]
        for place in np.flatnonzero(perturbed).tolist():
            rank = int(self._conditions.ranks[stage, place])
            near.setdefault(int(labels[place]), {})[rank] = None
        return near

    def _beside(self, same_pipeline: _Near) -> _Near:
        """The same by the groups that add up gradients with any rank of those pipelines."""
        near: _Near = {}
        for own_pass, own_copies in zip(self._pass.tolist(), self._copies.tolist(), strict=True):
            if own_pass in same_pipeline:
                near.setdefault(own_copies, {}).update(same_pipeline[own_pass])
        return near


def _merged(stages: list[_Near]) -> _Near:
    merged: _Near = {}
    for near in stages:
        for label, ranks in near.items():
            merged.setdefault(label, {}).update(ranks)
    return merged


WAIT = "wait_for_experts"
"""Name of the part in which a rank waits for the busiest one."""


@dataclass(frozen=True)
class ExpertRoles:
    """Which ranks hold the busiest experts, and what either kind of rank receives.

    Attributes:
        shares: What a rank's experts receive, by role; one role where all ranks receive the same.
        role: Index into ``shares`` of each place of a stage, shape (places,).
    """

    shares: tuple[ExpertShare | None, ...]
    role: NDArray[np.int64]

    @property
    def differ(self) -> bool:
        """Whether some ranks wait for others."""
        return len(self.shares) > 1

    def cause(self, place: int) -> str:
        """Why the rank at a place behaves in its own way; empty where all do the same."""
        if not self.differ:
            return ""
        if self.role[place]:
            return "waits for the busiest experts in every pass"
        return "holds the busiest experts"


def expert_roles(job: Job) -> ExpertRoles:
    """The roles of all places of a stage, the busiest first."""
    ranks, busiest, others = rank_grid(job)[0], busiest_share(job), other_share(job)
    if others is None:
        return ExpertRoles((busiest,), np.zeros(len(ranks), dtype=np.int64))
    axis = rank_axes(job, experts=True)["ep"]
    is_other = ranks // axis.stride % axis.ranks != busiest_rank(job)
    return ExpertRoles((busiest, others), is_other.astype(np.int64))


def waiting(operation: Operation, lanes: Sequence[Lane], after: int, wait_s: float) -> Operation:
    """What ranks do after a pass until the busiest one has ended it, too.

    Args:
        operation: The pass.
        lanes: Theirs.
        after: Index of their pass.
        wait_s: How much longer the busiest one takes [s].
    """
    work = Work(wait_s, (Part(WAIT, Category.EXPERT_PARALLEL, wait_s),))
    return Operation(
        Kind.ALL_TO_ALL, tuple(lanes), work, Category.EXPERT_PARALLEL, (after,),
        operation.microbatch, operation.chunk, operation.layers,
    )  # fmt: skip
