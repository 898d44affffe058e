"""How are the events of a trace read, however large it is?

They are those of torch.profiler, or of Nsight Systems (``nsys export --type sqlite``).
"""

from __future__ import annotations

import codecs
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from simulator.errors import InputError
from simulator.files import Unpacked, why_unreadable

MAX_TEXT_BYTES = 4 * 1024**3
"""Unpacked; more is no trace of a few steps but a trap."""
MAX_VALUE_CHARS = 4 * 1024**2
"""Of one event, or of one field beside the events; real ones have a few hundred."""

_CHUNK_BYTES = 1024**2
_HEADER = frozenset({"distributedInfo", "deviceProperties"})
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_WANTED = "record it with torch.profiler and export_chrome_trace"

Event = dict[str, Any]


class TraceFile:
    """A trace, read once from its beginning to its end.

    Attributes:
        header: Who recorded what, beside the events; whole once all of them are read.
    """

    def __init__(self, path: Path) -> None:
        self.header: dict[str, Any] = {}
        self._path = path
        self._text = ""
        self._place = 0
        self._num_bytes = 0
        self._is_over = False
        self._file: Unpacked
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Names may hold tabs and line ends as they are.
        self._json = json.JSONDecoder(strict=False)

    def events(self) -> Iterator[Event]:
        """Every event, in the order of the file.

        Raises:
            InputError: It is no file, no trace, damaged, or larger than any trace.
        """
        try:
            with Unpacked(self._path) as self._file:
                yield from self._fields()
        except EOFError:
            self._refuse("is cut off")
        except zlib.error as error:
            self._refuse(f"cannot be read: its archive is damaged ({error})")
        except OSError as error:
            self._refuse(why_unreadable(error))

    def _fields(self) -> Iterator[Event]:
        if self._next() != "{":
            self._refuse("is not a trace: it must be a JSON object with a list traceEvents")
        has_events, separator = False, "{"
        while separator != "}":
            self._place += 1
            if separator == "{" and self._next() == "}":
                break
            key = self._value()
            if self._next() != ":" or not isinstance(key, str):
                self._refuse("is not JSON")
            self._place += 1
            if key == "traceEvents":
                if has_events or self._next() != "[":
                    self._refuse("must have one list traceEvents")
                has_events = True
                yield from self._list()
            else:
                value = self._value()
                if key in _HEADER:
                    self.header[key] = value
            separator = self._next()
            if separator not in {",", "}"}:
                self._refuse("is not JSON")
        if not has_events:
            self._refuse("is not a trace: it has no list traceEvents")

    def _list(self) -> Iterator[Event]:
        separator = "["
        while separator != "]":
            self._place += 1
            if separator == "[" and self._next() == "]":
                break
            event = self._value()
            if not isinstance(event, dict):
                self._refuse("is not a trace: events must be objects")
            yield event
            separator = self._next()
            if separator not in {",", "]"}:
                self._refuse("is not JSON")
        self._place += 1

    def _next(self) -> str:
        """The next character that is no space; it is not consumed."""
        while True:
            found = _NO_SPACE.search(self._text, self._place)
            if found:
                self._place = found.start()
                return found.group()
            self._place = len(self._text)
            if not self._more():
                self._refuse("is cut off")

    def _value(self) -> Any:
        """The JSON value that begins at the next character."""
        self._next()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._place)
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._place > MAX_VALUE_CHARS:
                    self._refuse(f"is not JSON: a value is malformed or too long ({error})")
                if not self._more():
                    self._refuse("is cut off or is not JSON")
                continue
            # A number may go on behind the window, which may end after its point, too.
            is_whole = end < len(self._text) and self._text[end] not in ".eE"
            is_whole |= len(self._text) - self._place > MAX_VALUE_CHARS
            if is_whole or not self._more():
                self._place = end
                return value

    def _more(self) -> bool:
        """Move the window on; False where the file ends."""
        chunk = b"" if self._is_over else self._file.read(_CHUNK_BYTES)
        self._num_bytes += len(chunk)
        if self._num_bytes > MAX_TEXT_BYTES:
            self._refuse(f"has more than {MAX_TEXT_BYTES} bytes of text")
        self._is_over = not chunk
        self._text = self._text[self._place :] + self._decode.decode(chunk, final=self._is_over)
        self._place = 0
        return not self._is_over

    def _refuse(self, rule: str) -> NoReturn:
        raise InputError.single("", rule, file=str(self._path), hint=_WANTED)


SIGNATURE = b"SQLite format 3\x00"

_KERNELS, _COPIES, _FILLS, _LAUNCHES, _RANGES, _GPUS, _NAMES = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "TARGET_INFO_GPU", "StringIds",
)  # fmt: skip

_COPY_NAMES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}

_OPERATORS = ("aten::", "autograd::", "c10d::", "torch::")

_STEP = re.compile(r"(?:training[ _])?(?:step|iter|iteration)[ _#:=]*(\d{1,15})$", re.IGNORECASE)


class NsightExport:
    """A profile of Nsight Systems, read once, as the events that torch would have written.

    They are kernels, copies, launches, and the ranges that a program marks with NVTX,
    ``torch.autograd.profiler.emit_nvtx`` among them. Steps are ranges called ``step N``,
    ``iteration N`` or ``ProfilerStep#N``.

    Source:
        Nsight Systems' user guide, "SQLite Schema Reference": names of tables and columns, times
        in nanoseconds, kinds of copies as CUPTI numbers them.

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
