"""What of a trace is needed to account for its steps?

Times and a small number for what ran, in columns: an event as Python reads it takes a kilobyte, a
row of a column table forty bytes, and a trace of a few steps may have millions of events.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.files import why_unreadable
from simulator.validate.measured_trace.kernel_names import (
    SpanKind,
    Wait,
    collective_kind,
    kernel_kind,
    operator_kind,
    waits_for_data,
)
from simulator.validate.measured_trace.trace_events import SIGNATURE, Event, NsightExport, TraceFile

MAX_ROWS = 5_000_000
"""More events are not kept but refused: some hundred bytes each at the most, in all."""

_BACKWARD = (
    "autograd::engine::evaluate_function",
    "torch::distributed::reducer",
    "torch.distributed.ddp.reducer",
)
"""Autograd, and DDP, which copies buckets when autograd has finished."""

_ON_CPU = ("gloo:", "mpi:", "ucc:")

_LATEST_US = 1e18
"""Thirty thousand years; profilers count from 1970 or from the start of the machine."""
_MAX_NAMES = 50_000

_MAX_RANGES = 200_000

STEP = re.compile(r"ProfilerStep#(\d{1,15})$")
"""Range of the host around a step, as torch's own schedule names it."""

UPDATE = "Optimizer.step#"
"""What torch names ranges of optimizers, with their class behind."""

PHASE = re.compile(r"^(?:step: |\W*)(forward|backward|optimizer)(?![a-z])", re.IGNORECASE)
"""A range that a program names after a phase."""

_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})

_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


class Range(NamedTuple):
    """A range that a program or the library names.

    Attributes:
        name: As written.
        thread: Which thread it is of.
        start_us, end_us: When [us].
    """

    name: str
    thread: int
    start_us: float
    end_us: float


@dataclass
class Columns:
    """Rows of one kind of event, in the order of the file.

    Attributes:
        start_us, end_us: When [us].
        key: Thread of an operator; correlation of a kernel or of its launch.
        code: Number of what it does, see :attr:`Rows.kinds`.
    """

    start_us: array[float] = field(default_factory=lambda: array("d"))
    end_us: array[float] = field(default_factory=lambda: array("d"))
    key: array[int] = field(default_factory=lambda: array("q"))
    code: array[int] = field(default_factory=lambda: array("h"))

    def add(self, span_us: tuple[float, float], key: int, code: int = 0) -> None:
        """Append a row."""
        self.start_us.append(span_us[0])
        self.end_us.append(span_us[1])
        self.key.append(key)
        self.code.append(code)

    def table(self) -> Table:
        """The rows as numpy arrays."""
        return Table(
            np.asarray(self.start_us), np.asarray(self.end_us),
            np.asarray(self.key), np.asarray(self.code),
        )  # fmt: skip


class Table(NamedTuple):
    """Columns as numpy arrays, each of shape (rows,); see :class:`Columns`."""

    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    key: NDArray[np.int64]
    code: NDArray[np.int16]

    def where(self, mask: NDArray[np.bool_]) -> Table:
        """The rows that a mask chooses."""
        return Table(self.start_us[mask], self.end_us[mask], self.key[mask], self.code[mask])


class _Activity(NamedTuple):
    """What a row does; the numbers of rows are places in a list of these."""

    kind: SpanKind | Wait | None
    is_backward: bool = False


@dataclass
class Rows:
    """What is kept of a trace.

    Attributes:
        activity: What each code stands for: a kind of kernel, operator or collective (None is
            waiting for other ranks), and whether it belongs to autograd.
        kernels: What ran on the GPU; keys are correlations.
        launches: When the host launched it; keys are correlations.
        operators: What ran on the CPU; keys are threads.
        messages: Collectives between CPUs.
        ranges: Named ranges of the host: steps, phases, optimizers.
        devices: GPUs that kernels ran on.
        header: Fields beside the events.
    """

    activity: list[_Activity] = field(default_factory=list)
    kernels: Columns = field(default_factory=Columns)
    launches: Columns = field(default_factory=Columns)
    operators: Columns = field(default_factory=Columns)
    messages: Columns = field(default_factory=Columns)
    ranges: list[Range] = field(default_factory=list)
    devices: set[object] = field(default_factory=set)
    header: Mapping[str, Any] = field(default_factory=dict)
    _codes: dict[_Activity, int] = field(default_factory=dict)
    _by_name: dict[str, int] = field(default_factory=dict)
    _threads: dict[tuple[object, object], int] = field(default_factory=dict)

    def add(self, event: Event) -> bool:
        """Keep what is needed of an event; returns whether it was a complete one.

        Raises:
            ValueError: Its times are no numbers.
        """
        category, name = str(event.get("cat", "")), str(event.get("name", ""))
        if event.get("ph") != "X":
            return False
        start_us, length_us = _number(event.get("ts")), _number(event.get("dur", 0.0))
        span_us = start_us, start_us + max(0.0, length_us)
        found = event.get("args")
        args: Mapping[str, Any] = found if isinstance(found, dict) else {}
        if category in _ON_GPU:
            code = self._code(_Activity(kernel_kind(name, args)))
            self.kernels.add(span_us, _whole(args.get("correlation")), code)
            self.devices.add(str(args.get("device", "")))
        elif category in _LAUNCHES:
            self.launches.add(span_us, _whole(args.get("correlation")))
        elif category == "cpu_op":
            self.operators.add(span_us, self._thread(event), self._operator_code(name))
        elif category == "user_annotation":
            kind = collective_kind(name) if name.startswith(_ON_CPU) else None
            if kind is not None:
                self.messages.add(span_us, 0, self._code(_Activity(kind)))
            elif waits_for_data(name):
                self.operators.add(span_us, self._thread(event), self._operator_code(name))
            elif STEP.match(name) or PHASE.match(name) or name.startswith(UPDATE):
                self.ranges.append(Range(name[:200], self._thread(event), *span_us))
        return True

    @property
    def count(self) -> int:
        """How many rows there are."""
        tables = (self.kernels, self.launches, self.operators, self.messages)
        return sum(len(table.key) for table in tables) + len(self.ranges)

    def _operator_code(self, name: str) -> int:
        if name not in self._by_name:
            if len(self._by_name) >= _MAX_NAMES:
                self._by_name.clear()
            activity = _Activity(operator_kind(name), name.startswith(_BACKWARD))
            self._by_name[name] = self._code(activity)
        return self._by_name[name]

    def _code(self, activity: _Activity) -> int:
        if activity not in self._codes:
            self._codes[activity] = len(self.activity)
            self.activity.append(activity)
        return self._codes[activity]

    def _thread(self, event: Event) -> int:
        key = str(event.get("pid")), str(event.get("tid"))
        return self._threads.setdefault(key, len(self._threads))


def read_rows(path: Path) -> Rows:
    """What a trace of torch's profiler holds, or an export of Nsight Systems.

    Raises:
        InputError: It is no such trace, damaged, or larger than any trace.
    """
    file, rows, events = _opened(path), Rows(), 0
    for event in file.events():
        try:
            events += rows.add(event)
        except ValueError as error:
            rule = f"has an event whose times are no numbers ({error})"
            raise InputError.single("traceEvents", rule, file=str(path)) from error
        if rows.count > MAX_ROWS or len(rows.ranges) > _MAX_RANGES:
            hint = "record fewer steps, without with_stack and with_modules"
            rule = f"has more than {MAX_ROWS} kernels and operators"
            raise InputError.single("traceEvents", rule, file=str(path), hint=hint)
    rows.header = file.header
    if not rows.kernels.key and not rows.operators.key:
        rule = f"has no kernels and no operators among its {events} events"
        hint = "record it with torch.profiler and export_chrome_trace"
        raise InputError.single("traceEvents", rule, file=str(path), hint=hint)
    return rows


def _opened(path: Path) -> TraceFile | NsightExport:
    try:
        with path.open("rb") as file:
            is_database = file.read(len(SIGNATURE)) == SIGNATURE
    except (OSError, ValueError) as error:
        hint = "give a trace of torch.profiler; record it with export_chrome_trace"
        raise InputError.single("", why_unreadable(error), hint=hint, file=str(path)) from error
    return NsightExport(path) if is_database else TraceFile(path)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r:.40}")
    if not -_LATEST_US <= value <= _LATEST_US:  # which NaN is not either
        raise ValueError(f"{value!r:.40}")
    return float(value)


def _whole(value: object) -> int:
    """A correlation; -1 where there is none."""
    return value if isinstance(value, int) and 0 <= value < 2**62 else -1
