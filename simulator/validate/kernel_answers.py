"""Which prediction answers a row of a kernel table?

Every row either yields a measured and a predicted time or a reason why not; the reason
is always a fact about the row, never about how well it is predicted.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from simulator import cells
from simulator.cost.gemm import Tiling
from simulator.cost.kernel_time import (
    ELEMENT_BYTES,
    attention_s,
    gemm_s,
    grouped_gemm_s,
    many_tensors_efficiency,
    memory_bound_s,
    peak_flop_per_s,
    softmax_s,
    widening_s,
)
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import FlashKernel, Precision
from simulator.errors import InputError
from simulator.serving.kernels.parameters import expert_fit, kernel_fits
from simulator.serving.kernels.routed_experts import busiest_rank_rows, experts_s
from simulator.tables.kernel_rows import (
    KernelRow,
    SkippedRowError,
    cache_append_s,
    mean_call_s,
    precision_of,
    protocol_of,
    quantise_s,
)
from simulator.validate.unfused_attention import unfused_attention_s

_NOMINAL_BYTES = 2.0**30
"""Size that a bandwidth stated without a size is compared at."""

_FEWEST_TRAINING_ROWS = 256
"""Rows from which on a product is one of training, not of generating single tokens."""

_EAGER_SWIGLU: Mapping[str, float] = MappingProxyType({"fwd": 5 / 3, "bwd": 13 / 5})
"""Traffic of a gate in several kernels over that of one. Forward: activation (2 passes over a
half), product (3). Backward: two products (6), the activation's gradient (3), joining both (4)."""

_EAGER_READS: Mapping[str, int] = MappingProxyType({"layer_norm": 2, "softmax": 3})
"""How often torch's kernels read a row: for its moments and the result; for its maximum, its sum
and the result. Source: pytorch aten/src/ATen/native/cuda/layer_norm_kernel.cu, SoftMax.cu."""

_THREADS_PER_ROW: Mapping[str, int] = MappingProxyType({"layer_norm": 128, "softmax": 1024})
"""Threads of one block, which has one row. Source: the same."""

_LONGEST_ROW_IN_REGISTERS = 1024
"""Elements of a row up to which a softmax reads it once. Source: SoftMax.cu."""

_THREADS_PER_SM: Mapping[str, int] = MappingProxyType(
    {"turing": 1024, "ampere-sm86": 1536, "ada": 1536, "blackwell-sm120": 1536}
)
"""Resident threads of a multiprocessor, where it is not 2048. Source: CUDA C++ Programming Guide,
technical specifications per compute capability."""

_ADAM_BYTES_PER_PARAMETER = 14.0
"""16-bit weight, gradient and two moments read, all but the gradient written."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a row measured and what the profile predicts [s]."""

    measured_s: float
    predicted_s: float


def compared(row: KernelRow, profile: HardwareProfile) -> Comparison:
    """Measured and predicted time of one row.

    Raises:
        SkippedRowError: The row lacks a fact that every prediction needs.
    """
    if row.text("skipped"):
        raise SkippedRowError(row.text("skipped"))
    answer = _answer_of(row.op)
    if answer is None:
        op = row.text("op") or "an unnamed operation"
        raise SkippedRowError(f"{op} is not a single modelled kernel")
    try:
        found = answer(row, profile)
        return replace(found, predicted_s=found.predicted_s + protocol_of(row).events_s)
    except InputError as error:
        raise SkippedRowError("; ".join(f"{f.path}: {f.rule}" for f in error.faults)) from error


def _answer_of(op: str) -> _Answer | None:
    if _SEVERAL_KERNELS.search(op):
        return None
    return next((answer for word, answer in _ANSWERS if re.match(word, op)), None)


def family_of(row: KernelRow) -> str:
    """Kernels that a reader judges together: what they do, in which size or direction.

    Products of at least 256 rows are those of training; the best of a search over shapes
    is a maximum, not a typical time.
    """
    op, direction, answer = row.text("op"), row.direction, _answer_of(row.op)
    if row.is_best_shape:
        return "best product of a search"
    if answer is _gemm:
        small = (row.number("m") or 0) < _FEWEST_TRAINING_ROWS
        return f"products of {'fewer than' if small else 'at least'} {_FEWEST_TRAINING_ROWS} rows"
    if answer is _grouped_gemm:
        return "grouped products"
    if answer is _attention:
        return f"flash attention, {direction or 'direction not stated'}"
    return f"{op}, {direction}" if direction else op


def _gemm(row: KernelRow, profile: HardwareProfile) -> Comparison:
    m, n, k, batch = row.count("m"), row.count("n"), row.count("k"), row.number("batch") or 1.0
    batch, protocol = max(1, round(batch)), protocol_of(row)
    if protocol.inner == "n":
        n, k = k, n
    precision = precision_of(row)
    _require_peak(profile, precision)
    protocol = protocol.on(profile, ELEMENT_BYTES[precision] * n * k * batch)
    flop = 2.0 * m * n * k * batch
    accumulate = "accumulate=True" in row.text("notes")
    cool_s = gemm_s(
        profile, m, n, k, batch=batch, precision=precision, accumulate=accumulate,
        read_again_after=protocol.read_again_after,
        tiling=Tiling(_named_tile(row), row.is_best_shape, protocol.cuts_inner),
    )  # fmt: skip
    predicted_s = mean_call_s(profile, precision, cool_s, flop, protocol)
    if precision == "fp8" and "framework linear" in row.text("notes"):
        predicted_s += quantise_s(profile, m * k)
    return Comparison(_measured_s(row, flop), predicted_s)


def _named_tile(row: KernelRow) -> tuple[int, int] | None:
    """Rows and columns of the tile that a kernel of cuBLAS is named after, columns first there."""
    name = re.search(r"_[sh]gemm_(\d+)x(\d+)_", row.text("notes"))
    return (int(name.group(2)), int(name.group(1))) if name else None


def _grouped_gemm(row: KernelRow, profile: HardwareProfile) -> Comparison:
    m, n, k, groups = (row.count(name) for name in ("m", "n", "k", "batch"))
    precision, protocol = precision_of(row), protocol_of(row)
    _require_peak(profile, precision)
    if row.direction == "wgrad":
        predicted_s = gemm_s(profile, n, k, m, batch=groups, precision=precision, accumulate=True)
    else:
        columns, inner = (k, n) if row.direction == "dgrad" else (n, k)
        predicted_s = grouped_gemm_s(
            profile, [m] * groups, columns, inner, precision=precision, by_torch=protocol.is_eager
        )
    flop = 2.0 * m * n * k * groups
    predicted_s = mean_call_s(profile, precision, predicted_s, flop, protocol)
    if protocol.is_per_group:
        predicted_s = max(predicted_s, groups * protocol.host_s)
    return Comparison(_measured_s(row, flop), predicted_s)


def _host_copy(row: KernelRow, profile: HardwareProfile) -> Comparison:
    """A copy between pinned memory and the device, over the host link."""
    num_bytes = float(row.count("m"))
    return Comparison(
        _measured_s(row, num_bytes=num_bytes), num_bytes / profile.host.pcie_bytes_per_s
    )


def _experts(row: KernelRow, profile: HardwareProfile) -> Comparison:
    """Experts of a serving engine, whose kernels serving knows."""
    precision = precision_of(row)
    _require_peak(profile, precision)
    top_k, ranks = row.noted(r"topk"), row.noted(r"\bEP")
    if top_k is None or ranks is None:
        raise SkippedRowError("topk or EP is not stated")
    tokens, experts = row.count("m"), row.count("batch")
    device_and_shape: dict[str, Any] = {
        "hidden": row.count("k"), "ffn_hidden": row.count("n"), "matrices": 3,
        "peak_flop_per_s": peak_flop_per_s(profile, precision),
        "bandwidth_bytes_per_s": profile.device.memory_bandwidth_bytes_per_s,
    }  # fmt: skip
    fit = expert_fit(kernel_fits(profile.name), precision)
    runs_over_all = "vllm" in row.text("source")
    skew = re.search(r"power_law_(\d+\.\d+)", row.text("notes"))
    draws = (
        busiest_rank_rows(tokens, experts, top_k, ranks, float(skew.group(1)))
        if skew
        else [_even_rows(tokens, experts, top_k, ranks)]
    )
    predicted_s = statistics.fmean(
        experts_s(
            fit, precision, [(1.0, rows) for rows in of_rank if rows],
            rows_elsewhere=max(0.0, tokens * top_k - sum(of_rank)) * runs_over_all,
            **device_and_shape,
        )
        for of_rank in draws
    )  # fmt: skip
    return Comparison(_measured_s(row), predicted_s)


def _even_rows(tokens: int, experts: int, top_k: int, ranks: int) -> Sequence[float]:
    """Rows of each expert of a rank where all experts get as many, or one each in turn."""
    each = max(1.0, tokens * top_k / experts)
    return [each] * min(experts // ranks, math.ceil(tokens * top_k / ranks))


def _unfused_attention(row: KernelRow, profile: HardwareProfile) -> Comparison:
    batch, seq, head_dim = row.count("batch"), row.count("seq"), row.count("head_dim")
    causal, (heads, _) = _is_causal(row), _heads(row, head_dim)
    precision = precision_of(row)
    _require_peak(profile, precision)
    passes, flop_ratio = _passes(row)
    flop = flop_ratio * 4.0 * batch * heads * seq * seq * head_dim * (0.5 if causal else 1.0)
    predicted_s = math.fsum(
        unfused_attention_s(
            profile, precision, batch=batch, heads=heads, seq=seq, head_dim=head_dim,
            causal=causal, backward=backward,
        )
        for backward in passes
    )  # fmt: skip
    return Comparison(_measured_s(row, flop), predicted_s)


def _passes(row: KernelRow) -> tuple[tuple[bool, ...], float]:
    """Whether each pass that a row measures is backward, and their work over that forward.

    Raises:
        SkippedRowError: The row does not say which it measures.
    """
    found = {"fwd": ((False,), 1.0), "bwd": ((True,), 2.5), "fwd+bwd": ((False, True), 3.5)}
    if row.direction not in found:
        raise SkippedRowError("direction is not stated")
    return found[row.direction]


def _attention(row: KernelRow, profile: HardwareProfile) -> Comparison:
    batch, seq, head_dim = row.count("batch"), row.count("seq"), row.count("head_dim")
    causal = _is_causal(row)
    heads, kv_heads = _heads(row, head_dim)
    v_dim = row.noted(r"\bv dim", head_dim) or head_dim
    precision = precision_of(row)
    _require_peak(profile, precision)
    kernel = _flash_kernel(row.op)

    def pass_s(*, backward: bool) -> float:
        return attention_s(
            profile, batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq, seq_kv=seq,
            head_dim=head_dim, v_head_dim=v_dim, causal=causal, backward=backward,
            precision=precision, kernel=kernel,
        )  # fmt: skip

    passes, flop_ratio = _passes(row)
    forward_flop = 2.0 * batch * heads * seq * seq * (head_dim + v_dim) * (0.5 if causal else 1.0)
    flop = forward_flop * flop_ratio
    predicted_s = math.fsum(pass_s(backward=backward) for backward in passes)
    if "incl. KV handling" in row.text("notes"):
        predicted_s += cache_append_s(profile, batch * seq, heads, kv_heads, head_dim)
    return Comparison(_measured_s(row, flop), predicted_s)


def _is_causal(row: KernelRow) -> bool:
    """Whether the mask is causal.

    Raises:
        SkippedRowError: The row does not say so.
    """
    stated = row.text("causal").lower()
    if stated in ("causal", "non-causal", "full", "bidirectional"):
        return stated == "causal"
    try:
        causal = cells.flag(row.cells, "causal")
    except InputError:
        causal = None
    if causal is None:
        raise SkippedRowError("whether the mask is causal is not stated")
    return causal


def _flash_kernel(op: str) -> FlashKernel:
    """The generation of fused attention that an operation's name states; the best by default."""
    older = re.search(r"(?:fa|flash_?(?:attn|attention)?)_?v?([12])(?!\d)", op)
    if older and older.group(1) == "1":
        return "flash-1"
    return "flash-2" if older or op.startswith("triton") else "best"


def _heads(row: KernelRow, head_dim: int) -> tuple[int, int]:
    """Query and key heads, stated in the notes directly or through the hidden size."""
    heads = row.noted(r"(?<!kv )(?<!kv_)\b(?:num_|n_?)?(?:q_?)?heads?(?:_q)?\s*[=:]?")
    if heads is None:
        heads = row.noted_before(r"(?:query |q |attention )?heads\b")
    if heads is None:
        hidden = row.noted("hidden")
        if hidden is None:
            raise SkippedRowError("the number of heads is not stated")
        heads = hidden // head_dim
    kv_heads = row.noted(r"kv[ _]heads?\s*[=:]?") or row.noted_before(r"kv[ _]heads?\b")
    return heads, kv_heads or heads


def _memory_bound(row: KernelRow, profile: HardwareProfile) -> Comparison:
    """Streaming kernels; Liger's cross entropy reads the logits twice and writes a gradient."""
    notes, op = row.text("notes"), row.op
    if "huggingface implementation" in notes and not op.startswith("layer_norm"):
        raise SkippedRowError("an eager implementation: several kernels with unknown traffic")
    num_bytes = _stated_bytes(row)
    of_rows, backward = re.search("norm|softmax", op) is not None, row.direction == "bwd"
    reads_again = op in _EAGER_READS and protocol_of(row).is_eager and not backward
    passes = 3.0 if op.startswith("cross_entropy") else 1.0
    if reads_again:
        passes = (1.0 + _eager_reads(row, profile, num_bytes)) / 2.0
    is_eager = "swiglu" in op and re.search("(torch|megatron) implementation", notes) is not None
    if is_eager:
        passes = _EAGER_SWIGLU[row.direction]
    over_many = op.startswith("optimizer") and protocol_of(row).is_eager
    kernel_s = memory_bound_s(
        profile,
        passes * num_bytes,
        efficiency=many_tensors_efficiency(profile, is_half=False) if over_many else None,
        over_rows=of_rows and not (backward or reads_again),
        reduces_rows="norm" in op and backward,
        operands_cached=not protocol_of(row).clears_cache,
    )
    if protocol_of(row).is_eager:
        kernel_s = max(kernel_s, _eager_least_s(row, profile))
    if op.startswith("megatron") and backward:
        kernel_s += _liger_forward_s(row, profile, is_eager=is_eager)
    predicted_s = kernel_s + _launch_s(row, profile)
    return Comparison(_measured_s(row, num_bytes=num_bytes), predicted_s)


def _eager_least_s(row: KernelRow, profile: HardwareProfile) -> float:
    """What torch's kernel takes at least for its elements, whatever bytes they have."""
    if row.op == "cast_fp32":
        return widening_s(profile, row.count("m"))
    if row.op == "softmax" and row.direction != "bwd":
        return softmax_s(profile, row.count("m") * row.count("n"), row.count("n"))
    return 0.0


def _eager_cross_entropy(row: KernelRow, profile: HardwareProfile) -> Comparison:
    """Torch's loss of fp32 logits and its gradient: five kernels, three of them over all logits.

    A softmax reads and writes them; zeros are written for the gradient of its result, which the
    last kernel reads beside that result to write the gradient of the logits. The other two are of
    targets alone.
    """
    elements = row.count("m") * row.count("n")
    size, cached = ELEMENT_BYTES[precision_of(row)], not protocol_of(row).clears_cache
    softmax, zeros, gradient, targets = (
        memory_bound_s(profile, passes * size * elements, operands_cached=cached)
        for passes in (2, 1, 3, 0)
    )
    softmax = max(softmax, softmax_s(profile, elements, row.count("n")))
    predicted_s = softmax + zeros + gradient + 2 * targets
    return Comparison(_measured_s(row), predicted_s)


def _eager_reads(row: KernelRow, profile: HardwareProfile, num_bytes: float) -> float:
    """How often torch's kernel reads a row from memory: again unless the last cache holds it.

    Rows that are under way are read and written there; all are there while they fill half of it.
    """
    if row.op == "softmax" and row.count("n") <= _LONGEST_ROW_IN_REGISTERS:
        return 1.0
    device = profile.device
    threads = _THREADS_PER_SM.get(device.architecture or "", 2048)
    rows_under_way = device.sm_count * threads / _THREADS_PER_ROW[row.op]
    filled = rows_under_way * num_bytes / row.count("m") / device.l2_cache_bytes
    missed = min(1.0, max(0.0, 2.0 * filled - 1.0))
    return 1.0 + (_EAGER_READS[row.op] - 1) * missed


def _liger_forward_s(row: KernelRow, profile: HardwareProfile, *, is_eager: bool) -> float:
    """What Liger's scripts for Megatron run before each backward pass [s].

    A forward pass, the sum of its output, and the gradient of that sum, written (Liger-Kernel,
    benchmark/scripts/benchmark_megatron_swiglu.py and benchmark_megatron_rms_norm.py).
    """
    output_bytes = ELEMENT_BYTES[precision_of(row)] * row.count("m") * row.count("n")
    of_swiglu = "swiglu" in row.op
    passes = 3.0 * (_EAGER_SWIGLU["fwd"] if is_eager else 1.0) if of_swiglu else 2.0
    forward_s = memory_bound_s(profile, passes * output_bytes, over_rows=not of_swiglu)
    return forward_s + 2.0 * memory_bound_s(profile, output_bytes)


def _launch_s(row: KernelRow, profile: HardwareProfile) -> float:
    """Launch time inside the measurement: rows that give a median time single calls."""
    return profile.kernels.launch_s if "implementation, median" in row.text("notes") else 0.0


def _adam(row: KernelRow, profile: HardwareProfile) -> Comparison:
    num_bytes = _ADAM_BYTES_PER_PARAMETER * row.count("m")
    measured_s = _measured_s(row, num_bytes=num_bytes)
    efficiency = many_tensors_efficiency(profile, is_half=True)
    return Comparison(measured_s, memory_bound_s(profile, num_bytes, efficiency=efficiency))


def _stated_bytes(row: KernelRow) -> float:
    """Bytes moved: noted, from time and rate, from the shape, or nominal for a rate alone."""
    noted = re.search(r"\((\d+) B\)", row.text("notes"))
    if noted:
        return float(noted.group(1))
    gbps, time_us = row.number("gbps"), row.number("time_us")
    if gbps is None:
        return _bytes_of_shape(row)
    return gbps * 1e3 * time_us if time_us is not None else _NOMINAL_BYTES


def _bytes_of_shape(row: KernelRow) -> float:
    """Least bytes that an m x n operand makes a kernel move, as benchmarks count them.

    Raises:
        SkippedRowError: The kernel's traffic does not follow from m and n.
    """
    passes = next((p for word, p in _PASSES if re.match(word, row.op)), None)
    both_stated = row.number("m") and row.number("n")
    if passes is None or row.direction not in passes or not both_stated:
        raise SkippedRowError("the bytes moved are not stated")
    element_bytes = ELEMENT_BYTES[precision_of(row)]
    return float(passes[row.direction] * row.count("m") * row.count("n") * element_bytes)


def _measured_s(row: KernelRow, flop: float = 0.0, num_bytes: float = 0.0) -> float:
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

_SEVERAL_KERNELS = re.compile(
    r"decode|paged|sparse|mlp \(|(?<!moe)_mlp|mla_|mha_prefill|eager_attention"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|linear_cross_entropy"
    r"|megatron_cross_entropy|copy_(to|from)_device_pageable|copy_both_ways"
)
"""Operations that are several kernels, or that training does not run; host copies through pageable
memory and both ways at once are not modelled."""

_ANSWERS: tuple[tuple[str, _Answer], ...] = (
    (r"copy_(to|from)_device_pinned", _host_copy),
    (r"fused_moe(_mlp)?$", _experts),
    (r"attention_unfused", _unfused_attention),
    (r"group(ed)?_?(gemm|mm|matmul)|moe_gemm|m_grouped_gemm", _grouped_gemm),
    (r"((batched|strided_batched|cublas(lt)?|deep|torch|te|fp8|bf16|fp16|mx|nv)_?)*"
     r"([hsb]?gemm|matmul|mm|bmm|linear|addmm|scaled_mm)(_|\b)", _gemm),
    (r"flash|fa_?[1-4]?(_|\b)|cudnn_(attention|sdpa|fmha)|triton_attention|attention_prefill"
     r"|(fused_attention|sdpa|fmha|scaled_dot_product|te_attention|attention)(_|\b)", _attention),
    (r"(fused_)?adam", _adam),
    (r"eager_cross_entropy", _eager_cross_entropy),
    (r"(fused_)?(linear_)?cross_entropy|(megatron_)?rms_?norm|layer_?norm|megatron_swiglu"
     r"|fused_add_rms_?norm|softmax|stream|rope|encoder_forward|activation|cast|optimizer|copy"
     r"|memcpy|triad|gelu|silu|swiglu|geglu|dropout|embedding", _memory_bound),
)  # fmt: skip
"""How rows are answered, by the beginning of the operation's name."""

_FORWARD_2 = {"": 2.0, "fwd": 2.0, "bwd": 3.0}
_PASSES: tuple[tuple[str, Mapping[str, float]], ...] = (
    (r"fused_add_rms_?norm", {"": 4.0, "fwd": 4.0}),
    (r"(fused_)?cross_entropy", {"": 1.0, "fwd": 1.0}),
    (r"(megatron_)?swiglu|geglu|[sg][ie]lu_and_mul", {"": 3.0, "fwd": 3.0, "bwd": 5.0}),
    (r"stream_(copy|mul)|copy|memcpy", {"": 2.0, "fwd": 2.0}),
    (r"(megatron_)?rms_?norm|layer_?norm|softmax|gelu|silu|activation", _FORWARD_2),
    (r"stream_(add|triad)|triad", {"": 3.0, "fwd": 3.0}),
)
"""Times that a kernel reads or writes an m x n operand, by direction: each tensor once."""
