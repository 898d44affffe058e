"""How is a profile of Nsight Systems read, exported as SQLite (``nsys export --type sqlite``)?

Its tables become the events that torch's profiler would have written: kernels, copies, launches,
and the ranges that a program marks with NVTX, ``torch.autograd.profiler.emit_nvtx`` among them.
Steps are ranges called ``step N``, ``iteration N`` or ``ProfilerStep#N``.

Source:
    Nsight Systems' user guide, "SQLite Schema Reference": names of tables and columns, times in
    nanoseconds, kinds of copies as CUPTI numbers them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from simulator.errors import InputError
from simulator.validate.measured_trace.trace_events import Event

SIGNATURE = b"SQLite format 3\x00"

_KERNELS, _COPIES, _FILLS, _LAUNCHES, _RANGES, _GPUS, _NAMES = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "TARGET_INFO_GPU", "StringIds",
)  # fmt: skip

_COPY_NAMES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}

_OPERATORS = ("aten::", "autograd::", "c10d::", "torch::")

_STEP = re.compile(r"(?:training[ _])?(?:step|iter|iteration)[ _#:=]*(\d{1,15})$", re.IGNORECASE)


class NsightExport:
    """A profile, read once; see :class:`~simulator.validate.measured_trace.trace_events.TraceFile`.

    Attributes:
        header: Which GPU it is of, once all events are read.
    """

    def __init__(self, path: Path) -> None:
        self.header: dict[str, Any] = {}
        self._path = path
        self._tables: Mapping[str, frozenset[str]] = {}

    def events(self) -> Iterator[Event]:
        """Every event, table by table.

        Raises:
            InputError: It is no such export, or damaged.
        """
        address = f"file:{quote(str(self._path))}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as database:
                database.execute("PRAGMA trusted_schema=OFF")
                database.text_factory = lambda raw: raw.decode("utf-8", "replace")
                self._tables = _columns(database)
                if _KERNELS not in self._tables or _NAMES not in self._tables:
                    self._refuse(f"has no tables {_KERNELS} and {_NAMES}")
                yield from self._gpu_events(database)
                yield from self._host_events(database)
                self._read_header(database)
        except sqlite3.Error as error:
            self._refuse(f"cannot be read: {error}")

    def _gpu_events(self, database: sqlite3.Connection) -> Iterator[Event]:
        selected = (
            f"SELECT k.start, k.end, n.value, k.correlationId, k.deviceId FROM {_KERNELS} k "
            f"JOIN {_NAMES} n ON n.id = k.demangledName"
        )
        for start, end, name, correlation, device in database.execute(selected):
            yield _event("kernel", name, start, end, correlation=correlation, device=device)
        for table, category in ((_COPIES, "gpu_memcpy"), (_FILLS, "gpu_memset")):
            kind = "copyKind" if table == _COPIES else "0"
            if table in self._tables:
                selected = f"SELECT start, end, {kind}, correlationId, deviceId FROM {table}"
                for start, end, copy, correlation, device in database.execute(selected):
                    name = _COPY_NAMES.get(copy, "Memset" if table == _FILLS else "Memcpy")
                    yield _event(category, name, start, end, correlation=correlation, device=device)

    def _host_events(self, database: sqlite3.Connection) -> Iterator[Event]:
        if _LAUNCHES in self._tables:
            selected = f"SELECT start, end, correlationId, globalTid FROM {_LAUNCHES}"
            for start, end, correlation, thread in database.execute(selected):
                event = _event("cuda_runtime", "launch", start, end, correlation=correlation)
                yield event | {"tid": thread}
        if _RANGES in self._tables:
            has_ids = "textId" in self._tables[_RANGES]
            text = f"coalesce(r.text, (SELECT value FROM {_NAMES} WHERE id = r.textId))"
            selected = (
                f"SELECT r.start, r.end, {text if has_ids else 'r.text'}, r.globalTid "
                f"FROM {_RANGES} r WHERE r.end IS NOT NULL"
            )
            for start, end, words, thread in database.execute(selected):
                yield _range(str(words or ""), start, end) | {"tid": thread}

    def _read_header(self, database: sqlite3.Connection) -> None:
        if "name" in self._tables.get(_GPUS, ()):
            names = [name for (name,) in database.execute(f"SELECT name FROM {_GPUS} LIMIT 1")]
            self.header["deviceProperties"] = [{"name": name} for name in names]

    def _refuse(self, rule: str) -> NoReturn:
        hint = "export it with: nsys export --type sqlite REPORT.nsys-rep"
        raise InputError.single("", rule, file=str(self._path), hint=hint)


def _columns(database: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Columns of every table; what only looks like one, such as a view, is left out."""
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        name: frozenset(
            column
            for (column,) in database.execute("SELECT name FROM pragma_table_info(?)", [name])
        )
        for (name,) in found
    }


def _event(category: str, name: str, start_ns: int, end_ns: int, **args: Any) -> Event:
    try:
        start_us, length_us = start_ns / 1e3, (end_ns - start_ns) / 1e3
    except TypeError as error:
        raise sqlite3.DataError(f"{category} without start and end") from error
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": length_us,
            "args": args}  # fmt: skip


def _range(words: str, start_ns: int, end_ns: int) -> Event:
    name = words.partition(",")[0].strip()
    if name.startswith(_OPERATORS):
        return _event("cpu_op", name, start_ns, end_ns)
    step = _STEP.match(name)
    return _event(
        "user_annotation", f"ProfilerStep#{step.group(1)}" if step else name, start_ns, end_ns
    )
