"""Which kernels does a trace of a real step measure, and which profile do they make?

torch's profiler writes the shapes of operators where it is told to (``record_shapes=True``), and
links every kernel with the operator that launched it. Products of 16 bits and fused attention of
one step or many become the rows that ``calibrate gpu`` fits to. They ran at the clock of training,
so the new profile has no slower one for long training.

Ignores: kernels of compiled graphs, which no operator launches by itself.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

from simulator.calibrate.gpu.kernel_case import Direction, KernelCase
from simulator.calibrate.gpu.kernel_profile import KernelCalibration, calibrate_kernels
from simulator.calibrate.profile_text import SourcedValue
from simulator.described.load import profile_file
from simulator.errors import InputError
from simulator.program.price.roofline import KernelKind
from simulator.tables.kernel_rows import KernelRow
from simulator.validate.measured_trace.kernel_names import kernel_kind
from simulator.validate.measured_trace.measured_step import device_name
from simulator.validate.measured_trace.trace_events import Event, TraceFile

_FITTED = frozenset({KernelKind.GEMM, KernelKind.ATTENTION})

_FORMATS = {"c10::BFloat16": "bf16", "c10::Half": "fp16"}

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Place of the left operand among the inputs."""


class _Attention(NamedTuple):
    """Where an operator of torch has its queries and ``is_causal`` among its inputs."""

    op: str
    direction: Direction
    queries: int
    is_causal: int


_FLASH, _CUDNN = "flash_attention (sdpa)", "cudnn_attention (sdpa)"
ATTENTION: Mapping[str, _Attention] = {
    "aten::_scaled_dot_product_flash_attention": _Attention(_FLASH, "fwd", 0, 4),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(_FLASH, "bwd", 1, 11),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(_CUDNN, "fwd", 0, 6),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(_CUDNN, "bwd", 1, 14),
}
"""Operators of fused attention; their shapes are (batch, heads, tokens, head_dim)."""

_RECORDING = "record it with torch.profiler.profile(record_shapes=True)"


@dataclass
class _Calls:
    """What operators were asked for, and how long their kernels ran [s]."""

    cases: dict[int, KernelCase] = field(default_factory=dict)
    kernel_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, event: Event) -> None:
        """Take in an operator or a kernel; others pass."""
        args = event.get("args")
        number = args.get("External id") if isinstance(args, dict) else None
        if event.get("ph") != "X" or not isinstance(args, dict) or type(number) is not int:
            return
        name, seconds = str(event.get("name", "")), event.get("dur")
        if event.get("cat") == "cpu_op":
            case = _case_of(name, args)
            if case is not None:
                self.cases[number] = case
        elif event.get("cat") == "kernel" and kernel_kind(name, args) in _FITTED:
            self.kernel_s[number] += (
                float(seconds) * 1e-6 if isinstance(seconds, int | float) else 0
            )

    def times_s(self) -> dict[KernelCase, list[float]]:
        """Every time of each distinct call [s]."""
        found: dict[KernelCase, list[float]] = {}
        for number, case in self.cases.items():
            if self.kernel_s.get(number, 0.0) > 0:
                found.setdefault(case, []).append(self.kernel_s[number])
        return found


def calibrate_from_trace(path: Path, base: str, name: str) -> KernelCalibration:
    """A profile whose kernels are fitted to those of a trace. Needs scipy.

    Args:
        path: What torch's profiler recorded, with shapes.
        base: Profile for all other numbers, a shipped name or a file.
        name: Of the new profile.

    Raises:
        InputError: The trace is none, is damaged, or holds no such kernels with shapes.
    """
    file, calls = TraceFile(path), _Calls()
    for event in file.events():
        calls.add(event)
    times_s = calls.times_s()
    if not times_s:
        rule = "has no products and no attention of 16 bits whose shapes are known"
        raise InputError.single("traceEvents", rule, hint=_RECORDING, file=str(path))
    device = device_name(file.header)
    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    reference = f"trace {path.name}{f' of {device}' if device else ''}, {modified}"
    rows = list(_rows(times_s, device, reference))
    known = profile_file(base)
    clock = SourcedValue(1.0, "measured", f"{reference}: kernels ran at the clock of training")
    return calibrate_kernels(
        rows, known.read_text(encoding="utf-8"), str(known), name, reference,
        {"kernels.sustained_clock": clock},
    )  # fmt: skip


def _rows(
    times_s: Mapping[KernelCase, Sequence[float]], device: str, source: str
) -> Iterator[KernelRow]:
    for case, seconds in times_s.items():
        median_s = statistics.median(seconds)
        spread = statistics.median(abs(each - median_s) for each in seconds) / median_s
        sizes = {size: str(getattr(case, size) or "") for size in
                 ("m", "n", "k", "batch", "seq", "heads", "kv_heads", "head_dim")}  # fmt: skip
        yield KernelRow(
            {
                "id": case.id, "source": source, "op": case.op, "gpu": device,
                "dtype": case.dtype, **sizes,
                "causal": "" if case.causal is None else str(case.causal),
                "direction": case.direction, "time_us": f"{median_s * 1e6:.6g}",
                "spread_pct": f"{100 * spread:.3g}", "repetitions": str(len(seconds)),
            }
        )  # fmt: skip


def _case_of(name: str, args: Mapping[str, Any]) -> KernelCase | None:
    """What an operator asks for; None where it is another, or its shapes are not known."""
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    if name in _PRODUCTS:
        return _product(shapes, types, _PRODUCTS[name])
    if name in ATTENTION:
        return _attention(shapes, types, args.get("Concrete Inputs"), ATTENTION[name])
    return None


def _product(shapes: list[Any], types: list[Any], place: int) -> KernelCase | None:
    left, right = _sizes(shapes, place), _sizes(shapes, place + 1)
    form = _format(types, place)
    if form is None or len(left) not in {2, 3} or len(right) != len(left):
        return None
    (m, k), n = left[-2:], right[-1]
    return KernelCase("gemm", form, m, n, k, batch=left[0] if len(left) == 3 else 1)


def _attention(
    shapes: list[Any], types: list[Any], values: object, asked: _Attention
) -> KernelCase | None:
    place = asked.queries
    queries, keys, form = _sizes(shapes, place), _sizes(shapes, place + 1), _format(types, place)
    has_value = isinstance(values, list) and len(values) > asked.is_causal
    stated = cast("list[Any]", values)[asked.is_causal] if has_value else None
    if form is None or len(queries) != 4 or len(keys) != 4 or queries[2] != keys[2]:
        return None
    if stated not in {"True", "False"}:
        return None
    batch, heads, seq, head_dim = queries
    return KernelCase(
        asked.op, form, batch=batch, seq=seq, heads=heads, kv_heads=keys[1],
        head_dim=head_dim, causal=stated == "True", direction=asked.direction,
    )  # fmt: skip


def _sizes(shapes: list[Any], place: int) -> list[int]:
    found = shapes[place] if place < len(shapes) else None
    if not isinstance(found, list) or not all(type(size) is int and size > 0 for size in found):
        return []
    return found


def _format(types: list[Any], place: int) -> str | None:
    return _FORMATS.get(str(types[place])) if place < len(types) else None
