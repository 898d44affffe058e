"""What was predicted for a run before anybody here had seen how long it takes?

Such a prediction is the only one that knobs could not have been turned for. It is kept for ever:
a run that is in the file already keeps what it says.
"""

from __future__ import annotations

import csv
import datetime
import io
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import simulator
from simulator.cells import Row, read_table
from simulator.errors import InputError
from simulator.files import whole_file
from simulator.validate.published.published_runs import PublishedResult
from simulator.version import __version__

COLUMNS = (
    "id", "source", "grade", "seen_by", "seen_on", "measured_step_s", "predicted_step_s",
    "error_pct", "measured_mem_gib", "predicted_mem_gib", "mem_error_pct", "skipped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a table's runs.

    Attributes:
        new: Runs that the file did not have.
        known: Runs that it had; they are as they were.
    """

    new: int
    known: int


def keep_first_sight(
    results: Sequence[PublishedResult],
    rows: Sequence[Row],
    path: Path,
    *,
    seen_on: datetime.date | None = None,
) -> Kept:
    """Append the runs that a file does not have, with what is predicted for them now.

    Args:
        results: The predictions.
        rows: The table that they are of, which names the sources.
        path: CSV with the columns :data:`COLUMNS`; made if it is not there.
        seen_on: Day of the predictions; today if None.

    Raises:
        InputError: The file is none of first sights.
    """
    sources = {row["id"]: row.get("source", "") for row in rows}
    facts = seen(seen_on)
    return keep_lines([_line(each, sources, facts) for each in results], path, COLUMNS)


def keep_lines(lines: Sequence[Row], path: Path, columns: Sequence[str]) -> Kept:
    """Append the lines whose run a file does not have; lines that are there stay as they are.

    Args:
        lines: A line for each run.
        path: CSV with these columns; made if it is not there.
        columns: Names of all columns.

    Raises:
        InputError: The file is none of first sights.
    """
    kept = read_first_sight(path, columns) if path.exists() else []
    known = {row["id"] for row in kept}
    new = [line for line in lines if line["id"] not in known]
    if new:
        _append(path, new, columns)
    return Kept(len(new), len(lines) - len(new))


def seen(day: datetime.date | None = None) -> dict[str, str]:
    """Who predicts, and when; today if no day is given."""
    now = day or datetime.datetime.now(datetime.UTC).date()
    return {"seen_by": _version(), "seen_on": now.isoformat()}


def read_first_sight(path: Path, columns: Sequence[str] = COLUMNS) -> list[Row]:
    """The rows of a file of first sights.

    Raises:
        InputError: It cannot be read, lacks a column, or names a run twice.
    """
    rows = read_table(path, columns)
    name, count = Counter(row["id"] for row in rows).most_common(1)[0]
    if count > 1:
        rule, hint = f"contains one run {count} times", "keep the line that was written first"
        raise InputError.single("id", rule, name, hint, file=str(path))
    return rows


def _line(result: PublishedResult, sources: Mapping[str, str], facts: Mapping[str, str]) -> Row:
    numbers = {
        name: "" if (value := getattr(result, name)) is None else repr(value)
        for name in COLUMNS[5:-1]
    }
    stated = {"id": result.id, "source": sources[result.id], "grade": result.grade}
    return {**stated, **facts, **numbers, "skipped": result.skipped}


def _append(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Lines that are there stay as they are, to the byte."""
    before = path.read_bytes().decode("utf-8") if path.exists() else ""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if not before:
        writer.writeheader()
    writer.writerows(rows)
    with whole_file(path) as draft:
        draft.write_bytes((before + text.getvalue()).encode("utf-8"))


def _version() -> str:
    """The commit of a checkout, the release elsewhere."""
    folder = Path(simulator.__file__).parent.parent
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return __version__
    return found.stdout.strip() if (folder / ".git").exists() else __version__
