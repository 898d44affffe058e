"""How far are predictions from published training runs?

Every row of the table is simulated as a job of its own, from the columns of the table and the
facts in the file beside it, if there is one. Rows that cannot run are listed with the fact that
stands in the way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from simulator import cells
from simulator.cells import OptionalColumns, Row, read_table
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import ClustersimError, Fault, InputError
from simulator.program.ir import Category
from simulator.results.simulation import Engine, run_step
from simulator.results.step import StepResult
from simulator.validate.accuracy import Accuracy, error_pct
from simulator.validate.published.published_models import (
    DIMENSION_COLUMNS,
    assumptions,
    names_shipped_model,
    with_shipped_dimensions,
)
from simulator.validate.published.published_rows import (
    job_document,
    measured_memory_gib,
    memory_kind,
)
from simulator.validate.published.row_facts import with_known_facts

_GIB = 2.0**30

_CANNOT_FIT = 0.05
"""A run that ran and fits less probably than this, did what saves memory and its row leaves out."""

_NEEDED_COLUMNS = (
    "id", "model", *DIMENSION_COLUMNS, "profile", "gpus", "framework", "micro_batch",
    "global_batch", "seq_len", "measured_step_s",
)  # fmt: skip


_DIMENSIONS = OptionalColumns(
    DIMENSION_COLUMNS,
    names_shipped_model,
    "a row whose model is a shipped one (clustersim models list) needs no dimensions",
)


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """One published run, predicted or skipped.

    Attributes:
        id: Name of the row.
        grade: How completely the source states the run, A to C.
        gpu: Hardware profile.
        measured_step_s, predicted_step_s: Seconds per optimizer step.
        error_pct: Signed error of the step time [%].
        band_s: Between which times eight of ten such runs would lie [s].
        measured_mem_gib, predicted_mem_gib: Memory of the fullest GPU, of the kind that
            the row states (allocated, reserved or device).
        mem_error_pct: Signed error of the memory [%].
        ran: Whether it did not run out of memory.
        fits: Whether it is predicted to fit; None without a prediction.
        fits_probability: How likely that is, 0 to 1.
        filled_share: Part of its memory that the fullest GPU is predicted to need.
        anchor: Whether its measurement was used to predict others of its source.
        assumed: Cells that are empty, and what was taken for them; empty where none was needed.
        skipped: Why there is no prediction; empty if there is one.
    """

    id: str
    grade: str
    gpu: str
    measured_step_s: float | None
    predicted_step_s: float | None = None
    error_pct: float | None = None
    band_s: tuple[float, float] | None = None
    measured_mem_gib: float | None = None
    predicted_mem_gib: float | None = None
    mem_error_pct: float | None = None
    ran: bool = True
    fits: bool | None = None
    fits_probability: float | None = None
    filled_share: float | None = None
    anchor: bool = False
    assumed: str = ""
    skipped: str = ""


class FitCounts(NamedTuple):
    """Runs by what happened and what was predicted."""

    ran_and_fits: int
    ran_but_does_not_fit: int
    out_of_memory_but_fits: int
    out_of_memory_and_does_not_fit: int


@dataclass(frozen=True, slots=True)
class PublishedReport:
    """All rows of a table and how well they were predicted."""

    rows: Sequence[PublishedResult]

    @property
    def summary(self) -> Accuracy:
        """Accuracy of the step time over all rows that state one."""
        return step_accuracy(self.rows)

    @property
    def memory_summary(self) -> Accuracy:
        """Accuracy of the memory over the rows that state it."""
        stated = [row for row in self.rows if row.measured_mem_gib is not None]
        return Accuracy.of(row.mem_error_pct for row in stated)

    @property
    def fit_counts(self) -> FitCounts:
        """How many runs were rightly and wrongly said to fit."""
        known = Counter((row.ran, row.fits) for row in self.rows if row.fits is not None)
        return FitCounts(*(known[ran, fits] for ran in (True, False) for fits in (True, False)))

    def groups(self, key: Callable[[PublishedResult], str]) -> dict[str, Accuracy]:
        """Accuracy of the step time by group, sorted."""
        names = sorted({key(row) for row in self.rows})
        return {name: step_accuracy(r for r in self.rows if key(r) == name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON: ``rows`` and ``summary``."""
        memory = self.memory_summary
        summary = asdict(self.summary) | {"mem_n": memory.n, "mem_mape": memory.mape}
        return {
            "rows": [asdict(row) | {"skipped": row.skipped or None} for row in self.rows],
            "summary": summary,
            "fits": self.fit_counts._asdict(),
            "by_grade": {k: asdict(v) for k, v in self.groups(lambda row: row.grade).items()},
            "by_source": {
                k: asdict(v) for k, v in self.groups(lambda row: row_source(row.id)).items()
            },
        }


def step_accuracy(results: Iterable[PublishedResult]) -> Accuracy:
    """Accuracy of the step time over the runs that state one or were skipped, but no anchors."""
    stated = (r for r in results if r.skipped or r.measured_step_s is not None)
    counted = (r for r in stated if not r.anchor)
    return Accuracy.of(r.error_pct for r in counted)


def validate_published(
    csv_path: str | Path,
    *,
    engine: Engine = "des",
    executor: Executor | None = None,
    on_row: Callable[[PublishedResult], None] | None = None,
) -> PublishedReport:
    """Predictions for every row of a table of training runs beside what was measured.

    Args:
        csv_path: Table with the columns described in ``reports/data/README.md``.
        engine: How steps are simulated.
        executor: Where rows are simulated; in this process if None.
        on_row: Called with each finished row, the longest first, for progress.

    Raises:
        InputError: The table cannot be read or lacks a column.
    """
    rows = read_rows(Path(csv_path))
    # A long row that begins last would keep one worker busy while the others are done.
    order = sorted(range(len(rows)), key=lambda number: -_passes(rows[number]))
    sorted_rows, engines = [rows[number] for number in order], [engine] * len(rows)
    predict = executor.map if executor else map
    finished: dict[int, PublishedResult] = {}
    for number, result in zip(order, predict(predicted, sorted_rows, engines), strict=True):
        finished[number] = result
        if on_row:
            on_row(result)
    return PublishedReport([finished[number] for number in range(len(rows))])


class Simulated(NamedTuple):
    """One row, its job and its step; both are None where it cannot run."""

    result: PublishedResult
    job: Job | None = None
    step: StepResult | None = None


Adjust = Callable[[Job], Job]
"""What is known of a run's system besides: the job with it."""


def predicted(row: Row, engine: Engine = "des") -> PublishedResult:
    """One row, simulated; a row that cannot run says why."""
    return simulated(row, engine).result


def simulated(row: Row, engine: Engine = "des", adjusted: Adjust = lambda job: job) -> Simulated:
    """The same, with its job, which may be adjusted, and its step."""
    ran = memory_kind(row) != "oom"
    result = PublishedResult(row["id"], row.get("grade", ""), row["profile"], None, ran=ran)
    try:
        result = replace(
            result,
            measured_step_s=cells.measured(row, "measured_step_s"),
            measured_mem_gib=measured_memory_gib(row),
            assumed=", ".join(assumptions(row)),
        )
        job = adjusted(job_from_document(job_document(row)))
        step = run_step(job, engine)
        if ran and _leaves_recomputation_open(row, job) and step.fits_probability < _CANNOT_FIT:
            fuller = adjusted(job_from_document(job_document({**row, "recompute": "full"})))
            shorter_lived = run_step(fuller, engine)
            if shorter_lived.fits_probability > step.fits_probability:
                job, step = fuller, shorter_lived
                all_assumed = filter(None, (result.assumed, "recompute full"))
                result = replace(result, assumed=", ".join(all_assumed))
    except InputError as error:
        reasons = "; ".join(_reason(fault) for fault in error.faults)
        return Simulated(replace(result, skipped=reasons))
    except (ClustersimError, ArithmeticError, ValueError, KeyError) as error:
        return Simulated(replace(result, skipped=f"{type(error).__name__}: {error}"))
    memory_gib = _peak_bytes(step, memory_kind(row)) / _GIB
    seconds = _timed_s(row, step)
    result = replace(
        result,
        predicted_step_s=seconds,
        error_pct=error_pct(seconds, result.measured_step_s),
        band_s=step.step_time_band_s,
        predicted_mem_gib=memory_gib,
        mem_error_pct=error_pct(memory_gib, result.measured_mem_gib),
        fits=step.fits,
        fits_probability=step.fits_probability,
        filled_share=step.fullest.filled_share,
    )
    return Simulated(result, job, step)


_UNTIMED = (
    r"\bno optimizer step in the time\b"
    r"|\b[Ff]orward and backward (?:passes )?(?:only|alone)\b"
)
"""Phrase in the notes of runs that timed passes without the update of weights."""


def _timed_s(row: Row, step: StepResult) -> float:
    """The part of a step that the row timed: all of it, or all but the update of weights [s]."""
    is_untimed = re.search(_UNTIMED, row.get("notes", ""))
    return step.step_time_s - (step.breakdown_s.get(Category.OPTIMIZER, 0.0) if is_untimed else 0.0)


def _leaves_recomputation_open(row: Row, job: Job) -> bool:
    """Whether nothing says that activations are kept, which is a plan's default."""
    return not cells.word(row, "recompute") and job.plan.recompute == "none"


def _reason(fault: Fault) -> str:
    """The field, the rule, and what was given where the rule does not repeat it."""
    given = "" if fault.value is None else f" (it is {fault.value!r})"
    return f"{fault.path}: {fault.rule}{given}"


def _passes(row: Row) -> float:
    """About how many passes of the pipeline a step has, which is what simulating it costs.

    0 for a row whose numbers are none; it costs nothing.
    """
    names = ("gpus", "global_batch", "micro_batch", "tp", "pp", "cp", "vpp")
    try:
        gpus, sequences, micro, tp, pp, cp, vpp = (float(row.get(n) or 1) for n in names)
        copies = max(1.0, gpus / (tp * pp * cp))
        return sequences / (micro * copies) * pp * vpp
    except (ValueError, ZeroDivisionError):
        return 0.0


def row_source(row_id: str) -> str:
    """The source that a row comes from: its id without the running number."""
    return row_id.rpartition("-")[0] or row_id


def read_rows(path: Path, *, residuals: bool = True) -> list[Row]:
    """The rows of a table of published runs, with the facts of the file beside it.

    Args:
        path: The table.
        residuals: Whether to take facts that were found with errors of these rows in view.

    Raises:
        InputError: The file cannot be read, is empty, or lacks columns.
    """
    rows = read_table(path, _NEEDED_COLUMNS, _DIMENSIONS)
    filled = [with_shipped_dimensions(row) for row in rows]
    return with_known_facts(filled, path, residuals=residuals)


def _peak_bytes(step: StepResult, kind: str) -> float:
    peaks = {"allocated": step.peak_allocated_bytes, "reserved": step.peak_reserved_bytes}
    return peaks.get(kind, step.peak_device_bytes)
