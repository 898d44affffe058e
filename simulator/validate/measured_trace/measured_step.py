"""What ran in one step that torch's profiler recorded?

On a GPU a step begins with the first kernel that its host launched in a range ``ProfilerStep#N``,
and lasts until the first kernel of the next step begins; the last step lasts until its last kernel
ends. What an earlier step launched and runs on into it, such as a late reduction, is booked in it,
too. Where the GPU is without work until the host launches the next kernel, it waits for the host,
or for its data loader. On a CPU a step is the range itself, and what no operator covers is the
host's: of its interpreter, or its data loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.program.price.roofline import KernelKind
from simulator.validate.measured_trace.account import PHASES, Span, delayed_phase
from simulator.validate.measured_trace.kernel_names import SpanKind, Wait
from simulator.validate.measured_trace.rows import STEP, Range, Rows, Table, read_rows
from simulator.validate.measured_trace.trace_phases import (
    PhaseClock,
    Segment,
    innermost,
    phase_clock,
)

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
            self._refuse("has kernels of several GPUs", "record each rank to a separate file")
        steps = self._steps()
        if self.is_gpu:
            steps = self._with_kernels(steps, number)
        hosts = list(steps.values())
        windows = self._windows(hosts)
        chosen = self._chosen(list(steps), [end - start for start, end in windows], number)
        window, host = windows[chosen], hosts[chosen]
        clock = self._phases(host)
        if not clock.start_us.size:
            self.notes.append("nothing in the trace separates backward from forward")
        if self.is_gpu:
            earlier = self._phases(hosts[chosen - 1]) if chosen else clock
            spans = self._gpu_spans(window, host, clock, earlier)
        else:
            spans = self._cpu_spans(window, clock)
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
            device_name(self.rows.header),
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
        self.notes.append("the trace names no steps (ProfilerStep#N); all of it counts as one step")
        tables = [table for table in (self.operators, self.launches) if table.key.size]
        named = self.rows.ranges
        starts = [*(each.start_us for each in named), *(t.start_us.min() for t in tables)]
        ends = [*(each.end_us for each in named), *(t.end_us.max() for t in tables)]
        thread = -1
        if self.operators.key.size:
            thread = int(self.operators.key[self.operators.start_us.argmin()])
        begin, end = min(starts, default=0.0), max(ends, default=0.0)
        return {0: Range("", thread, float(begin), float(end))}

    @cached_property
    def _launched_us(self) -> NDArray[np.float64]:
        """When the host launched each kernel; NaN if unknown."""
        launches = self.launches
        if not launches.key.size:
            hint = "record with ProfilerActivity.CPU as well as ProfilerActivity.CUDA"
            self._refuse("has kernels, but not the operators that launched them", hint)
        order = np.argsort(launches.key, kind="stable")
        keys = launches.key[order]
        place = np.minimum(np.searchsorted(keys, self.kernels.key), keys.size - 1)
        is_known = (keys[place] == self.kernels.key) & (self.kernels.key >= 0)
        unknown = int((~is_known).sum())
        if unknown:
            share = f"{unknown / is_known.size:.1%} of the kernels"
            self.notes.append(f"{share} are ignored: their launch is not in the trace")
        return np.where(is_known, launches.start_us[order][place], np.nan)

    def _launched_in(self, host: Range) -> NDArray[np.bool_]:
        return (self._launched_us >= host.start_us) & (self._launched_us < host.end_us)

    def _with_kernels(self, steps: Mapping[int, Range], number: int | None) -> dict[int, Range]:
        """Steps that launch something; the others are said."""
        found = {each: host for each, host in steps.items() if self._launched_in(host).any()}
        missing = [each for each in steps if each not in found]
        if not found or number in missing:
            self._refuse("has steps that launch no kernel", "record whole steps")
        if missing:
            names = ", ".join(map(str, missing[:10]))
            self.notes.append(f"steps that launch no kernel are left out: {names}")
        return found

    def _windows(self, hosts: Sequence[Range]) -> list[tuple[float, float]]:
        if not self.is_gpu:
            return [(host.start_us, host.end_us) for host in hosts]
        own = [self._launched_in(host) for host in hosts]
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
        computes = self._is_kind(lambda kind: kind is not None and not _is_wait(kind))
        operators = operators.where(inside & computes[operators.code])
        ranges = [r for r in self.rows.ranges if host.start_us <= r.start_us < host.end_us]
        backward = self.is_backward[operators.code]
        return phase_clock(ranges, operators, backward, host.thread)

    def _is_kind(self, holds: Callable[[SpanKind | Wait | None], bool]) -> NDArray[np.bool_]:
        """Of every code of a row, whether something holds of its kind."""
        return np.asarray([holds(each.kind) for each in self.rows.activity], dtype=bool)

    def _gpu_spans(
        self, window: tuple[float, float], host: Range, clock: PhaseClock, earlier: PhaseClock
    ) -> list[Span]:
        is_known = (self.kernels.end_us > window[0]) & ~np.isnan(self._launched_us)
        kernels, launched_us = self.kernels.where(is_known), self._launched_us[is_known]
        is_carried = launched_us < host.start_us
        phases = np.where(is_carried, earlier.at(launched_us), clock.at(launched_us))
        is_seen = kernels.start_us < window[1]
        spans = self._spans(kernels.where(is_seen), phases[is_seen], window)
        computes = self._is_kind(lambda kind: isinstance(kind, KernelKind))[kernels.code]
        own = kernels.where(computes)
        return spans + list(self._waits(own, launched_us[computes], phases[computes], window))

    def _cpu_spans(self, window: tuple[float, float], clock: PhaseClock) -> list[Span]:
        def inside(table: Table) -> Table:
            return table.where((table.end_us > window[0]) & (table.start_us < window[1]))

        operators, messages = inside(self.operators), inside(self.messages)
        operators = operators.where(~self._is_kind(_is_wait)[operators.code])
        whole = self._is_kind(lambda kind: kind in _WHOLE)
        segments: list[Segment] = []
        for thread in np.unique(operators.key):
            own = operators.where(operators.key == thread)
            segments += innermost(own.start_us, own.end_us, own.code, whole[own.code])
        start_us, end_us, code = np.array(segments, dtype=np.float64).reshape(-1, 3).T
        covered = Table(start_us, end_us, np.zeros(code.size, np.int64), code.astype(np.int16))
        phases = clock.at(covered.start_us)
        spans = self._spans(messages, clock.at(messages.start_us), window)
        spans += self._spans(covered, phases, window)
        computes = self._is_kind(lambda kind: isinstance(kind, KernelKind))[covered.code]
        own = covered.where(computes)
        return spans + list(self._waits(own, own.start_us, phases[computes], window))

    def _waits(
        self,
        computing: Table,
        launched_us: NDArray[np.float64],
        phases: NDArray[np.int64],
        window: tuple[float, float],
    ) -> Iterator[Span]:
        """Times in which nothing computes, until the host launches what computes next.

        Args:
            computing: What computes, also the first that begins behind the window.
            launched_us: When it was launched, shape (rows,); a CPU launches what it begins.
            phases: Places in :data:`PHASES`, shape (rows,).
            window: Begin and end of the step [us].
        """
        loads = self.operators.where(self._is_kind(_is_wait)[self.operators.code])
        order = np.argsort(computing.start_us, kind="stable")
        columns = (computing.start_us, computing.end_us, launched_us, phases)
        clock_us, before = window[0], None
        for start_us, end_us, launch_us, place in zip(
            *(column[order].tolist() for column in columns), strict=True
        ):
            phase = PHASES[place]
            is_behind = start_us >= window[1]
            waiting = before if before and is_behind else delayed_phase(before or phase, phase)
            until_us = min(launch_us, start_us, window[1])
            for why, begin_us, stop_us in _by_loader(clock_us, until_us, loads):
                yield Span(why, waiting, (begin_us - window[0]) / 1e6, (stop_us - window[0]) / 1e6)
            if is_behind:
                return
            clock_us, before = max(clock_us, end_us), phase
        if not self.is_gpu:
            for why, begin_us, stop_us in _by_loader(clock_us, window[1], loads):
                yield Span(why, before or PHASES[0], (begin_us - window[0]) / 1e6,
                           (stop_us - window[0]) / 1e6)  # fmt: skip

    def _spans(
        self, table: Table, phases: NDArray[np.int64], window: tuple[float, float]
    ) -> list[Span]:
        """What of rows lies in the window, from its begin on."""
        start_s = (table.start_us.clip(*window) - window[0]) / 1e6
        end_s = (table.end_us.clip(*window) - window[0]) / 1e6
        columns = (start_s.tolist(), end_s.tolist(), table.code.tolist(), phases.tolist())
        return [
            Span(kind, PHASES[phase], begins_s, ends_s)
            for begins_s, ends_s, code, phase in zip(*columns, strict=True)
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


def _is_wait(kind: SpanKind | Wait | None) -> bool:
    return isinstance(kind, Wait)


def _by_loader(start_us: float, end_us: float, loads: Table) -> Iterator[tuple[Wait, float, float]]:
    """A wait for the host, cut into what its data loader takes and the rest."""
    is_seen = (loads.end_us > start_us) & (loads.start_us < end_us)
    clock_us = start_us
    for row in np.flatnonzero(is_seen)[np.argsort(loads.start_us[is_seen])].tolist():
        begin_us = max(clock_us, float(loads.start_us[row]))
        stop_us = min(end_us, float(loads.end_us[row]))
        if begin_us > clock_us:
            yield Wait.HOST, clock_us, begin_us
        if stop_us > begin_us:
            yield Wait.DATA_LOADER, begin_us, stop_us
            clock_us = stop_us
    if end_us > clock_us:
        yield Wait.HOST, clock_us, end_us


def device_name(header: Mapping[str, Any]) -> str:
    """Name of the GPU; empty where a trace does not say."""
    devices = header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        name = str(devices[0].get("name", ""))[:80]
        return "".join(letter for letter in name if letter.isprintable())
    return ""
