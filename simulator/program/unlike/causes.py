"""Why does a class of ranks behave in its own way, in words?

Either something is wrong with its own ranks, or they meet a rank that something is wrong
with: nearest first, inside a pass, along the pipeline, or where gradients are added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.program.grid.lockstep_groups import Labels
from simulator.program.ir import Scope
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
        yield self._same_pipeline.get(own_pass), "is in one pipeline with {}"
        yield self._same_copies[stage].get(own_copies), "adds up gradients with {}"
        yield (
            self._next_pipeline.get(own_copies),
            "adds up gradients with ranks that wait for {}",
        )

    def _near(self, stage: int, labels: Labels) -> _Near:
        """Perturbed ranks of one stage by their group."""
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
