"""What is worth a check before a prediction is relied on?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.described.job import Job, job_yaml
from simulator.exporters.html.answer_tables import AnswerPage, Table, cells, columns
from simulator.units import format_bytes, format_seconds, signed_percent

if TYPE_CHECKING:
    import pandas as pd

    from simulator.planning.checks_before_run import Check
    from simulator.results.step import StepResult

_SCHEMA_VERSION = 1
_MOST_ROWS = 10
WORDS = ("what may be otherwise", "how often", "job states it")
"""Columns of words of the table of checks."""
HEADS = ("step with it", "change of the step", "device memory with it")
"""Columns of numbers of the table of checks."""


@dataclass(frozen=True, repr=False)
class ChecksAnswer(Answer):
    """What may be otherwise than a job says, and what it would change.

    Attributes:
        job: What is to run.
        result: Its prediction.
        found: Every check, the one that is most worth it first.
    """

    job: Job
    result: StepResult
    found: tuple[Check, ...]

    def to_dict(self) -> dict[str, Any]:
        """The prediction, and every check with the step and the memory of the changed job."""
        return {
            "schema_version": _SCHEMA_VERSION,
            "title": self.job.title,
            "predicted_step_s": self.result.step_time_s,
            "predicted_memory_bytes": self.result.peak_device_bytes,
            "checks": [
                {
                    "change": each.words,
                    "how_often": each.how_often,
                    "stated": each.is_stated,
                    "step_time_s": each.result.step_time_s,
                    "step_change_share": each.step_change_share,
                    "memory_bytes": each.result.peak_device_bytes,
                    "fields": dict(each.change.fields),
                    "check": each.check,
                }
                for each in self.found
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per check, the one that is most worth it first."""
        return frame(self.to_dict()["checks"])

    def page(self) -> AnswerPage:
        """The checks that are most worth it, and how to do each."""
        shown = self.found[:_MOST_ROWS]
        rows = [cells([*words(each), each.check, *numbers(each)]) for each in shown]
        heads = columns((*WORDS, "how to check"), HEADS)
        note = "Each is simulated alone; how often it happens is assumed"
        return AnswerPage(
            title=f"What to check before the run: {self.job.title}",
            sentences=[sentence(self)],
            tables=[Table("What may be otherwise than the job says", note, heads, rows)],
            job_yaml=job_yaml(self.job),
        )


def sentence(answer: ChecksAnswer) -> str:
    """What the order of the checks means."""
    step = format_seconds(answer.result.step_time_s)
    return (
        f"Predicted {step}, if the run is as the job says; first stands what would move the step "
        "most, weighed by how often it happens."
    )


def words(check: Check) -> tuple[str, str, str]:
    """What may be otherwise, how often it is, and whether the job says that it is not."""
    return check.words, check.how_often, "yes" if check.is_stated else "no"


def numbers(check: Check) -> tuple[str, str, str]:
    """The step with a change, how much it moves it, and the memory."""
    return (
        format_seconds(check.result.step_time_s),
        signed_percent(check.step_change_share),
        format_bytes(check.result.peak_device_bytes),
    )


def checks(
    job: Job, *, workers: int | None = None, on_trial: Callable[[], None] | None = None
) -> ChecksAnswer:
    """Find what is worth a check before a run: what it may do without saying, simulated.

    Args:
        job: The job that is to run.
        workers: Number of processes; by default one per core.
        on_trial: Called after each simulation.

    Raises:
        InputError: The job cannot run.
    """
    from simulator.planning.checks_before_run import checks_before_run
    from simulator.planning.executors import worker_pool
    from simulator.planning.run_diagnosis import suspects
    from simulator.results.simulation import run_step

    result = run_step(job)
    with worker_pool(workers) as (executor, processes):
        tried = suspects(job, result, executor=executor, processes=processes, on_trial=on_trial)
    return ChecksAnswer(job, result, checks_before_run(job, result, tried))
