"""Which runs does a table of a user's own hold?

Two kinds of tables are read. In one, each row names a job file (``job``); columns with a dot in
their name change fields of it, as ``--set`` does. So a row is exactly the job that other commands
run. The other has the columns of published runs (``reports/data/runs_open.csv``), whose frameworks
are told by words.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from simulator.cells import Row, measured_si, read_table
from simulator.described.documents import parse_yaml
from simulator.described.job import Job
from simulator.described.load import load_job, load_profile, profile_names
from simulator.errors import Fault, InputError
from simulator.results.own_runs import OwnRun
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.results.step_error import job_teaching_exposure, traits_of
from simulator.validate.published.anchored_runs import own_run
from simulator.validate.published.published_runs import read_rows, simulated

_COLUMNS = ("job", "measured_step_s")
_OTHERS = ("id", "measured_mem_gib", "notes")
"""Columns without a dot that a table with jobs may have."""
_NO_STEP = "measured_step_s: is empty"


class TableRuns(NamedTuple):
    """What a table says of a system.

    Attributes:
        runs: Each run that can be learnt from, with its job.
        skipped: Why the other rows cannot, by their name.
    """

    runs: list[tuple[Job, OwnRun]]
    skipped: dict[str, str]


def table_runs(table: Path, profile: str, on_row: Callable[[], None]) -> TableRuns:
    """Every row of a table as a run on a system, and the rows that are none.

    Args:
        table: With either kind of columns.
        profile: Name or file of the system's profile.
        on_row: Called after each row, for progress.

    Raises:
        InputError: The table cannot be read, or no row can be learnt from.
    """
    found = TableRuns([], {})
    read = _job_rows if _names_jobs(table) else _published_rows
    for name, run in read(table, profile):
        if isinstance(run, str):
            found.skipped[name] = run
        else:
            found.runs.append(run)
        on_row()
    if not found.runs:
        faults = [Fault(name, reason, file=str(table)) for name, reason in found.skipped.items()]
        raise InputError(faults or [Fault("", "has no rows", file=str(table))])
    return found


Read = Iterator[tuple[str, tuple[Job, OwnRun] | str]]
"""Name of each row, and its job and run, or why there is nothing to learn from it."""


def _published_rows(table: Path, profile: str) -> Read:
    for row in read_rows(table):
        if not row["measured_step_s"].strip():
            yield row["id"], _NO_STEP
            continue
        found = simulated(row, adjusted=lambda job: on_system(job, profile))
        run = own_run(found)
        if found.job is None or run is None:
            yield row["id"], found.result.skipped
        else:
            yield row["id"], (found.job, run)


def _names_jobs(table: Path) -> bool:
    try:
        with table.open(encoding="utf-8", newline="") as file:
            return "job" in next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False  # the reader of tables says why


def system_of_jobs(table: Path) -> str | None:
    """The shipped profile that all jobs of a table name; None where there is no such one."""
    if not _names_jobs(table):
        return None
    found = set()
    for name in {row["job"] for row in read_table(table, _COLUMNS)}:
        with suppress(InputError):  # that the row cannot run is said where runs are read
            found.add(_job_of(name, table.parent, {}).document["cluster"].get("profile"))
    return found.pop() if len(found) == 1 and found <= {*profile_names()} else None


def _job_of(name: str, folder: Path, changes: dict[str, Any]) -> Job:
    """The job that a row names, by a path from the table's folder or by a shipped name."""
    path = folder / name
    return load_job(path if path.is_file() else name, changes)


def _job_rows(table: Path, profile: str) -> Read:
    rows = read_table(table, _COLUMNS)
    unknown = [each for each in rows[0] if "." not in each and each not in (*_COLUMNS, *_OTHERS)]
    if unknown:
        hint = "a column that changes a field has its whole path, such as plan.tp or batch.micro"
        raise InputError(
            [Fault(name, "is not a field", hint=hint, file=str(table)) for name in unknown]
        )
    for row in rows:
        changes = {path: row[path].strip() for path in row if "." in path and row[path].strip()}
        words = [f"{path}={value}" for path, value in changes.items()]
        name = row.get("id") or " ".join([row["job"], *words])
        try:
            read = _job_row(row, changes, table.parent, profile)
            yield name, read if isinstance(read, str) else (read[0], replace(read[1], name=name))
        except InputError as error:
            reasons = (f"{fault.path}: {fault.rule}".removeprefix(": ") for fault in error.faults)
            yield name, "; ".join(reasons)


def _job_row(
    row: Row, changes: dict[str, str], folder: Path, profile: str
) -> tuple[Job, OwnRun] | str:
    measured_s = measured_si(row, "measured_step_s", "s", "s")
    if measured_s is None:
        return _NO_STEP
    values: dict[str, Any] = {path: parse_yaml(text, path) for path, text in changes.items()}
    job = on_system(_job_of(row["job"], folder, values), profile)
    held_bytes = measured_si(row, "measured_mem_gib", "GiB", "bytes")
    return job, job_run(job, run_step(job), measured_s, held_bytes)


def on_system(job: Job, profile: str) -> Job:
    """The job with a profile of its own system.

    Raises:
        InputError: It ran on another one, or on several.
    """
    wanted, has = load_profile(profile).name, job.cluster.profile.name
    if job.cluster.pools or wanted != has:
        rule, hint = f"is not {wanted}", "calibrate each system separately"
        raise InputError.single("profile", rule, has, hint)
    is_file = profile.endswith((".yaml", ".yml"))
    return job.replace({"cluster.profile": str(Path(profile).resolve()) if is_file else profile})


def job_run(job: Job, step: StepResult, measured_s: float, measured_bytes: float | None) -> OwnRun:
    """One measured job as a run; its memory is that of the device."""
    exposed = job_teaching_exposure(job, step.step_time_s, step.breakdown_s)
    held_bytes = None if measured_bytes is None else step.peak_device_bytes
    return OwnRun(
        job.title, measured_s, step.step_time_s, exposed, traits_of(job), measured_bytes, held_bytes
    )
