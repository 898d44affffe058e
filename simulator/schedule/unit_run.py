"""What does a schedule do with its time and memory, if communication is free?

Costs are those of one microbatch on a whole rank, so schedules of different shape do equal
work: a chunk of a rank with v chunks takes 1/v of them. A rank of a bidirectional schedule
holds two stages and runs each for half of the microbatches, which is the same work again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from simulator.errors import InputError
from simulator.schedule.info import ScheduleInfo, even_pass_costs
from simulator.schedule.registry import schedule_info
from simulator.schedule.rendezvous import buffers_needed
from simulator.schedule.slots import SPLIT_PHASES, Order, Phase, Slot
from simulator.schedule.unit_time import EQUAL_COSTS, SlotTimes, held_change, slot_times


class Box(NamedTuple):
    """A slot and when it runs."""

    slot: Slot
    start: float
    end: float


class Level(NamedTuple):
    """Activations that a rank holds from a moment on [microbatches of its whole share]."""

    time: float
    held: float


@dataclass(frozen=True)
class UnitRun:
    """One schedule at some sizes, run with free communication.

    Attributes:
        info: The schedule.
        stages: Ranks of the pipeline.
        chunks: Model chunks per rank.
        microbatches: Microbatches per step.
        costs: Duration of a phase of one microbatch on a whole rank.
        order: The slots that ran. A schedule that never drains ran more microbatches, so
            that those of the step meet a full pipeline.
        times: When they ran.
        span: Moment at which the last microbatch of the step is done everywhere.
        step_time: Time per step: ``span``, or for a schedule that never drains the time
            that as many microbatches take once the pipeline is full.
    """

    info: ScheduleInfo
    stages: int
    chunks: int
    microbatches: int
    costs: Mapping[Phase, float]
    order: Order
    times: SlotTimes
    span: float
    step_time: float

    @property
    def num_parts(self) -> int:
        """Parts of the model that a rank holds: its chunks, of all copies."""
        return self.chunks * self.info.placement.copies

    @property
    def work(self) -> float:
        """Time that every rank computes in a step."""
        return self.microbatches * (self.costs[Phase.FORWARD] + self.costs[Phase.BACKWARD])

    @property
    def bubble(self) -> float:
        """Time that every rank idles in a step."""
        return self.step_time - self.work

    @property
    def bubble_share(self) -> float:
        """Share of a step that every rank idles, 0 to 1."""
        return self.bubble / self.step_time

    @property
    def peaks(self) -> list[float]:
        """Most activations that each rank holds at once [microbatches of its whole share]."""
        return [chunks / self.chunks for chunks in self.times.in_flight]

    @property
    def weight_versions(self) -> list[int]:
        """Versions of its weights that each rank keeps."""
        return [self.info.weight_versions(rank, self.stages) for rank in range(self.stages)]

    @property
    def weight_copies(self) -> int:
        """Sets of weights on the fullest rank: versions times copies of the model."""
        return max(self.weight_versions) * self.info.placement.copies

    @cached_property
    def buffers_needed(self) -> int:
        """Messages that must fit between two ranks where sends block; 0 is rendezvous."""
        return buffers_needed(self.order, self.chunks, self.info.placement)

    def boxes(self, rank: int) -> list[Box]:
        """What a rank runs within the span; what lasts longer is cut off."""
        return [
            box._replace(end=min(box.end, self.span))
            for box in self._timed(rank)
            if box.start < self.span
        ]

    def _timed(self, rank: int) -> list[Box]:
        times = zip(self.order[rank], self.times.start[rank], self.times.end[rank], strict=True)
        return [Box(*each) for each in times]

    def idle(self, rank: int) -> list[tuple[float, float]]:
        """The gaps between the boxes of a rank, from 0 to the end of the span."""
        boxes = self.boxes(rank)
        starts = [*(box.start for box in boxes), self.span]
        ends = [0.0, *(box.end for box in boxes)]
        tiny = 1e-9 * self.span  # what rounding leaves between slots that touch
        gaps = zip(ends, starts, strict=True)
        return [(end, start) for end, start in gaps if start - end > tiny]

    def waits(self, rank: int) -> float:
        """Idle time of a rank between its own first start and last end within the span."""
        return math.fsum(after.start - before.end for before, after in pairwise(self.boxes(rank)))

    def levels(self, rank: int) -> list[Level]:
        """Activations held over time: up at the start of a forward, down at a backward's end."""
        level, levels = 0, []
        for slot, start, end in self._timed(rank):
            change = held_change(slot)
            time = start if change > 0 else end
            if change and time <= self.span:
                level += change
                levels.append(Level(time, level / self.chunks))
        return levels

    def to_dict(self) -> dict[str, Any]:
        """Sizes, figures and every slot, as plain data."""
        return {
            **self.summary(),
            "ranks": [
                {
                    "rank": rank,
                    "peak_microbatches": self.peaks[rank],
                    "weight_versions": self.weight_versions[rank],
                    "waits": _rounded(self.waits(rank)),
                    "slots": [self._slot_dict(box) for box in self.boxes(rank)],
                }
                for rank in range(self.stages)
            ],
        }

    def summary(self) -> dict[str, Any]:
        """Sizes and figures, as plain data."""
        return {
            "schedule": self.info.name,
            "source": self.info.source,
            "pp": self.stages,
            "vpp": self.chunks,
            "microbatches": self.microbatches,
            "costs": {phase.name.lower(): cost for phase, cost in self.costs.items()},
            "step_time": _rounded(self.step_time),
            "busy": _rounded(self.work),
            "bubble_share": _rounded(self.bubble_share),
            "peak_microbatches": max(self.peaks),
            "weight_copies": self.weight_copies,
            "buffers_needed": self.buffers_needed,
            "model_copies": self.info.placement.copies,
            "splits_backward": self.info.splits_backward,
            "synchronous": self.info.synchronous,
        }

    def _slot_dict(self, box: Box) -> dict[str, Any]:
        phase, stage, microbatch, overlaps_next = box.slot
        return {
            "phase": phase.value,
            "stage": stage,
            "chunk": self.info.placement.chunk(stage, self.stages),
            "microbatch": microbatch,
            "start": _rounded(box.start),
            "end": _rounded(box.end),
            "overlaps_next": overlaps_next,
        }


def _rounded(time: float) -> float:
    return round(time, 9)


def run_schedule(
    schedule: str | ScheduleInfo,
    stages: int,
    microbatches: int,
    chunks: int | None = None,
    costs: Mapping[Phase, float] = EQUAL_COSTS,
) -> UnitRun:
    """A schedule, run with free communication.

    Where the order depends on costs, it is decided for these; where the phases take equal
    time it is the schedule's own.

    Args:
        schedule: One, or a key of :data:`simulator.schedule.SCHEDULES`.
        stages: Ranks of the pipeline, ``plan.pp``.
        microbatches: Microbatches per step and pipeline.
        chunks: Model chunks per rank, ``plan.vpp``; None takes the fewest that work.
        costs: Duration of a phase of one microbatch on a whole rank; a backward takes as
            long as its two halves.

    Raises:
        InputError: Unknown name, a size below 1, or a cost that is not positive.
        UnsupportedError: The schedule has no order for these sizes.

    Example:
        >>> run_schedule("1f1b", stages=4, microbatches=8).bubble
        9.0
    """
    info = schedule_info(schedule) if isinstance(schedule, str) else schedule
    chunks = info.chunks[0] if chunks is None else chunks
    info.check(stages, chunks, microbatches)
    shorter = {phase: cost / chunks for phase, cost in costs.items()}

    def timed(count: int) -> tuple[Order, SlotTimes]:
        order = _order(info, stages, chunks, count, shorter)
        return order, slot_times(order, chunks, info.placement, shorter)

    order, times = timed(microbatches)
    span = step_time = times.makespan
    if not info.synchronous:
        fill = 2 * stages
        order, times = timed(microbatches + fill)
        step_time = times.makespan - timed(fill)[1].makespan
    return UnitRun(info, stages, chunks, microbatches, costs, order, times, span, step_time)


def _order(
    info: ScheduleInfo, stages: int, chunks: int, microbatches: int, costs: Mapping[Phase, float]
) -> Order:
    sizes = (stages, chunks, microbatches)
    if info.costed_order is None or len({costs[phase] for phase in SPLIT_PHASES}) == 1:
        return info.order(*sizes)
    return info.costed_order(*sizes, even_pass_costs(stages, costs))


def phase_costs(
    forward: float = 1.0, backward: float = 2.0, weight: float | None = None
) -> Mapping[Phase, float]:
    """Duration of every phase.

    Args:
        forward: Of a forward, more than 0.
        backward: Of a whole backward, more than 0.
        weight: Of the part of the backward that computes weight gradients; None is half.

    Raises:
        InputError: A duration is not a positive number; the input gradient counts too.
    """
    weight = backward / 2 if weight is None else weight
    given = {"--forward": forward, "--backward": backward, "--weight": weight}
    for path, cost in given.items():
        if not 0 < cost < math.inf:
            raise InputError.single(path, "must be a positive number", cost)
    if weight >= backward:
        rule = f"must be less than the whole backward, which takes {backward:g}"
        raise InputError.single("--weight", rule, weight)
    return MappingProxyType(
        {
            Phase.FORWARD: forward,
            Phase.BACKWARD: backward,
            Phase.BACKWARD_INPUT: backward - weight,
            Phase.BACKWARD_WEIGHT: weight,
        }
    )


_REFERENCE = "1f1b"
"""Whose activations the others are measured by."""


@dataclass(frozen=True)
class Comparison:
    """Runs of several schedules with the same stages, microbatches and costs.

    Attributes:
        runs: One per schedule, in the order asked for.
        reference_peak: Most activations on the fullest rank of 1F1B [microbatches].
    """

    runs: Sequence[UnitRun]
    reference_peak: float

    @property
    def relative_peaks(self) -> list[float]:
        """Activations on the fullest rank, as a multiple of 1F1B's."""
        return [max(run.peaks) / self.reference_peak for run in self.runs]

    def to_dict(self) -> dict[str, Any]:
        """The figures, as plain data."""
        pairs = zip(self.runs, self.relative_peaks, strict=True)
        return {
            "schedules": [{**run.summary(), "peak_relative_to_1f1b": peak} for run, peak in pairs]
        }


def compare(
    schedules: Sequence[str | ScheduleInfo],
    stages: int,
    microbatches: int,
    chunks: int | None = None,
    costs: Mapping[Phase, float] = EQUAL_COSTS,
) -> Comparison:
    """Several schedules at equal work.

    Args:
        schedules: Any, or keys of :data:`simulator.schedule.SCHEDULES`.
        stages: Ranks of the pipeline.
        microbatches: Microbatches per step.
        chunks: Model chunks per rank of the schedules that run with so many; the others take
            the nearest that they run with. None takes the fewest of each.
        costs: Duration of a phase of one microbatch on a whole rank.

    Raises:
        InputError: As :func:`run_schedule`, or no schedule runs with that many chunks.
    """
    infos = [schedule_info(each) if isinstance(each, str) else each for each in schedules]
    nearest = [nearest_chunks(info, chunks) for info in infos]
    if chunks is not None and chunks not in nearest:
        hint = "remove --vpp, or name a schedule with several chunks"
        raise InputError.single("--vpp", "none of these schedules uses it", chunks, hint)
    runs = [
        run_schedule(info, stages, microbatches, count, costs)
        for info, count in zip(infos, nearest, strict=True)
    ]
    reference = run_schedule(_REFERENCE, stages, microbatches)
    return Comparison(runs, max(reference.peaks))


def nearest_chunks(info: ScheduleInfo, chunks: int | None) -> int:
    """Chunks per rank that a schedule runs with, nearest to those wanted; None is the fewest."""
    least, most = info.chunks
    wanted = max(least, chunks or least)
    return wanted if most is None else min(most, wanted)
