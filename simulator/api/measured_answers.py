"""What do measurements say: of a run, of a system, of the predictions?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from simulator.api.answer import Answer, frame
from simulator.described.job import Job, job_yaml
from simulator.errors import InputError
from simulator.exporters.html.answer_tables import AnswerPage, Table, cells, columns
from simulator.units import format_bytes, format_seconds, percent, signed_percent

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd

    from simulator.calibrate.own_system import OwnSystem
    from simulator.planning.observed_run import MemoryKind, PhaseTimes
    from simulator.planning.run_diagnosis import Diagnosis

_SCHEMA_VERSION = 1
_ROUNDED_UP = 1.05
"""How much more than a GPU has a peak may be said to be, as "80 GiB" is of 79.1 (assumption)."""

KINDS = ("published", "collectives", "kernels", "serving")
"""What a table of measurements may hold."""


@dataclass(frozen=True, repr=False)
class DiagnoseAnswer(Answer):
    """Likely reasons why a run differs from its prediction; ``found`` holds all of them."""

    found: Diagnosis

    def to_dict(self) -> dict[str, Any]:
        """What was measured, what was predicted, and every hypothesis."""
        found, observed = self.found, self.found.observation
        return {
            "schema_version": _SCHEMA_VERSION,
            "title": found.job.title,
            "measured_step_s": observed.step_s,
            "measured_memory_bytes": observed.memory_bytes,
            "memory_kind": observed.memory_kind,
            "predicted_step_s": found.result.step_time_s,
            "predicted_memory_bytes": observed.held_bytes(found.result),
            "inside_interval": found.is_inside,
            "agrees": found.agrees,
            "nothing_probability": found.nothing_probability,
            "unlisted_probability": found.unlisted_probability,
            "is_explained": found.is_explained,
            "hypotheses": [
                {
                    "change": each.words,
                    "probability": each.probability,
                    "step_time_s": each.result.step_time_s,
                    "memory_bytes": observed.held_bytes(each.result),
                    "fields": dict(each.change.fields),
                    "check": each.check,
                }
                for each in found.hypotheses
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per hypothesis: change, probability, step_time_s, memory_bytes, check."""
        return frame(self.to_dict()["hypotheses"])

    def page(self) -> AnswerPage:
        """The hypotheses, the likeliest first, and how to check each."""
        from simulator.planning.run_diagnosis import AGREES

        found, observed = self.found, self.found.observation
        off = signed_percent(observed.step_s / found.result.step_time_s - 1)
        measured, predicted = map(format_seconds, (observed.step_s, found.result.step_time_s))
        rows = [
            cells(
                [
                    each.words,
                    each.check,
                    percent(each.probability),
                    format_seconds(each.result.step_time_s),
                    format_bytes(observed.held_bytes(each.result)),
                ]
            )
            for each in found.hypotheses[:10]
        ]
        numbers = ("probability", "step with it", f"{observed.memory_kind} memory with it")
        heads = columns(("possible cause", "how to check"), numbers)
        nothing = percent(found.nothing_probability)
        return AnswerPage(
            title=f"Why does the run differ from its prediction? {found.job.title}",
            sentences=[
                f"Measured {measured}, predicted {predicted}: {off}.",
                *([AGREES] if found.agrees else []),
                f"With a probability of {nothing}, there is no hidden cause: predictions often "
                "differ this much; with one of "
                f"{percent(found.unlisted_probability)}, the cause is none of this list.",
            ],
            tables=[Table("Possible causes", "Each cause is simulated alone", heads, rows)],
            job_yaml=job_yaml(found.job),
        )


def diagnose(
    job: Job,
    step_s: float,
    *,
    memory_bytes: float | None = None,
    memory_kind: MemoryKind = "reserved",
    phases_s: Mapping[str, float] | None = None,
    trace: str | Path | None = None,
    error_share: float | None = None,
    workers: int | None = None,
    on_trial: Callable[[], None] | None = None,
) -> DiagnoseAnswer:
    """Find likely reasons why a run differs from its prediction, by simulating each.

    Args:
        job: The job that was run.
        step_s: The measured step time [s].
        memory_bytes: The measured peak memory [B].
        memory_kind: Kind of that memory: ``allocated``, ``reserved`` or ``device``; ``device`` is
            shown where none was measured.
        phases_s: Measured parts of the step, by their name in the breakdown [s]; ``backward``
            includes ``recompute`` where that is not given.
        trace: One rank's profile of torch.profiler, in place of the phases.
        error_share: Standard deviation of prediction errors of this system, as a share.
        workers: Number of processes; by default one per core.
        on_trial: Called after each simulation.

    Raises:
        InputError: The job cannot run, the trace is of another job, the step is farther from
            the predicted one than predictions are off, or no GPU has that much memory.
    """
    from simulator.planning.executors import worker_pool
    from simulator.planning.observed_run import Observation, TraceTimes, phase_times
    from simulator.planning.run_diagnosis import diagnose as diagnosis_of
    from simulator.planning.run_diagnosis import errors_of, suspects
    from simulator.results.own_runs import implausible_step
    from simulator.results.simulation import run_step

    times: TraceTimes | PhaseTimes | None = None
    if trace is not None and phases_s:
        hint = "remove the phases: a trace holds all of them"
        raise InputError.single("phases_s", "cannot be combined with a trace", hint=hint)
    if trace is not None:
        times = TraceTimes.read(Path(trace), job)
    elif phases_s:
        times = phase_times(dict(phases_s), step_s)
    result = run_step(job)
    if fault := implausible_step("step", step_s, result.step_time_s):
        raise InputError([fault])
    if memory_bytes is not None:
        _refuse_more_than_there_is(job, memory_bytes)
    traced = times if isinstance(times, TraceTimes) else None
    with worker_pool(workers) as (executor, processes):
        tried = suspects(
            job, result, trace=traced, executor=executor, processes=processes, on_trial=on_trial
        )
    shown_kind = "device" if memory_bytes is None else memory_kind
    observation = Observation(step_s, memory_bytes, shown_kind, times)
    errors = errors_of(job, result, error_share)
    return DiagnoseAnswer(diagnosis_of(job, result, tried, observation, errors))


def _refuse_more_than_there_is(job: Job, memory_bytes: float) -> None:
    most_bytes = max(kind.profile.device.memory_bytes for kind in job.cluster.kinds)
    if memory_bytes > _ROUNDED_UP * most_bytes:
        rule = f"is more than a GPU has, {format_bytes(most_bytes)}"
        hint = "give the peak of one GPU, and check its unit"
        raise InputError.single("memory", rule, format_bytes(memory_bytes), hint)


def _nothing() -> None:
    return


def runs_table(found: OwnSystem) -> Table:
    """Every run of the user's own before and after."""
    numbers = (
        "measured", "predicted", "width of its interval", "predicted after calibration",
        "width after calibration",
    )  # fmt: skip
    rows = [
        cells(
            (
                each.run.name,
                format_seconds(each.run.measured_s),
                format_seconds(each.run.predicted_s),
                percent(each.band_before, 0),
                format_seconds(each.after_s),
                percent(each.band_after, 0),
            )
        )
        for each in found.runs
    ]
    return Table("Runs", "", columns(("run",), numbers), rows)


@dataclass(frozen=True, repr=False)
class CalibrateAnswer(Answer):
    """A profile fitted to measured runs; ``found`` holds the numbers and every run."""

    found: OwnSystem

    def to_dict(self) -> dict[str, Any]:
        """The numbers before and after, and every run before and after."""
        found = self.found
        return {
            "profile": found.profile,
            "framework": found.framework,
            "learnt": {
                path: {"before": found.before[path], "after": after}
                for path, after in found.fields.items()
            },
            "runs": [
                {
                    "name": each.run.name,
                    "measured_step_s": each.run.measured_s,
                    "predicted_before_s": each.run.predicted_s,
                    "predicted_after_s": each.after_s,
                    "band_width_before": each.band_before,
                    "band_width_after": each.band_after,
                    "contradicts": each.contradicts,
                }
                for each in found.runs
            ],
            "skipped": [{"name": name, "reason": reason} for name, reason in found.skipped.items()],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per run: measured_step_s, predicted_before_s, predicted_after_s."""
        return frame(self.to_dict()["runs"])

    def write_profile(self, path: str | Path, reference: str = "measured runs") -> Path:
        """Write the calibrated profile, with ``reference`` as the source of its numbers."""
        from simulator.files import write_whole

        write_whole(Path(path), self.found.text(reference))
        return Path(path)

    def page(self) -> AnswerPage:
        """Every run before and after."""
        found = self.found
        title = f"{found.profile}, calibrated with {found.framework} runs"
        changed = f"{len(found.fields)} numbers of the profile changed."
        left_out = [f"Left out {name}: {reason}." for name, reason in found.skipped.items()]
        return AnswerPage(title=title, sentences=[changed, *left_out], tables=[runs_table(found)])


def calibrate(
    runs: str | Path | Sequence[tuple[Job, float]],
    profile: str | Path,
    *,
    on_run: Callable[[], None] | None = None,
) -> CalibrateAnswer:
    """Fit the profile of a system to a few measured steps.

    Args:
        runs: A table of jobs and their measured steps (:mod:`simulator.calibrate.own_table`), or
            pairs of a job and its measured step time [s].
        profile: The system: a shipped name or a .yaml file.
        on_run: Called after each run.

    Raises:
        InputError: No run can be simulated, one is farther off than predictions are, or most
            contradict the others.
    """
    from simulator.calibrate.own_system import own_system
    from simulator.calibrate.own_table import job_run, on_system, table_runs
    from simulator.results.simulation import run_step

    name = str(profile)
    if isinstance(runs, (str, Path)):
        return CalibrateAnswer(own_system(name, *table_runs(Path(runs), name, on_run or _nothing)))
    if not runs:
        raise InputError.single("runs", "needs at least one run", hint="give (job, seconds)")
    moved = [(on_system(job, name), measured_s) for job, measured_s in runs]
    known = [(job, job_run(job, run_step(job), measured_s, None)) for job, measured_s in moved]
    return CalibrateAnswer(own_system(name, known))


class Report(Protocol):
    """What every kind of validation returns."""

    def to_dict(self) -> Mapping[str, Any]:
        """The report as JSON writes it: ``rows``, ``summary`` and more tables."""


@dataclass(frozen=True, repr=False)
class ValidateAnswer(Answer):
    """Predictions compared with measurements."""

    report: Report

    def to_dict(self) -> dict[str, Any]:
        """Rows, summary, and errors by group."""
        return dict(self.report.to_dict())

    def to_frame(self) -> pd.DataFrame:
        """One row per measurement, with its prediction."""
        return frame([dict(row) for row in self.to_dict()["rows"]])

    @property
    def summary(self) -> Mapping[str, Any]:
        """Mean, median and worst error, and how many rows could not run."""
        found: Mapping[str, Any] = self.to_dict()["summary"]
        return found

    def page(self) -> AnswerPage:
        """The summary and every row."""
        document = self.to_dict()
        names = list(document["rows"][0]) if document["rows"] else []
        rows = [cells(map(cell_text, row.values())) for row in document["rows"]]
        totals = [(str(name), cell_text(value)) for name, value in self.summary.items()]
        return AnswerPage(
            title="Predictions compared with measurements",
            sentences=[f"{len(rows)} rows."],
            tables=[Table("Rows", "", columns(names), rows)],
            headline=totals,
        )


def cell_text(value: object) -> str:
    """A cell of a table of predictions beside measurements."""
    if value is None:
        return ""
    if isinstance(value, (tuple, list)):
        return " to ".join(map(cell_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def validate(
    table: str | Path,
    kind: str = "published",
    *,
    anchor: int = 0,
    profile: str | None = None,
    grades: Sequence[str] = (),
    executor: Executor | None = None,
    on_row: Callable[[object], None] | None = None,
) -> ValidateAnswer:
    """Compare predictions with measurements.

    Args:
        table: Table of measurements, as the commands ``clustersim validate`` read it.
        kind: What the rows are: training runs, collectives, kernels, or serving runs.
        anchor: For training runs: number of runs per source that calibrate before the others are
            predicted.
        profile: For kernels: the profile that predicts every row; by default that of the row's GPU.
        grades: For serving: use rows of these grades only.
        executor: Executor that simulates training and serving runs; None simulates in this process.
        on_row: Called after each row.

    Raises:
        InputError: The table cannot be read.
    """
    path = Path(table)
    if kind == "published":
        return ValidateAnswer(_published(path, anchor, executor, on_row))
    if kind == "collectives":
        from simulator.validate.collective_errors import validate_collectives

        return ValidateAnswer(validate_collectives(path))
    if kind == "kernels":
        from simulator.described.load import load_profile
        from simulator.validate.kernel_errors import validate_kernels

        own = None if profile is None else load_profile(profile)
        return ValidateAnswer(validate_kernels(path, profile=own))
    if kind == "serving":
        from simulator.validate.serving import validate_serving

        found = validate_serving(path, grades=grades, executor=executor, on_row=on_row or _ignore)
        return ValidateAnswer(found)
    raise InputError.single("kind", f"must be one of {', '.join(KINDS)}", kind)


def _published(
    path: Path, anchor: int, executor: Executor | None, on_row: Callable[[object], None] | None
) -> Report:
    from simulator.validate.published.anchored_runs import validate_anchored
    from simulator.validate.published.published_runs import validate_published

    if anchor:
        return validate_anchored(path, anchor, executor=executor, on_row=on_row or _ignore)
    return validate_published(path, executor=executor, on_row=on_row or _ignore)


def _ignore(_: object) -> None:
    return
