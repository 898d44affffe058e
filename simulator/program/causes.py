"""Why does a class of ranks behave in its own way, in words?

Either something is wrong with its own ranks, or they meet a rank that something is wrong
with: nearest first, inside a pass, along the pipeline, or where gradients are added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from simulator.program.conditions import RankConditions
from simulator.program.ir import Scope
from simulator.program.scopes import Labels

_Near = dict[int, tuple[int, int]]
"""First perturbed rank and how many there are, by group label."""


class Causes:
    """Says of any rank why it differs from one that nothing is wrong with.

    Args:
        conditions: Of every rank.
        labels: Which places run an operation as one, by scope.
    """

    def __init__(self, conditions: RankConditions, labels: Mapping[Scope, Labels]) -> None:
        self._conditions = conditions
        self._labels = labels
        perturbed = conditions.perturbed
        self._in_stage = {
            scope: [_near(row, labels[scope], stage) for stage, row in enumerate(perturbed)]
            for scope in (Scope.PASS, Scope.COPIES)
        }
        self._in_pipeline = {scope: _merged(stages) for scope, stages in self._in_stage.items()}

    def text(self, stage: int, place: int, ranks: int) -> str:
        """One sentence, empty where no rank of the job is perturbed.

        Args:
            stage: Stage of a rank of the class.
            place: Its place in the stage.
            ranks: How many ranks the class has.
        """
        own = str(self._conditions.of(stage, place))
        if own:
            return f"{own}" if ranks == 1 else f"each is {own}"
        for near, sentence in self._nearest(stage, place):
            if near is not None:
                first, count = near
                others = f" and {count - 1} more" if count > 1 else ""
                return sentence.format(f"rank {first}{others}")
        return "meets no perturbed rank before the end of the step" if self._any else ""

    def _nearest(self, stage: int, place: int) -> Iterator[tuple[tuple[int, int] | None, str]]:
        """The perturbed ranks that a rank meets, by how closely they work together."""
        own_pass = int(self._labels[Scope.PASS][place])
        own_copies = int(self._labels[Scope.COPIES][place])
        yield self._in_stage[Scope.PASS][stage].get(own_pass), "waits in every pass for {}"
        yield self._in_pipeline[Scope.PASS].get(own_pass), "is in one pipeline with {}"
        yield self._in_stage[Scope.COPIES][stage].get(own_copies), "adds up gradients with {}"
        yield (
            self._in_pipeline[Scope.COPIES].get(own_copies),
            "adds up gradients with the pipeline of {}",
        )

    @property
    def _any(self) -> bool:
        return any(self._in_pipeline.values())


def _near(perturbed: np.ndarray, labels: Labels, stage: int) -> _Near:
    """Perturbed ranks of one stage by their group."""
    near: _Near = {}
    for place in np.flatnonzero(perturbed).tolist():
        label = int(labels[place])
        first, count = near.get(label, (stage * len(labels) + place, 0))
        near[label] = (first, count + 1)
    return near


def _merged(stages: list[_Near]) -> _Near:
    merged: _Near = {}
    for near in stages:
        for label, (first, count) in near.items():
            known, known_count = merged.get(label, (first, 0))
            merged[label] = (known, known_count + count)
    return merged
