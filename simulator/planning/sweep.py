"""How does a job fare over a grid of changes?

Every combination is a what-if of its own; one that cannot run, or whose worker dies, becomes
a row that says why. The work goes to any ``concurrent.futures`` executor, and the rows do
not depend on it.

Every finished row is appended, as one line of JSON, to a journal beside the table, so that a sweep
that was killed continues where it stopped. A line that was cut off is dropped; its row is computed
again. The first line says which sweep the rows belong to.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from simulator.described.faults import NO_SUCH_FIELD
from simulator.described.job import Job
from simulator.errors import Fault, InputError
from simulator.results.simulation import Engine, check_step, run_step
from simulator.version import __version__

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd


Row = dict[str, Any]

_LOCK_PATIENCE_S = 3.0
"""How long a journal that another process holds is asked for."""


def fingerprint(part: object) -> str:
    """A short text that differs where the plain data differs."""
    import hashlib

    text = json.dumps(part, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def journal_path(table: Path) -> Path:
    """The journal of a table: beside it, with one more suffix."""
    return table.with_name(f"{table.name}.journal")


class Journal:
    """Rows that are finished, kept on disk one by one; a context manager.

    Args:
        path: The journal's file; made if it is not there.
        identity: What the rows belong to, as fingerprints by name, for example ``job``.

    Raises:
        InputError: The file holds the rows of another sweep, or cannot be read or written.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path = path
        self.rows: dict[int, Row] = {}
        """Finished rows by their number, those of earlier runs first."""
        self._identity = dict(identity)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._open()
        try:
            whole_bytes = self._read()
            if self.path.stat().st_size > whole_bytes:
                self._truncate(whole_bytes)
            if not whole_bytes:
                self._write(self._identity)
        except OSError as error:
            self._close()
            raise self._unwritable(error) from error
        except InputError:
            self._close()
            raise
        return self

    @classmethod
    def clear(cls, path: Path) -> None:
        """Drop what an earlier sweep left.

        Raises:
            InputError: Another sweep is writing it, or nobody may write it.
        """
        if path.exists():
            journal = cls(path, {})
            journal._open()
            journal._truncate(0)
            journal._close()

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            self._lock()
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error
        except InputError:
            self._close()
            raise

    def _truncate(self, num_bytes: int) -> None:
        assert self._file is not None
        self._file.truncate(num_bytes)

    def _unwritable(self, error: OSError | ValueError) -> InputError:
        reason = error.strerror if isinstance(error, OSError) else error
        return InputError.single("--out", f"cannot be written: {reason}", str(self.path))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._unlock()
            self._file.close()

    def add(self, number: int, row: Row) -> None:
        """Keep a finished row; once this returns, the end of the process cannot lose it."""
        self.rows[number] = row
        self._write({"number": number, "row": row})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, default=str).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self) -> None:
        """Keep others from writing the same rows until this process closes the file or ends.

        Worker processes of a sweep that was just killed hold its lock until they end, so that
        a lock that is held is asked for again for ``_LOCK_PATIENCE_S``.
        """
        assert self._file is not None
        try:
            import fcntl
        except ImportError:  # a system without such locks
            return
        give_up_s = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= give_up_s:
                    rule = "is being written by another sweep"
                    hint = "wait for it, or choose another --out"
                    raise InputError.single("--out", rule, str(self.path), hint) from error
                time.sleep(0.05)
            except OSError:  # a file system without such locks
                return
            else:
                return

    def _unlock(self) -> None:
        """Let others write; worker processes may keep copies of the open file for a moment."""
        assert self._file is not None
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_UN)
        except (ImportError, OSError):  # there was no lock
            return

    def _read(self) -> int:
        """Take over the rows of earlier runs; returns how many bytes of whole lines are kept.

        Those of another sweep none of whose combinations could run are worth nothing.
        """
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:
            return 0
        try:
            changed = self._changed(json.loads(lines[0]))
            rows = dict(_journal_entry(json.loads(line)) for line in lines[1:])
            if changed and rows and all(row.get("error") for row in rows.values()):
                return 0
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._refusal("is not a journal of a sweep") from error
        if changed:
            raise self._refusal(f"belongs to another sweep, of another {' and '.join(changed)}")
        self.rows = rows
        return len(whole)

    def _changed(self, identity: Mapping[str, str]) -> list[str]:
        return [name for name in self._identity if identity.get(name) != self._identity[name]]

    def _refusal(self, rule: str) -> InputError:
        hint = "choose another --out, or add --fresh to discard its rows"
        return InputError.single("--out", rule, str(self.path), hint)


def _journal_entry(entry: Mapping[str, Any]) -> tuple[int, Row]:
    """Number and row of a line.

    Raises:
        ValueError: It is not a row of a sweep; none is empty.
    """
    number, row = entry["number"], entry["row"]
    if not isinstance(number, int) or not isinstance(row, dict) or not row:
        raise ValueError("is not a row")
    return number, row


Grid = Mapping[str, Sequence[Any]]
"""Values to try by dotted path. Several paths, separated by commas, move together: their
values are sequences with one entry per path."""

_OF_THE_STEP = (
    "step_time_s", "tokens_per_s_per_gpu", "mfu", "bubble_fraction", "peak_allocated_bytes",
    "peak_device_bytes", "fits", "fits_probability",
)  # fmt: skip
_RESULTS = (*_OF_THE_STEP, "error")
"""Columns of a sweep's table after those of the grid."""


def varied_fields(table: pd.DataFrame) -> list[str]:
    """Columns of a sweep's table that hold what was varied."""
    return [name for name in table.columns if name not in _RESULTS]


_Changes = dict[str, Any]
_Outcomes = Iterator[tuple[int, Row | Exception]]


def sweep(
    job: Job,
    grid: Grid,
    executor: Executor | None = None,
    *,
    engine: Engine = "des",
    workers: int = 1,
    table: str | Path | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> pd.DataFrame:
    """Simulate a job under every combination of the grid's values, in the grid's order.

    Args:
        job: The job to vary.
        grid: Values by dotted path, for example ``{"plan.tp": [1, 2, 4, 8]}``, or with fields that
            change together ``{"plan.tp,plan.pp": [(1, 8), (8, 1)]}``.
        executor: Executor that simulates the steps, for example that of a Dask or MPI cluster.
        engine: Engine that simulates the steps.
        workers: Processes of this machine that simulate if no executor is given; with 1
            everything happens in this process.
        table: File that the caller will write the table to. Finished rows are kept in a journal
            beside it, from which the same sweep continues.
        on_row: Called with each row as it becomes known, those of the journal first.

    Returns:
        A table with the grid's paths and step_time_s, tokens_per_s_per_gpu, mfu,
        bubble_fraction, peak_allocated_bytes, peak_device_bytes, fits, fits_probability, and
        error (empty unless the combination cannot run).

    Raises:
        InputError: The grid or one of its paths is wrong, or the journal belongs to another
            sweep.
    """
    import pandas as pd

    check_step(job, engine)
    points = grid_points(grid)
    _check_fields(job, points[0])
    kept = nullcontext() if table is None else _journal(job, grid, engine, Path(table))
    with kept as journal:
        rows = {} if journal is None else dict(journal.rows)
        report = on_row or (lambda _: None)
        for row in rows.values():
            report(row)
        left = [number for number in range(len(points)) if number not in rows]
        row_of = partial(_row, job, engine)
        for position, outcome in _run(row_of, [points[n] for n in left], executor, workers):
            number = left[position]
            row = _failure(points[number], outcome) if isinstance(outcome, Exception) else outcome
            rows[number] = row
            if journal is not None:
                journal.add(number, row)
            report(row)
    columns = [*points[0], *_RESULTS]
    return pd.DataFrame([rows[number] for number in range(len(points))], columns=columns)


def grid_points(grid: Grid) -> list[_Changes]:
    """The changes of every combination, the last path of the grid fastest.

    Raises:
        InputError: There is no path, or one without a list of values, or one that appears twice.
    """
    for path, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            hint = "for example [1, 2, 4]"
            raise InputError.single(path, "must be a list of values to try", values, hint)
    empty = [path for path, values in grid.items() if not values]
    if not grid or empty:
        rule, hint = "needs at least one value to try", "for example plan.tp=1,2,4"
        raise InputError.single(empty[0] if empty else "grid", rule, hint=hint)
    axes = [list(_axis(paths, values)) for paths, values in grid.items()]
    taken = [path for axis in axes for path in axis[0]]
    twice = next((path for path in taken if taken.count(path) > 1), None)
    if twice is not None:
        raise InputError.single(twice, "appears twice in the grid")
    return [
        {path: value for changes in combination for path, value in changes.items()}
        for combination in product(*axes)
    ]


def _axis(paths: str, values: Sequence[Any]) -> Iterator[_Changes]:
    names = [name.strip() for name in paths.split(",")]
    for value in values:
        if len(names) == 1:
            yield {names[0]: value}
            continue
        if not isinstance(value, list | tuple) or len(value) != len(names):
            rule = (
                f"changes {len(names)} fields together, so each value must be a list of as "
                "many values"
            )
            raise InputError.single(paths, rule, value, "for example [1, 8],[8, 1]")
        yield dict(zip(names, value, strict=True))


def _check_fields(job: Job, changes: _Changes) -> None:
    """Refuse a misspelt field once, not in every row."""
    unknown: list[Fault] = []
    for path, value in changes.items():
        try:
            job.replace({path: value})
        except InputError as error:
            faults = error.faults
            unknown += [f for f in faults if f.path == path and f.rule == NO_SUCH_FIELD]
    if unknown:
        raise InputError(unknown)


def _journal(job: Job, grid: Grid, engine: Engine, table: Path) -> Journal:
    """The journal of this sweep and no other: any field of the resolved job counts."""
    identity = {
        "version": __version__,
        "engine": engine,
        "job": fingerprint(job.model_dump(mode="json")),
        "grid": fingerprint([[path, list(values)] for path, values in grid.items()]),
    }
    return Journal(journal_path(table), identity)


def _run(
    row_of: Callable[[_Changes], Row],
    points: Sequence[_Changes],
    executor: Executor | None,
    workers: int,
) -> _Outcomes:
    # Loads what starts processes, which a single simulation does without.
    from simulator.planning.executors import run_on_executor, run_on_processes

    if executor is not None:
        return run_on_executor(row_of, points, executor)
    if workers > 1:
        return run_on_processes(row_of, points, workers)
    return ((number, row_of(point)) for number, point in enumerate(points))


def _row(job: Job, engine: Engine, changes: _Changes) -> Row:
    try:
        changed = job.replace(changes)
        step = run_step(changed, engine)
    except Exception as error:
        return _failure(changes, error)
    found = {name: getattr(step, name) for name in _OF_THE_STEP}
    sizes = {name: round(size) for name, size in found.items() if name.endswith("_bytes")}
    return {**changes, **found, **sizes, "error": ""}


def _failure(changes: _Changes, error: Exception) -> Row:
    """The row of a combination without a result; only its ``error`` is filled in."""
    if isinstance(error, InputError):
        return {**changes, "error": "; ".join(f"{f.path}: {f.rule}" for f in error.faults)}
    return {**changes, "error": f"{type(error).__name__}: {error}"}
