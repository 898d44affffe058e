"""When did each rank run the passes of a step and their parts, and what else did it compute?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from simulator.engine.timeline import Timeline
from simulator.program.ir import Part, Stream, Work
from simulator.schedule import Phase


class Pass(NamedTuple):
    """One microbatch through one part of a rank's model, in one direction.

    Attributes:
        chunk: Which of the rank's parts.
        start_s, end_s: When; pieces that a strategy cuts it into count as one [s].
    """

    phase: Phase
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


class Span(NamedTuple):
    """From when to when [s]."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class RankPasses:
    """What the compute stream of a class of ranks ran in a step.

    Attributes:
        name: Of the ranks, for people.
        others: Updates, and exchanges that hold the stream, in order.
    """

    name: str
    passes: list[Pass] = field(default_factory=list)
    others: list[Span] = field(default_factory=list)

    @property
    def busy_s(self) -> float:
        """Time in passes [s]."""
        return math.fsum(each.end_s - each.start_s for each in self.passes)

    def mean_s(self, phase: Phase) -> float:
        """Mean time of a phase of one microbatch on the whole rank; 0 if it has none [s]."""
        times: dict[int, float] = {}
        for each in self.passes:
            if each.phase is phase:
                spent_s = each.end_s - each.start_s
                times[each.microbatch] = times.get(each.microbatch, 0.0) + spent_s
        return fmean(times.values()) if times else 0.0


def step_passes(timeline: Timeline) -> list[RankPasses]:
    """The passes of every class of ranks, in the order of the classes."""
    return [
        _rank_passes(timeline, index, rank_class.name)
        for index, rank_class in enumerate(timeline.program.classes)
    ]


def _rank_passes(timeline: Timeline, rank_class: int, name: str) -> RankPasses:
    found = RankPasses(name)
    for phase, chunk, microbatch, span in _computed(timeline, rank_class):
        if phase is None:
            found.others.append(span)
            continue
        last = found.passes[-1] if found.passes else None
        if last is not None and last[:3] == (phase, chunk, microbatch):
            found.passes[-1] = last._replace(end_s=span.end_s)
        else:
            found.passes.append(Pass(phase, chunk, microbatch, *span))
    return found


def _computed(timeline: Timeline, rank_class: int) -> Iterator[tuple[Phase | None, int, int, Span]]:
    """Operations of the compute stream: phase, chunk, microbatch and when."""
    starts_s, ends_s = timeline.operation_start_s, timeline.operation_end_s
    for index in timeline.program.lanes.get((rank_class, Stream.COMPUTE), ()):
        operation = timeline.program.operations[index]
        phase = Phase.__members__.get(operation.kind.name)
        span = Span(float(starts_s[index]), float(ends_s[index]))
        yield phase, operation.chunk, operation.microbatch, span


def part_spans(work: Work, start: float, end: float) -> Iterator[tuple[Part, float, float]]:
    """Each part with its start and end, scaled to fill an interval without gaps.

    The parts keep their order and their shares. Ignores that repeats of different kernels
    alternate in reality.

    Args:
        work: What the operation does.
        start: When it begins, in any unit.
        end: When it ends; it may have been slowed down.
    """
    total_s = math.fsum(part.seconds for part in work.parts)
    done_s, left = 0.0, start
    for part in work.parts:
        done_s += part.seconds
        right = start + (end - start) * done_s / total_s if total_s else left
        yield part, left, right
        left = right
