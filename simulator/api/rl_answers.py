"""What does a step of reinforcement learning cost, and how is it told?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.described.job import job_yaml
from simulator.exporters.html.answer_tables import AnswerPage, Table, cells, columns
from simulator.planning.reinforcement.rl_job import RLJob
from simulator.results.fit_probability import fit_text
from simulator.units import format_bytes, format_seconds, percent

if TYPE_CHECKING:
    import pandas as pd

    from simulator.planning.reinforcement.rl_step import RLStep

_SCHEMA_VERSION = 1
KNOWN_ERROR = (
    "Of 26 published steps, the first predictions, to which nothing had been tuned, were 31 % too "
    "short on average."
)
"""How far off such predictions are; `reports/reinforcement.md` has each."""


@dataclass(frozen=True, repr=False)
class RLAnswer(Answer):
    """A step of reinforcement learning; ``step`` holds its phases and an update with its memory."""

    job: RLJob
    step: RLStep

    @property
    def step_time_s(self) -> float:
        """The whole step [s]."""
        return self.step.step_time_s

    def to_dict(self) -> dict[str, Any]:
        """The step, its phases, its sequences, and the memory of training."""
        step = self.step
        return {
            "schema_version": _SCHEMA_VERSION,
            "title": self.job.title,
            "step_time_s": step.step_time_s,
            "phases_s": step.phases_s,
            "tail_s": step.tail_s,
            "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
            "idle_share": step.idle_share,
            "sequences": self.job.rollout.sequences,
            "tokens": step.tokens,
            "longest_tokens": step.longest_tokens,
            "updates": self.job.updates,
            "microbatches_per_update": step.packing.count,
            "filled_share": step.packing.filled_share,
            "update_device_bytes": step.longest.peak_device_bytes,
            "fits_probability": step.longest.fits_probability,
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per phase: phase, time_s, and its share of the step."""
        step_s = self.step.step_time_s
        rows = [
            {"phase": name, "time_s": seconds, "of_step_share": seconds / step_s}
            for name, seconds in self.step.phases_s.items()
        ]
        return frame(rows)

    def figures(self) -> list[tuple[str, str]]:
        """Names, with their units, and values of the numbers that people read first."""
        step, rollout = self.step, self.job.rollout
        mean = step.tokens / rollout.sequences
        idle = [("GPU time that waits for the other half", percent(step.idle_share))]
        return [
            ("step time", format_seconds(step.step_time_s)),
            ("tokens/s per GPU", f"{step.tokens_per_s_per_gpu:,.1f}"),
            ("sequences", f"{rollout.sequences:,} of {mean:,.0f} tokens"),
            ("longest sequence", f"{step.longest_tokens:,} tokens"),
            ("generation's tail, below a tenth of the answers", format_seconds(step.tail_s)),
            *(idle if step.idle_share else ()),
            ("updates", f"{self.job.updates:,} of {step.packing.count:,} microbatches"),
            ("computed tokens that belong to a sequence", percent(step.packing.filled_share)),
            ("memory of an update", _memory(step)),
        ]

    def page(self) -> AnswerPage:
        """The step in numbers, and its phases."""
        return AnswerPage(
            title=f"A step of reinforcement learning: {self.job.title}",
            sentences=[KNOWN_ERROR],
            tables=[
                Table(
                    "The step", "", columns(("",), ("",)), [cells(row) for row in self.figures()]
                ),
                self.phases(),
            ],
            job_yaml=job_yaml(self.job),
        )

    def phases(self) -> Table:
        """Each phase, its time and its share of the step."""
        step_s = self.step.step_time_s
        rows = [
            cells((name, format_seconds(seconds), percent(seconds / step_s)))
            for name, seconds in self.step.phases_s.items()
        ]
        return Table("Phases", "", columns(("phase",), ("time", "of the step")), rows)

    def plot(self, path: str | Path) -> Path:
        """Draw the phases over time and how many answers are under way; returns the path."""
        from simulator.plots.rl import draw_rl_step

        step = self.step
        subtitle = (
            f"step {format_seconds(step.step_time_s)}; in the last {format_seconds(step.tail_s)} "
            "of generation, less than a tenth of the answers is under way"
        )
        draw_rl_step(self.job.title, subtitle, step.lanes, step.answer_ends_s, path)
        return Path(path)


def _memory(step: RLStep) -> str:
    held = format_bytes(step.longest.peak_device_bytes)
    return f"{held}, {fit_text(step.longest.fits_probability)}"


def rl(job: RLJob, *, on_ended: Callable[[int, int], None] | None = None) -> RLAnswer:
    """Simulate a step of reinforcement learning: generate, score, train, hand over the weights.

    Args:
        job: What runs, from :func:`load_rl`.
        on_ended: Called with how many more answers ended, and the number of all.

    Raises:
        InputError: A sequence is longer than the cache.
        DoesNotFitError: The model leaves no room for a cache.
    """
    from simulator.planning.reinforcement.rl_step import need_rl, rl_step

    need_rl(job)
    return RLAnswer(job, rl_step(job, on_ended))
