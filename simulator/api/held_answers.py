"""Who holds which bytes, and in which order does a pipeline work?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.api.one_step import Result, simulate
from simulator.described.job import Job, job_yaml
from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Cell,
    Column,
    Table,
    cells,
    columns,
    legend_of,
    stacked_bytes,
)
from simulator.results.fit_probability import fit_text
from simulator.units import format_bytes, percent

if TYPE_CHECKING:
    import pandas as pd

    from simulator.planning.changes.trials import Trial
    from simulator.schedule.unit_run import UnitRun

MEMORY_KEYS = (
    "schema_version", "fits", "fits_probability", "fit", "capacity_bytes", "memory", "host_memory",
)  # fmt: skip
"""What the answer about memory takes of a result."""


@dataclass(frozen=True, repr=False)
class MemoryAnswer(Answer):
    """What uses the memory of every pipeline stage.

    Attributes:
        result: The simulated step.
        savings: Single changes that save memory; None if not asked for.
    """

    result: Result
    savings: Sequence[Trial] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Peaks by stage and owner, and whether the job fits."""
        document = self.result.to_dict()
        names = ("changes", "saved_bytes", "step_time_s", "slower_share")
        savings = [{name: getattr(each, name) for name in names} for each in self.savings or ()]
        found = {} if self.savings is None else {"savings": savings}
        return {**{key: document[key] for key in MEMORY_KEYS if key in document}, **found}

    def to_frame(self) -> pd.DataFrame:
        """One row per class of ranks: stage, three peaks, bytes of every owner [B]."""
        return frame(
            [
                {
                    "stage": memory.stage,
                    "ranks": memory.label,
                    "peak_allocated_bytes": memory.peak_allocated_bytes,
                    "peak_reserved_bytes": memory.peak_reserved_bytes,
                    "peak_device_bytes": memory.peak_device_bytes,
                    "capacity_bytes": memory.capacity_bytes,
                    **{f"{owner.value}_bytes": held for owner, held in memory.by_owner.items()},
                }
                for memory in self.result.memory
            ]
        )

    def page(self) -> AnswerPage:
        """Who holds the peak of every stage, against the capacity."""
        from simulator.results.views.rank_classes import fullest_of_each_stage

        stages = fullest_of_each_stage(self.result.memory)
        longest = max(max(each.peak_device_bytes, each.capacity_bytes) for each in stages)
        rows: list[list[Cell]] = [
            [
                Cell(each.label),
                Cell(format_bytes(each.peak_allocated_bytes)),
                Cell(format_bytes(each.peak_reserved_bytes)),
                Cell(format_bytes(each.peak_device_bytes)),
                stacked_bytes(each.by_owner, longest, each.capacity_bytes),
            ]
            for each in stages
        ]
        heads = [*columns(("stage",), ("allocated", "reserved", "device"))]
        verdict = fit_text(self.result.fits_probability)
        table = Table(
            "At the peak",
            f"The dashed line is the capacity, {format_bytes(self.result.capacity_bytes)}",
            [*heads, Column("tensors, by owner", "bars")],
            rows,
            legend_of(rows),
        )
        return AnswerPage(
            title=f"Memory of {self.result.title}",
            sentences=[f"Memory: {verdict}."],
            tables=[table],
            job_yaml=job_yaml(self.result.job),
        )


def memory(
    job: Job, *, savings: bool = False, on_trial: Callable[[], None] | None = None
) -> MemoryAnswer:
    """Show what uses the memory of every pipeline stage.

    Args:
        job: The job to simulate.
        savings: Whether to simulate single changes that save memory.
        on_trial: Called after each simulated change.

    Raises:
        InputError: The job cannot run.
    """
    from simulator.planning.changes.helpful_changes import savings as savings_of

    result = simulate(job)
    return MemoryAnswer(result, savings_of(job, on_trial=on_trial) if savings else None)


@dataclass(frozen=True, repr=False)
class ScheduleAnswer(Answer):
    """A pipeline schedule with free communication; times are in the unit of the given times."""

    run: UnitRun

    def to_dict(self) -> dict[str, Any]:
        """Sizes, figures and every slot."""
        return self.run.to_dict()

    def to_frame(self) -> pd.DataFrame:
        """One row per slot: rank, phase, stage, chunk, microbatch, start, end."""
        ranks = self.to_dict()["ranks"]
        return frame([{"rank": each["rank"], **slot} for each in ranks for slot in each["slots"]])

    def plot(self, path: str | Path) -> Path:
        """Draw every rank's slots over time; returns the path."""
        from simulator.plots.schedule import build_schedule_figure
        from simulator.plots.style import save

        save(build_schedule_figure(self.run), path)
        return Path(path)

    def page(self) -> AnswerPage:
        """Its figures, and how much every rank waits and holds."""
        run = self.run
        rows = [
            cells([rank, f"{run.peaks[rank]:g}", run.weight_versions[rank], f"{run.waits(rank):g}"])
            for rank in range(run.stages)
        ]
        numbers = ("most microbatches in flight", "weight versions", "waits")
        return AnswerPage(
            title=f"{run.info.name}: {run.stages} stages, {run.microbatches} microbatches",
            sentences=[f"{percent(run.bubble_share)} of the step is bubble."],
            tables=[Table("Ranks", "", columns(("rank",), numbers), rows)],
        )


def schedule(
    name: str,
    pp: int,
    microbatches: int,
    *,
    vpp: int | None = None,
    forward: float = 1.0,
    backward: float = 2.0,
    weight: float | None = None,
) -> ScheduleAnswer:
    """Run a pipeline schedule with free communication.

    Args:
        name: A name that ``clustersim schedule list`` prints.
        pp: Pipeline stages.
        microbatches: Microbatches per step.
        vpp: Chunks per stage; None uses the fewest possible.
        forward: Forward time of one microbatch on one rank, in any unit.
        backward: Time of a whole backward, in the same unit.
        weight: Time of the weight gradients within the backward; None is half of it.

    Raises:
        InputError: The name is unknown, or a size or a time is wrong.
        UnsupportedError: The schedule has no order for these sizes.
    """
    from simulator.schedule.unit_run import phase_costs, run_schedule

    costs = phase_costs(forward, backward, weight)
    return ScheduleAnswer(run_schedule(name, pp, microbatches, vpp, costs))
