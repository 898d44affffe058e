"""How far are captured steps and the simulator's own programs from published runs?

The captures are kept in ``reports/captures``, because making them needs the code of others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from reports.make.captures.cases import CASES_FILE
from simulator.capture.file import read_capture
from simulator.capture.result import simulate_capture
from simulator.capture.table import Capture
from simulator.cells import Row
from simulator.described.documents import read_yaml
from simulator.errors import InputError
from simulator.program.ir import Category
from simulator.validate.published.published_runs import read_rows, simulated

_REPORTS = Path(__file__).parents[2]
CAPTURES = _REPORTS / "captures"
_TABLES = ("runs_open.csv", "runs_opened.csv")


@dataclass(frozen=True)
class PublishedCapture:
    """One published run, both ways.

    Attributes:
        row: Of the table.
        measured_s, captured_s, own_s: Seconds of a step.
        captured_gib, own_gib: What the allocator reserves [GiB].
    """

    row: Row
    measured_s: float
    captured_s: float
    own_s: float
    captured_gib: float
    own_gib: float

    @property
    def errors_pct(self) -> tuple[float, float]:
        """Of the captured step and of the own program's [%]."""
        captured, own = (100 * (s / self.measured_s - 1) for s in (self.captured_s, self.own_s))
        return captured, own

    def line(self) -> str:
        """Its line of the table, in Markdown."""
        row, (captured_pct, own_pct) = self.row, self.errors_pct
        words = [row["model"], f"{row['seq_len']} tokens", row["precision"]]
        words += [
            f"{name} {row[name]}" for name in ("tp", "cp", "ep") if row[name] not in {"", "1"}
        ]
        cells = (
            f"{row['id']}: {', '.join(words)}, recompute {row['recompute']}",
            f"{row['gpus']} x {row['profile']}",
            f"{self.measured_s:.3f} s",
            f"{self.captured_s:.3f} s, {captured_pct:+.1f} %",
            f"{self.own_s:.3f} s, {own_pct:+.1f} %",
            f"{row['measured_mem_gib'] or '-'}, {self.captured_gib:.1f}, {self.own_gib:.1f}",
        )
        return f"| {' | '.join(cells)} |"


def published_rows() -> dict[str, Row]:
    """Rows of the tables by their names."""
    return {row["id"]: row for name in _TABLES for row in read_rows(_REPORTS / "data" / name)}


def published_file() -> dict[str, Any]:
    """What is captured of which run, and how."""
    return read_yaml(CASES_FILE)


def both_ways(row: Row, capture: Capture, microbatches: int = 1) -> PublishedCapture:
    """A run on its system, by a capture and as a job.

    Args:
        row: The run.
        capture: Of its step, or of one microbatch and the optimizer's step.
        microbatches: How often the step has what was captured, but for the optimizer's time.

    Raises:
        InputError: The row states no job.
    """
    own = simulated(row)
    if own.job is None or own.result.predicted_step_s is None:
        raise InputError.single("published", f"is not predicted: {own.result.skipped}", row["id"])
    found = simulate_capture(capture, own.job.cluster.profile, int(row["gpus"]))
    optimizer_s = found.breakdown_s.get(Category.OPTIMIZER, 0.0)
    return PublishedCapture(
        row,
        float(row["measured_step_s"]),
        microbatches * (found.step_time_s - optimizer_s) + optimizer_s,
        own.result.predicted_step_s,
        max(each.peak_reserved_bytes for each in found.memory) / 2**30,
        own.result.predicted_mem_gib or 0.0,
    )


def kept_capture(name: str) -> Capture:
    """The capture in ``reports/captures``."""
    return read_capture(CAPTURES / f"{name}.capture")


def published_section() -> Iterator[str]:
    """Lines of the page's section, in Markdown."""
    given, rows = published_file(), published_rows()
    yield from runs_and_errors(
        [both_ways(rows[run], kept_capture(name)) for run, name in given["published"].items()]
    )
    yield ""
    yield from not_captured_lines(given["not_captured"])


def runs_and_errors(found: Sequence[PublishedCapture]) -> Iterator[str]:
    """A table of runs and one of their errors, in Markdown."""
    yield "| run | GPUs | measured | captured | own program | memory measured, captured, own |"
    yield "|---|---|---:|---:|---:|---|"
    yield from (each.line() for each in found)
    yield ""
    yield from _summary(found)


def _summary(found: Sequence[PublishedCapture]) -> Iterator[str]:
    """Mean and median of the errors' sizes, by source and of all."""
    by_source: dict[str, list[PublishedCapture]] = defaultdict(list)
    for each in found:
        by_source[each.row["id"].rsplit("-", 1)[0]].append(each)
    yield "| rows | captured: mean, median | own program: mean, median |"
    yield "|---|---:|---:|"
    for source, some in ({**by_source, "all": found} if len(by_source) > 1 else by_source).items():
        both = zip(*(each.errors_pct for each in some), strict=True)
        sizes = ([abs(error) for error in errors] for errors in both)
        cells = (f"{fmean(each):.1f} %, {median(each):.1f} %" for each in sizes)
        yield f"| {source}, {len(some)} | {' | '.join(cells)} |"


def not_captured_lines(reasons: Mapping[str, str]) -> Iterator[str]:
    """The rows that were not captured, by reason."""
    runs: dict[str, list[str]] = defaultdict(list)
    for run, reason in reasons.items():
        runs[reason].append(run)
    if runs:
        yield "Not captured:"
        yield ""
    yield from (f"- {', '.join(names)}: {reason}" for reason, names in runs.items())
