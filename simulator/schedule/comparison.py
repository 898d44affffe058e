"""How do several schedules compare that do the same work on every rank?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.errors import InputError
from simulator.schedule.info import ScheduleInfo
from simulator.schedule.registry import schedule_info
from simulator.schedule.slots import Phase
from simulator.schedule.unit_run import UnitRun, run_schedule
from simulator.schedule.unit_time import EQUAL_COSTS

REFERENCE = "1f1b"
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
        hint = "leave --vpp out, or name a schedule with several chunks"
        raise InputError.single("--vpp", "none of these schedules runs with it", chunks, hint)
    runs = [
        run_schedule(info, stages, microbatches, count, costs)
        for info, count in zip(infos, nearest, strict=True)
    ]
    reference = run_schedule(REFERENCE, stages, microbatches)
    return Comparison(runs, max(reference.peaks))


def nearest_chunks(info: ScheduleInfo, chunks: int | None) -> int:
    """Chunks per rank that a schedule runs with, nearest to those wanted; None is the fewest."""
    least, most = info.chunks
    wanted = max(least, chunks or least)
    return wanted if most is None else min(most, wanted)
