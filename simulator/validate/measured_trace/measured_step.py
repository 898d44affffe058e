"""What ran in one step that torch's profiler recorded?

On a GPU a step is what its host launched in a range ``ProfilerStep#N``, and lasts until the
first kernel of the next step begins; the last step lasts until its last kernel ends. On a CPU
a step is the range itself, and what no operator covers is the interpreter's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.program.price.roofline import KernelKind
from simulator.validate.measured_trace.account import PHASES, Span
from simulator.validate.measured_trace.rows import STEP, Range, Rows, Table, read_rows
from simulator.validate.measured_trace.trace_phases import PhaseClock, innermost, phase_clock

_WHOLE = frozenset({KernelKind.GEMM, KernelKind.ATTENTION})


@dataclass(frozen=True)
class TracedStep:
    """One step of one rank.

    Attributes:
        number: As the profiler counts; None where the trace names no steps.
        numbers: Of all steps of the trace.
        spans: What ran, in order of start.
        step_s: How long the step is [s].
        is_gpu: Whether kernels ran on a GPU.
        rank, ranks: Which rank this is, of how many; None where the trace does not say.
        device: Name of the GPU; empty where the trace does not say.
        notes: What the reader must know.
    """

    number: int | None
    numbers: Sequence[int]
    spans: Sequence[Span]
    step_s: float
    is_gpu: bool
    rank: int | None
    ranks: int | None
    device: str
    notes: Sequence[str]


def read_step(path: Path, number: int | None = None) -> TracedStep:
    """One step of a trace as ``export_chrome_trace`` writes it (.json or .json.gz).

    Args:
        path: The trace.
        number: Which step; by default the one of median length of those that another follows.

    Raises:
        InputError: It is no such trace, damaged, or has no such step.
    """
    rows = read_rows(path)
    return _Reader(rows, str(path)).step(number)


class _Reader:
    def __init__(self, rows: Rows, file: str) -> None:
        self.rows, self.file = rows, file
        self.is_gpu = bool(rows.kernels.key)
        self.kernels, self.launches = rows.kernels.table(), rows.launches.table()
        self.operators, self.messages = rows.operators.table(), rows.messages.table()
        self.is_backward = np.asarray([each.is_backward for each in rows.activity], dtype=bool)
        self.notes: list[str] = []

    def step(self, number: int | None) -> TracedStep:
        if len(self.rows.devices) > 1:
            self._refuse("has kernels of several GPUs", "record every rank in a file of its own")
        steps = self._steps()
        launched_us = self._launched_us() if self.is_gpu else np.empty(0)
        windows = self._windows(list(steps.values()), launched_us)
        chosen = self._chosen(list(steps), [end - start for start, end in windows], number)
        window, host = windows[chosen], list(steps.values())[chosen]
        clock = self._phases(host)
        spans = (
            self._gpu_spans(window, host, launched_us, clock)
            if self.is_gpu
            else self._cpu_spans(window, clock)
        )
        rank, ranks = self._place()
        has_numbers = any(self._numbers())
        return TracedStep(
            list(steps)[chosen] if has_numbers else None,
            list(steps) if has_numbers else [],
            sorted(spans, key=lambda span: span.start_s),
            (window[1] - window[0]) / 1e6,
            self.is_gpu,
            rank,
            ranks,
            _device(self.rows.header),
            self.notes,
        )

    def _numbers(self) -> Iterator[tuple[int, Range]]:
        for each in self.rows.ranges:
            if match := STEP.match(each.name):
                yield int(match.group(1)), each

    def _steps(self) -> dict[int, Range]:
        found = dict(sorted(self._numbers(), key=lambda numbered: numbered[1].start_us))
        if found:
            return found
        self.notes.append("the trace names no steps (ProfilerStep#N); all of it is taken as one")
        tables = [table for table in (self.operators, self.launches) if table.key.size]
        named = self.rows.ranges
        starts = [*(each.start_us for each in named), *(t.start_us.min() for t in tables)]
        ends = [*(each.end_us for each in named), *(t.end_us.max() for t in tables)]
        thread = -1
        if self.operators.key.size:
            thread = int(self.operators.key[self.operators.start_us.argmin()])
        begin, end = min(starts, default=0.0), max(ends, default=0.0)
        return {0: Range("", thread, float(begin), float(end))}

    def _launched_us(self) -> NDArray[np.float64]:
        """When the host launched each kernel; NaN if unknown."""
        launches = self.launches
        if not launches.key.size:
            hint = "record with ProfilerActivity.CPU as well as ProfilerActivity.CUDA"
            self._refuse("has kernels, but not who launched them", hint)
        order = np.argsort(launches.key, kind="stable")
        keys = launches.key[order]
        place = np.minimum(np.searchsorted(keys, self.kernels.key), keys.size - 1)
        is_known = (keys[place] == self.kernels.key) & (self.kernels.key >= 0)
        unknown = int((~is_known).sum())
        if unknown:
            share = f"{unknown / is_known.size:.1%} of the kernels"
            self.notes.append(f"{share} are left out: nothing tells their launch")
        return np.where(is_known, launches.start_us[order][place], np.nan)

    def _windows(
        self, hosts: Sequence[Range], launched_us: NDArray[np.float64]
    ) -> list[tuple[float, float]]:
        if not self.is_gpu:
            return [(host.start_us, host.end_us) for host in hosts]
        own = [(launched_us >= host.start_us) & (launched_us < host.end_us) for host in hosts]
        if not all(mask.any() for mask in own):
            self._refuse("has steps that launch no kernel", "record whole steps")
        starts = [float(self.kernels.start_us[mask].min()) for mask in own]
        return list(
            zip(starts, [*starts[1:], float(self.kernels.end_us[own[-1]].max())], strict=True)
        )

    def _chosen(self, numbers: list[int], lengths: list[float], number: int | None) -> int:
        if number is not None:
            if number not in numbers:
                known = ", ".join(map(str, numbers[:20]))
                raise InputError.single("--step", f"is not in the trace; it has {known}", number)
            return numbers.index(number)
        followed = list(range(max(1, len(numbers) - 1)))
        return sorted(followed, key=lambda place: lengths[place])[(len(followed) - 1) // 2]

    def _phases(self, host: Range) -> PhaseClock:
        operators = self.operators
        inside = (operators.start_us >= host.start_us) & (operators.start_us < host.end_us)
        computes = np.asarray([each.kind is not None for each in self.rows.activity], dtype=bool)
        operators = operators.where(inside & computes[operators.code])
        ranges = [r for r in self.rows.ranges if host.start_us <= r.start_us < host.end_us]
        backward = self.is_backward[operators.code]
        clock = phase_clock(ranges, operators, backward, host.thread)
        if not clock.start_us.size:
            self.notes.append("nothing in the trace tells backward from forward")
        return clock

    def _gpu_spans(
        self,
        window: tuple[float, float],
        host: Range,
        launched_us: NDArray[np.float64],
        clock: PhaseClock,
    ) -> list[Span]:
        own = (launched_us >= host.start_us) & (launched_us < host.end_us)
        kernels, phases = self.kernels.where(own), clock.at(launched_us[own])
        return self._spans(kernels, phases, window[0])

    def _cpu_spans(self, window: tuple[float, float], clock: PhaseClock) -> list[Span]:
        def inside(table: Table) -> Table:
            return table.where((table.end_us > window[0]) & (table.start_us < window[1]))

        operators, messages = inside(self.operators), inside(self.messages)
        whole = np.asarray([each.kind in _WHOLE for each in self.rows.activity], dtype=bool)
        spans = self._spans(messages, clock.at(messages.start_us), window[0])
        for thread in np.unique(operators.key):
            own = operators.where(operators.key == thread)
            segments = list(innermost(own.start_us, own.end_us, own.code, whole[own.code]))
            start_us, end_us, code = (np.asarray(column) for column in zip(*segments, strict=True))
            table = Table(start_us, end_us, np.zeros(code.size, np.int64), code.astype(np.int16))
            spans += self._spans(table, clock.at(start_us), window[0])
        return spans

    def _spans(self, table: Table, phases: NDArray[np.int64], begin_us: float) -> list[Span]:
        rows = zip(
            table.start_us.tolist(), table.end_us.tolist(), table.code.tolist(), phases.tolist(),
            strict=True,
        )  # fmt: skip
        return [
            Span(kind, PHASES[phase], (start_us - begin_us) / 1e6, (end_us - begin_us) / 1e6)
            for start_us, end_us, code, phase in rows
            if (kind := self.rows.activity[code].kind) is not None
        ]

    def _place(self) -> tuple[int | None, int | None]:
        info = self.rows.header.get("distributedInfo")
        if not isinstance(info, dict):
            return None, None
        numbers = (info.get("rank"), info.get("world_size"))
        rank, ranks = (value if type(value) is int and value >= 0 else None for value in numbers)
        return rank, ranks

    def _refuse(self, rule: str, hint: str) -> None:
        raise InputError.single("traceEvents", rule, file=self.file, hint=hint)


def _device(header: Mapping[str, Any]) -> str:
    devices = header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        name = str(devices[0].get("name", ""))[:80]
        return "".join(letter for letter in name if letter.isprintable())
    return ""
