"""What do starts, copies, heat and company cost a device, and what do its sensors say?

Each measurement is a function of a case and a stopwatch, as those of single kernels are. Nothing
but torch is needed, so that a machine without this package's dependencies can measure, too.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from simulator.calibrate.gpu.kernel_calls import (
    Call,
    Stopwatch,
    Timing,
    UnsupportedCaseError,
    Work,
    call_of,
    new_stream,
    seconds_on_stream,
)
from simulator.calibrate.gpu.kernel_case import KernelCase

_LAUNCHES = 400
"""Kernels in a row: fewer than the queue of a stream holds, so that the host never waits."""

_LOAD_S = 15.0
"""Power limits act within seconds; temperature settles later and matters less (assumption)."""

_WINDOW_S = 0.02

_HOST_WARM_BUDGETS, _HOST_BUDGETS, _LEAST_HOST_SAMPLES = 5, 5, 9
"""Host work is repeated for so many times what a kernel may take, before and while it is timed."""

_SMALL = 64
"""Width of a layer whose kernels end before its host has queued the next."""

_COPIES_PER_PRODUCT = 0.5
"""Time of memory-bound kernels beside that of products under load, as training has it (the steps of
``reports/gpu``: products and attention are half to two thirds of them)."""

_LOAD_ON_CPU_S = 0.4

_HOG_BYTES = 2**28


class Sensors:
    """Clock, power and temperature, as far as the driver's library lets torch read them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def readings(self) -> list[str]:
        """Each sensor in words; one sentence instead if there are none."""
        if self.device.type != "cuda":
            return ["a CPU's clock and power are not read"]
        found = []
        sensors: Sequence[tuple[str, Callable[..., int], float, str]] = (
            ("clock", torch.cuda.clock_rate, 1.0, "MHz"),
            ("power", torch.cuda.power_draw, 1e-3, "W"),
            ("temperature", torch.cuda.temperature, 1.0, "C"),
        )
        for name, read, factor, unit in sensors:
            # The driver's library is optional and raises classes of its own.
            with contextlib.suppress(Exception):
                found.append(f"{name} {read(self.device) * factor:.0f} {unit}")
        return found or ["clock and power not read: install nvidia-ml-py"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a case took.

    Attributes:
        timing: Its repetitions.
        call: Arithmetic, traffic and notes.
    """

    timing: Timing
    call: Call


def measured(case: KernelCase, stopwatch: Stopwatch) -> Measured:
    """One case, laid out and timed.

    Raises:
        UnsupportedCaseError: The device or this torch cannot run it.
        RuntimeError: torch's own refusals, running out of memory among them.
    """
    system = SYSTEM_OPERATIONS.get(case.op)
    if system is not None:
        return system(case, stopwatch)
    call = call_of(case, stopwatch.device)
    return Measured(stopwatch.timing(call.work), call)


def _host_launch(case: KernelCase, stopwatch: Stopwatch) -> Measured:
    """Host time of one elementwise kernel of torch's, queued behind others."""
    del case
    value = torch.zeros(1, device=stopwatch.device)

    def once_s() -> float:
        stopwatch.wait()
        started = time.perf_counter()
        for _ in range(_LAUNCHES):
            value.add_(1)
        return (time.perf_counter() - started) / _LAUNCHES

    samples = _host_samples(stopwatch, once_s)
    return Measured(Timing(samples), Call(lambda: None, notes="host time per eager kernel"))


class SmallLayer(torch.nn.Module):
    """A layer so small that its host bounds it: attention and an MLP behind norms."""

    operators = 12
    """Operators that launch a kernel each: two norms, six products, attention, the activation, two
    sums. Fused attention leaves its result as the next product reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(_SMALL) for _ in range(2))
        self.products = torch.nn.ModuleList(torch.nn.Linear(_SMALL, _SMALL) for _ in range(6))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (1, s, h) to rows."""
        query, key, value, output, up, down = self.products
        normed = self.norms[0](rows)
        queries, keys, values = (
            product(normed).unflatten(-1, (4, -1)).transpose(1, 2)
            for product in (query, key, value)
        )
        context = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True
        )
        rows = rows + output(context.transpose(1, 2).flatten(2))
        added: torch.Tensor = rows + down(torch.nn.functional.gelu(up(self.norms[1](rows))))
        return added


def _host_operator(case: KernelCase, stopwatch: Stopwatch) -> Measured:
    """Host time of one operator of a layer in training, queued behind others."""
    del case
    with torch.device(stopwatch.device):
        layer, rows = SmallLayer(), torch.ones(1, 16, _SMALL)
    layers = _LAUNCHES // layer.operators

    def once_s() -> float:
        stopwatch.wait()
        started = time.perf_counter()
        for _ in range(layers):
            layer(rows)
        return (time.perf_counter() - started) / (layers * layer.operators)

    samples = _host_samples(stopwatch, once_s)
    return Measured(Timing(samples), Call(lambda: None, notes="host time per operator of a layer"))


def _host_samples(stopwatch: Stopwatch, once_s: Callable[[], float]) -> list[float]:
    """Repetitions of host work, once libraries are loaded and the clock of an idle host has risen.

    On a virtual machine with an H100 those of the first seconds spread by 40 % (``reports/gpu``).
    """
    warm_ends = time.perf_counter() + _HOST_WARM_BUDGETS * stopwatch.budget_s
    once_s()
    while time.perf_counter() < warm_ends:
        once_s()
    ends = time.perf_counter() + _HOST_BUDGETS * stopwatch.budget_s
    samples = [once_s() for _ in range(_LEAST_HOST_SAMPLES)]
    while time.perf_counter() < ends:
        samples.append(once_s())
    stopwatch.wait()
    return samples


def _copy(case: KernelCase, stopwatch: Stopwatch) -> Measured:
    if stopwatch.device.type != "cuda":
        raise UnsupportedCaseError("a CPU has no link between host and device")
    pinned = case.op.endswith("pinned")
    here = torch.empty(case.m, dtype=torch.uint8, pin_memory=pinned)
    there = torch.empty(case.m, dtype=torch.uint8, device=stopwatch.device)
    if case.op.startswith("copy_both_ways"):
        return _both_ways(case, stopwatch, here, there)
    work: Work
    if case.op.startswith("copy_to_device"):
        work = lambda: there.copy_(here, non_blocking=True)  # noqa: E731
    else:
        work = lambda: here.copy_(there, non_blocking=True)  # noqa: E731
    return Measured(stopwatch.timing(work), Call(work, num_bytes=float(case.m)))


def _both_ways(
    case: KernelCase, stopwatch: Stopwatch, here: torch.Tensor, there: torch.Tensor
) -> Measured:
    """Both directions at once; the traffic counted is that of one."""
    other_here, other_there = torch.empty_like(here, pin_memory=True), torch.empty_like(there)
    main, side = torch.cuda.current_stream(), new_stream()

    def work() -> None:
        side.wait_stream(main)
        with torch.cuda.stream(side):
            other_here.copy_(other_there, non_blocking=True)
        there.copy_(here, non_blocking=True)
        main.wait_stream(side)

    notes = "rate of each direction while both are busy"
    return Measured(stopwatch.timing(work), Call(work, num_bytes=float(case.m), notes=notes))


def _sustained(case: KernelCase, stopwatch: Stopwatch) -> Measured:
    """Products and copies until the device is hot, against its time as all others are timed."""
    call = call_of(_plain(case), stopwatch.device)
    sensors = Sensors(stopwatch.device)
    on_gpu = stopwatch.device.type == "cuda"
    load_s = _LOAD_S if on_gpu else _LOAD_ON_CPU_S
    cool_s = stopwatch.timing(call.work).median_s
    calls = max(1, round(_WINDOW_S / cool_s))
    source = torch.empty(_HOG_BYTES if on_gpu else 1, dtype=torch.uint8, device=stopwatch.device)
    target = torch.empty_like(source)
    copy_s = stopwatch.timing(lambda: target.copy_(source)).median_s
    copies = max(1, round(_COPIES_PER_PRODUCT * cool_s / copy_s)) if on_gpu else 0

    def window() -> None:
        for _ in range(calls):
            call.work()
            for _ in range(copies):
                target.copy_(source)
        stopwatch.wait()

    windows: list[float] = []
    readings: list[str] = []
    started = time.perf_counter()
    while not windows or time.perf_counter() - started < load_s:
        # A clock that is lowered slows no copy of memory; heat makes no product faster.
        windows.append(max(cool_s, stopwatch.elapsed_s(window) / calls - copies * copy_s))
        if not readings and time.perf_counter() - started > load_s / 2:
            readings = sensors.readings()
    hot = windows[len(windows) // 2 :]
    share = cool_s / statistics.median(hot)
    mixed = ", a third of it copies of memory" if on_gpu else ""
    notes = [f"{load_s:g} s under load{mixed}; rate when hot over cool {share:.4f}", *readings]
    return Measured(Timing(hot), Call(call.work, call.flop, notes="; ".join(notes)))


def _beside_copy(case: KernelCase, stopwatch: Stopwatch) -> Measured:
    """A product while a second stream copies memory, as a collective's kernel does."""
    if stopwatch.device.type != "cuda":
        raise UnsupportedCaseError("a CPU has no second stream")
    call = call_of(_plain(case), stopwatch.device)
    alone_s = stopwatch.timing(call.work).median_s
    source = torch.empty(_HOG_BYTES, dtype=torch.uint8, device=stopwatch.device)
    target = torch.empty_like(source)
    main, side = torch.cuda.current_stream(), new_stream()
    copy_s = stopwatch.timing(lambda: target.copy_(source)).median_s
    copies = max(2, round(2 * alone_s / copy_s) + 1)

    def once_s() -> float:
        stopwatch.wait()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(copies):
                target.copy_(source)
        return seconds_on_stream(call.work)

    timing = Timing([once_s() for _ in range(9)])
    slowdown = timing.median_s / alone_s
    notes = f"beside copies of device memory; {slowdown:.4f} times the time alone"
    return Measured(timing, Call(call.work, call.flop, notes=notes))


def _plain(case: KernelCase) -> KernelCase:
    return KernelCase("gemm", case.dtype, case.m, case.n, case.k)


_SystemOperation = Callable[[KernelCase, Stopwatch], Measured]

SYSTEM_OPERATIONS: Mapping[str, _SystemOperation] = {
    "host_launch": _host_launch,
    "host_operator": _host_operator,
    "copy_to_device_pinned": _copy,
    "copy_from_device_pinned": _copy,
    "copy_to_device_pageable": _copy,
    "copy_from_device_pageable": _copy,
    "copy_both_ways_pinned": _copy,
    "sustained_gemm": _sustained,
    "beside_copy_gemm": _beside_copy,
}
"""Everything but single kernels, by the name that tables give it."""
