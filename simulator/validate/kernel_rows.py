"""What does one row of a kernel table say, and which prediction answers it?

Every row either yields a measured and a predicted time or a reason why not; the reason
is always a fact about the row, never about how well it is predicted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from simulator.cost.kernels import attention_s, gemm_s, grouped_gemm_s, memory_bound_s
from simulator.errors import InputError
from simulator.spec.hardware import HardwareProfile
from simulator.spec.kernels import Precision
from simulator.validate.kernel_protocol import (
    cache_append_s,
    quantise_s,
    repeated_calls,
    under_power_limit_s,
)

PROFILE_OF_GPU: Mapping[str, str] = MappingProxyType(
    {
        "AMD MI300X": "mi300x",
        "AMD MI325X": "mi325x",
        "AMD MI355X": "mi355x",
        "AMD Instinct MI300X": "mi300x",
        "AMD Instinct MI325X": "mi325x",
        "AMD Instinct MI355X": "mi355x",
        "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
        "NVIDIA A100 PCIe": "a100-pcie-80gb",
        "NVIDIA A100 PCIe 80GB": "a100-pcie-80gb",
        "NVIDIA A100 SXM": "a100-sxm-80gb",
        "NVIDIA A100 SXM 40GB": "a100-sxm-40gb",
        "NVIDIA A100 SXM 80GB": "a100-sxm-80gb",
        "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
        "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
        "NVIDIA A800 SXM": "a800-sxm-80gb",
        "NVIDIA B200": "b200-sxm-180gb",
        "NVIDIA B200 SXM": "b200-sxm-180gb",
        "NVIDIA B300": "b300-sxm",
        "NVIDIA B300 SXM": "b300-sxm",
        "NVIDIA GB200": "gb200-nvl72",
        "NVIDIA GB200 SXM": "gb200-nvl72",
        "NVIDIA GB300": "gb300-nvl72",
        "NVIDIA GB300 SXM": "gb300-nvl72",
        "NVIDIA GH200": "gh200-96gb",
        "NVIDIA GH200 480GB": "gh200-96gb",
        "NVIDIA GH200 SXM": "gh200-96gb",
        "NVIDIA GeForce RTX 4090": "rtx-4090",
        "NVIDIA H100": "h100-sxm-80gb",
        "NVIDIA H100 (HBM2e, 500 W)": "h100-hbm2e-96gb-500w",
        "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
        "NVIDIA H100 PCIe": "h100-pcie-80gb",
        "NVIDIA H100 SXM": "h100-sxm-80gb",
        "NVIDIA H20": "h20",
        "NVIDIA H200": "h200-sxm-141gb",
        "NVIDIA H200 SXM": "h200-sxm-141gb",
        "NVIDIA H800": "h800",
        "NVIDIA H800 SXM5": "h800",
        "NVIDIA L40S": "l40s",
        "NVIDIA RTX 4090": "rtx-4090",
        "NVIDIA V100 SXM2 32GB": "v100-sxm2-32gb",
        "NVIDIA V100 SXM3 32GB": "v100-sxm3-32gb",
        "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
        "Tesla V100-SXM3-32GB": "v100-sxm3-32gb",
    }
)
"""Hardware profile of every GPU name that the tables, and torch, use."""

_NOMINAL_BYTES = 2.0**30
"""Size that a bandwidth stated without a size is compared at."""

_FEWEST_TRAINING_ROWS = 256
"""Rows from which on a product is one of training, not of generating single tokens."""

_ADAM_BYTES_PER_PARAMETER = 14.0
"""16-bit weight, gradient and two moments read, all but the gradient written."""


class SkippedRowError(Exception):
    """The row cannot be answered; the message says which fact it lacks."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One measured kernel, as the table states it.

    Attributes:
        cells: Column name to text; an absent value is empty.
    """

    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """Text of a column, empty if absent."""
        return (self.cells.get(name) or "").strip()

    def number(self, name: str) -> float | None:
        """Number of a column, None if absent."""
        text = self.text(name)
        try:
            return float(text) if text else None
        except ValueError:
            return None

    def count(self, name: str) -> int:
        """Whole number of a column.

        Raises:
            SkippedRowError: The row does not state it.
        """
        value = self.number(name)
        if value is None or value < 1:
            raise SkippedRowError(f"{name} is not stated")
        return round(value)

    def noted(self, pattern: str, default: int | None = None) -> int | None:
        """Whole number that the notes give after ``pattern``."""
        match = re.search(pattern + r"\s*(\d+)", self.text("notes"))
        return int(match.group(1)) if match else default

    @property
    def is_best_shape(self) -> bool:
        """Whether the time is the best of a search over shapes, not a typical one."""
        return "best shape" in self.text("notes")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a row measured and what the profile predicts [s]."""

    measured_s: float
    predicted_s: float


def read_kernel_rows(path: str | Path) -> list[KernelRow]:
    """All rows of a kernel table.

    Raises:
        InputError: The file cannot be read or lacks a needed column.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = {"id", "op", "gpu", "dtype"} - set(reader.fieldnames or ())
            rows = [KernelRow(cells) for cells in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError.single("", f"cannot be read: {error}", file=str(path)) from error
    if missing:
        rule = f"lacks the columns {', '.join(sorted(missing))}"
        raise InputError.single("", rule, file=str(path))
    return rows


def profile_name_of(row: KernelRow) -> str:
    """Name of the row's hardware profile.

    Raises:
        SkippedRowError: No profile describes the GPU.
    """
    gpu = row.text("gpu")
    if gpu not in PROFILE_OF_GPU:
        raise SkippedRowError(f"no hardware profile describes {gpu or 'an unnamed GPU'}")
    return PROFILE_OF_GPU[gpu]


def compared(row: KernelRow, profile: HardwareProfile) -> Comparison:
    """Measured and predicted time of one row.

    Raises:
        SkippedRowError: The row lacks a fact that every prediction needs.
    """
    if row.text("skipped"):
        raise SkippedRowError(row.text("skipped"))
    op = row.text("op")
    answer = _answer_of(op)
    if answer is None:
        raise SkippedRowError(f"{op or 'an unnamed operation'} is no single modelled kernel")
    return answer(row, profile)


def _answer_of(op: str) -> _Answer | None:
    return next((answer for prefix, answer in _ANSWERS.items() if op.startswith(prefix)), None)


def family_of(row: KernelRow) -> str:
    """Kernels that a reader judges together: what they do, in which size or direction.

    Products of at least 256 rows are those of training; the best of a search over shapes
    is a maximum, not a typical time.
    """
    op, direction = row.text("op"), row.text("direction")
    if row.is_best_shape:
        return "best product of a search"
    if op.startswith("gemm"):
        small = (row.number("m") or 0) < _FEWEST_TRAINING_ROWS
        return f"products of {'fewer than' if small else 'at least'} {_FEWEST_TRAINING_ROWS} rows"
    if op.startswith("grouped_gemm"):
        return "grouped products"
    if _answer_of(op) is _attention:
        return f"flash attention, {direction or 'direction unstated'}"
    return f"{op}, {direction}" if direction else op


def precision_of(row: KernelRow) -> Precision:
    """Number format of the row's products.

    Raises:
        SkippedRowError: The row states none, or one that no profile knows.
    """
    dtype = row.text("dtype").lower().replace("float", "fp").replace("bfp16", "bf16")
    for precision in _PRECISIONS:
        if dtype.startswith(precision):
            return precision
    raise SkippedRowError(f"number format {dtype or 'unstated'} is not modelled")


_PRECISIONS: tuple[Precision, ...] = (
    "mxfp8", "nvfp4", "bf16", "fp16", "fp32", "tf32", "fp8",
)  # fmt: skip


def _gemm(row: KernelRow, profile: HardwareProfile) -> Comparison:
    m, n, k, batch = row.count("m"), row.count("n"), row.count("k"), row.number("batch") or 1.0
    precision = precision_of(row)
    _require_peak(profile, precision)
    flop = 2.0 * m * n * k * batch
    accumulate = "accumulate=True" in row.text("notes")
    cool_s = gemm_s(
        profile, m, n, k, batch=round(batch), precision=precision, accumulate=accumulate,
        fits_tiles=row.is_best_shape,
    )  # fmt: skip
    calls = repeated_calls(row.text("notes"))
    predicted_s = under_power_limit_s(profile, precision, cool_s, calls)
    if precision == "fp8" and "framework linear" in row.text("notes"):
        predicted_s += quantise_s(profile, m * k)
    return Comparison(_measured_s(row, flop), predicted_s)


def _grouped_gemm(row: KernelRow, profile: HardwareProfile) -> Comparison:
    m, n, k, groups = (row.count(name) for name in ("m", "n", "k", "batch"))
    precision = precision_of(row)
    _require_peak(profile, precision)
    if row.text("direction") == "wgrad":
        predicted_s = gemm_s(profile, n, k, m, batch=groups, precision=precision, accumulate=True)
    elif row.text("direction") == "dgrad":
        predicted_s = grouped_gemm_s(profile, [m] * groups, k, n, precision=precision)
    else:
        predicted_s = grouped_gemm_s(profile, [m] * groups, n, k, precision=precision)
    return Comparison(_measured_s(row, 2.0 * m * n * k * groups), predicted_s)


def _attention(row: KernelRow, profile: HardwareProfile) -> Comparison:
    batch, seq, head_dim = row.count("batch"), row.count("seq"), row.count("head_dim")
    if row.text("causal").lower() not in ("true", "false"):
        raise SkippedRowError("whether the mask is causal is not stated")
    causal = row.text("causal").lower() == "true"
    heads, kv_heads = _heads(row, head_dim)
    v_dim = row.noted(r"\bv dim", head_dim) or head_dim
    precision = precision_of(row)
    _require_peak(profile, precision)
    older = row.text("op").startswith(("flash_attention_2", "triton"))

    def pass_s(*, backward: bool) -> float:
        return attention_s(
            profile, batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq, seq_kv=seq,
            head_dim=head_dim, v_head_dim=v_dim, causal=causal, backward=backward,
            precision=precision, kernel="flash-2" if older else "best",
        )  # fmt: skip

    direction = row.text("direction")
    passes = {"fwd": (False,), "bwd": (True,), "fwd+bwd": (False, True)}
    if direction not in passes:
        raise SkippedRowError("direction is not stated")
    forward_flop = 2.0 * batch * heads * seq * seq * (head_dim + v_dim) * (0.5 if causal else 1.0)
    flop = forward_flop * {"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5}[direction]
    predicted_s = sum(pass_s(backward=backward) for backward in passes[direction])
    if "incl. KV handling" in row.text("notes"):
        predicted_s += cache_append_s(profile, batch * seq, heads, kv_heads, head_dim)
    return Comparison(_measured_s(row, flop), predicted_s)


def _heads(row: KernelRow, head_dim: int) -> tuple[int, int]:
    """Query and key heads, stated in the notes outright or through the hidden size."""
    heads = row.noted(r"(?<!kv )\bheads")
    if heads is None:
        hidden = row.noted("hidden")
        if hidden is None:
            raise SkippedRowError("the number of heads is not stated")
        heads = hidden // head_dim
    return heads, row.noted("kv heads", heads) or heads


def _memory_bound(row: KernelRow, profile: HardwareProfile) -> Comparison:
    """Streaming kernels; Liger's cross entropy reads the logits twice and writes a gradient."""
    notes, op = row.text("notes"), row.text("op")
    if "huggingface implementation" in notes:
        raise SkippedRowError("an eager implementation: several kernels of unstated traffic")
    num_bytes = _stated_bytes(row)
    backward_norm = "norm" in op and row.text("direction") == "bwd"
    passes = 3.0 if op.startswith("cross_entropy") else 1.0
    kernel_s = memory_bound_s(profile, passes * num_bytes, reduces_rows=backward_norm)
    predicted_s = kernel_s + _launch_s(row, profile)
    return Comparison(_measured_s(row, num_bytes=num_bytes), predicted_s)


def _launch_s(row: KernelRow, profile: HardwareProfile) -> float:
    """Launch time inside the measurement: rows that give a median time single calls."""
    return profile.kernels.launch_s if "implementation, median" in row.text("notes") else 0.0


def _adam(row: KernelRow, profile: HardwareProfile) -> Comparison:
    num_bytes = _ADAM_BYTES_PER_PARAMETER * row.count("m")
    measured_s = _measured_s(row, num_bytes=num_bytes)
    return Comparison(measured_s, memory_bound_s(profile, num_bytes))


def _stated_bytes(row: KernelRow) -> float:
    """Bytes moved: noted, from time and rate, or nominal where only a rate is given."""
    noted = re.search(r"\((\d+) B\)", row.text("notes"))
    if noted:
        return float(noted.group(1))
    gbps, time_us = row.number("gbps"), row.number("time_us")
    if gbps is None:
        raise SkippedRowError("the bytes moved are not stated")
    return gbps * 1e3 * time_us if time_us is not None else _NOMINAL_BYTES


def _measured_s(row: KernelRow, flop: float = 0.0, num_bytes: float = 0.0) -> float:
    """Measured time, from the stated rate where no time is stated."""
    time_us, tflops, gbps = (row.number(name) for name in ("time_us", "tflops", "gbps"))
    if time_us:
        return time_us * 1e-6
    if flop and tflops:
        return flop / (tflops * 1e12)
    if num_bytes and gbps:
        return num_bytes / (gbps * 1e9)
    raise SkippedRowError("neither a time nor a rate is stated")


def _require_peak(profile: HardwareProfile, precision: Precision) -> None:
    if precision not in profile.kernels.gemm:
        raise SkippedRowError(f"{profile.name} has no {precision} matrix unit")


_Answer = Callable[[KernelRow, HardwareProfile], Comparison]

_ANSWERS: Mapping[str, _Answer] = MappingProxyType(
    {
        "gemm": _gemm,
        "grouped_gemm": _grouped_gemm,
        "flash_attention": _attention,
        "cudnn_attention": _attention,
        "triton_attention": _attention,
        "attention_prefill": _attention,
        "cross_entropy": _memory_bound,
        "fused_adam": _adam,
        "rms_norm": _memory_bound,
        "megatron_rms_norm": _memory_bound,
        "fused_add_rms_norm": _memory_bound,
        "layernorm": _memory_bound,
        "softmax": _memory_bound,
        "stream": _memory_bound,
        "rope": _memory_bound,
        "encoder_forward": _memory_bound,
        "activation": _memory_bound,
        "cast": _memory_bound,
        "optimizer": _memory_bound,
        "eager_cross_entropy": _memory_bound,
    }
)
"""How rows are answered, by the beginning of the operation's name."""
