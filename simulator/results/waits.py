"""What does each compute stream wait for, and where does its time go?

A gap before an operation is explained by walking back along what the operation waited
for: while the blocker is a communication, its time is exposed communication; once the
blocker is computation elsewhere, the rest of the gap is bubble. Communication that runs
on the compute stream itself is exposed by definition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from simulator.engine.timeline import Timeline
from simulator.program.ir import COMMUNICATION, Category, Operation, Stream
from simulator.results.step import Waits

_RESOLUTION = 1e-9
"""Gaps below this share of the step are rounding of the clock."""


def compute_waits(timeline: Timeline) -> Waits:
    """Every gap of every compute stream, cut by cause; gaps add up to the idle time."""
    rows = list(_Walker(timeline).rows())
    return Waits(
        rank_class=np.asarray([row[0] for row in rows], dtype=np.int64),
        category=tuple(row[1] for row in rows),
        start_s=np.asarray([row[2] for row in rows], dtype=np.float64),
        end_s=np.asarray([row[3] for row in rows], dtype=np.float64),
    )


def class_breakdowns(timeline: Timeline, waits: Waits) -> tuple[dict[Category, float], ...]:
    """Seconds of each category per rank class; each sums to the step time."""
    totals = [_busy_s(timeline, index) for index in range(len(timeline.program.classes))]
    spans = (waits.end_s - waits.start_s).tolist()
    for index, category, span in zip(waits.rank_class.tolist(), waits.category, spans, strict=True):
        totals[index][category] = totals[index].get(category, 0.0) + span
    return tuple({c: total[c] for c in Category if c in total} for total in totals)


def mean_over_ranks(
    timeline: Timeline, breakdowns: tuple[Mapping[Category, float], ...]
) -> dict[Category, float]:
    """Breakdown of the average rank; sums to the step time as each class's does."""
    ranks = sum(rank_class.count for rank_class in timeline.program.classes)
    mean: dict[Category, float] = {}
    for rank_class, breakdown in zip(timeline.program.classes, breakdowns, strict=True):
        for category, seconds in breakdown.items():
            mean[category] = mean.get(category, 0.0) + seconds * rank_class.count / ranks
    return {category: mean[category] for category in Category if category in mean}


def _busy_s(timeline: Timeline, index: int) -> dict[Category, float]:
    """Time of the compute stream's operations by category of their parts.

    An operation that was slowed down stretches all its parts equally.
    """
    program = timeline.program
    lane = program.lanes.get((index, Stream.COMPUTE), [])
    spans = timeline.operation_end_s[lane] - timeline.operation_start_s[lane]
    by_work: dict[int, tuple[Operation, float]] = {}
    for operation_id, span in zip(lane, spans.tolist(), strict=True):
        operation = program.operations[operation_id]
        known = by_work.get(id(operation.work))
        by_work[id(operation.work)] = (operation, span + (known[1] if known else 0.0))
    totals: dict[Category, float] = {}
    for operation, span in by_work.values():
        for category, share in _shares(operation).items():
            totals[category] = totals.get(category, 0.0) + span * share
    return totals


def _shares(operation: Operation) -> dict[Category, float]:
    work = operation.work
    if not work.seconds or not work.parts:
        return {operation.category: 1.0}
    shares: dict[Category, float] = {}
    for part in work.parts:
        shares[part.category] = shares.get(part.category, 0.0) + part.seconds / work.seconds
    return shares


class _Walker:
    """Walks every compute stream and explains its gaps."""

    def __init__(self, timeline: Timeline) -> None:
        self.program = timeline.program
        self.start_s = timeline.operation_start_s.tolist()
        self.end_s = timeline.operation_end_s.tolist()
        self.step_s = timeline.step_time_s
        self.before = [
            dict(itertools.pairwise(reversed(lane))) for lane in self.program.lanes.values()
        ]
        """Of each lane, what comes before each of its operations."""
        self.places = {lane: place for place, lane in enumerate(self.program.lanes)}

    def rows(self) -> Iterator[tuple[int, Category, float, float]]:
        """(class, cause, start, end) of every piece of every gap."""
        for rank_class in range(len(self.program.classes)):
            clock = 0.0
            for index in self.program.lanes.get((rank_class, Stream.COMPUTE), []):
                if self.start_s[index] - clock > _RESOLUTION * self.step_s:
                    yield from self._explain(rank_class, index, clock)
                clock = self.end_s[index]
            if self.step_s - clock > _RESOLUTION * self.step_s:
                yield rank_class, Category.BUBBLE, clock, self.step_s

    def _explain(
        self, rank_class: int, index: int, gap_start: float
    ) -> Iterator[tuple[int, Category, float, float]]:
        clock = self.start_s[index]
        blocker = self._blocker(index)
        while clock > gap_start:
            if blocker is None or not self._communicates(blocker):
                yield rank_class, Category.BUBBLE, gap_start, clock
                return
            began = max(gap_start, self.start_s[blocker])
            if began < clock:
                yield rank_class, self.program.operations[blocker].category, began, clock
            clock = began
            blocker = self._blocker(blocker)

    def _blocker(self, index: int) -> int | None:
        """What the operation waited for last: a dependency or an occupied lane."""
        operation = self.program.operations[index]
        places = sorted([self.places[lane] for lane in operation.lanes])
        previous = [self.before[place].get(index) for place in places]
        candidates = [*operation.after, *[each for each in previous if each is not None]]
        return max(candidates, key=lambda i: self.end_s[i], default=None)

    def _communicates(self, index: int) -> bool:
        """Whether a wait for it is booked under its own category: CPUs are waited for, too."""
        operation = self.program.operations[index]
        return operation.category in COMMUNICATION or operation.lanes[0][1] is Stream.HOST
