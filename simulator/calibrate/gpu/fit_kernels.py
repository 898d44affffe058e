"""Which kernel parameters make one profile fit all measured kernels of its device?

One parameter set per block (a number format, an attention family, the streaming kernels),
fitted over all its rows at once by a robust loss on the logarithm of predicted over
measured, with a weak prior that keeps parameters plausible which the rows cannot see. Needs the
``calibrate`` extra (scipy).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from simulator.calibrate.profile_text import with_value
from simulator.cost.kernel_time import without_sustained_clock
from simulator.described.base import file_name_of_field
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import KernelModel
from simulator.tables.kernel_rows import KernelRow, SkippedRowError, precision_of, protocol_of
from simulator.units import format_quantity, three_digits
from simulator.validate.kernel_answers import compared

_FLASH_2_IS_OLDER = (
    "H100", "H200", "H800", "H20", "GH200", "B200", "B300", "GB200", "GB300",
)  # fmt: skip
"""GPUs, as tables spell them, for which faster kernels than FlashAttention 2 are shipped."""


_STREAM_NAMES = (
    "stream", "encoder", "cross", "activation", "cast", "optimizer", "megatron_swiglu",
    "fused_adam",
)  # fmt: skip

_GEMM_PRIOR = MappingProxyType(
    {
        "efficiency": 0.8,
        "tile_half": 20.0,
        "tile_start_s": 1e-6,
        "tail": 0.5,
        "memory_efficiency": 0.8,
        "floor_s": 2.5e-6,
        "joule_per_operation": 1e-12,
        "boost_s": 1e-2,
    }
)
"""Floor: what the shortest kernels take on a busy stream of an H100 (reports/gpu/findings.md)."""

_VECTOR_PRIOR = MappingProxyType({**_GEMM_PRIOR, "efficiency": 0.9, "tile_half": 10.0})
"""Of products on vector units, which compute so much slower that small tiles starve them less. The
fastest measured reach 82 % (H100, reports/gpu), 86 % (A100) and 97 % (V100) of the peak."""

_ATTENTION_PRIOR = MappingProxyType(
    {
        "forward_efficiency": 0.8,
        "softmax_dim": 32.0,
        "kv_ramp": 150.0,
        "tail": 0.5,
        "floor_s": 6e-6,
    }
)

_BACKWARD_PRIOR = MappingProxyType(
    {"backward_efficiency": 0.65, "backward_tail": 0.5, "backward_kv_ramp": 150.0}
)

_NORM_PRIOR = MappingProxyType({"row_reduction_efficiency": 0.37})
"""What backwards of PyTorch's norms reach on an H100 and an H200 alike (``reports/gpu``): layer and
RMS norms of 8,192 and 32,768 rows of 4,096 in bf16 take 0.35 to 0.38 of either bandwidth."""

_STREAM_PRIOR = MappingProxyType(
    {
        "memory_efficiency": 0.85,
        "row_efficiency": 0.75,
        "memory_floor_s": 2.5e-6,
        "cache_speedup": 2.5,
    }
)

_ROBUST_SCALE = 0.1
"""Relative error beyond which a row counts as an outlier (soft-L1 loss)."""

_PRIOR_WEIGHT = 0.002
"""Weight of the prior: a parameter off by a factor of two costs as much as 6 % error."""

_PRIOR_SPREAD = 0.7
"""Natural-log spread of the prior: a factor of two either way is ordinary."""

_MEMORY_SPREAD = 0.15
"""The same of the share of memory's bandwidth that products reach, whose memory is that of all:
families of GPUs have 0.60 to 0.81 as shipped (assumption)."""

_AT_MOST_ONE = ("efficiency", "share", "tail")
"""Ends of names of shares of a peak, and of what list scheduling may leave of the longest tile
(Graham, SIAM J. Appl. Math. 17(2), 1969)."""

_FEWEST_ROWS = 6
"""A block needs at least so many rows."""


@dataclass(frozen=True, slots=True)
class Block:
    """Parameters that are fitted together.

    Attributes:
        path: Keys below ``kernels``; empty for the streaming kernels' own numbers.
        prior: Typical value of every fitted parameter, by its Python name.
        rows: Whether a row tells something about the block.
        also: Paths that take the same numbers (formats that share their kernels).
        has_sources_per_number: Whether every number states its source, because others stand
            beside it that are not of this fit.
    """

    path: tuple[str, ...]
    prior: Mapping[str, float]
    rows: Callable[[KernelRow], bool]
    also: tuple[tuple[str, ...], ...] = ()
    has_sources_per_number: bool = False

    def prior_determined_by(self, rows: Sequence[KernelRow]) -> dict[str, float]:
        """Typical values of the parameters that these rows of the block tell something of."""
        return {
            name: typical
            for name, typical in self.prior.items()
            if name not in _DETERMINED_BY or _DETERMINED_BY[name](rows)
        }


def _finds_cached(rows: Sequence[KernelRow]) -> bool:
    return not all(protocol_of(row).clears_cache for row in rows)


def _repeats_calls(rows: Sequence[KernelRow]) -> bool:
    return any(protocol_of(row).read_again_after for row in rows)


_DETERMINED_BY: Mapping[str, Callable[[Sequence[KernelRow]], bool]] = MappingProxyType(
    {
        "joule_per_operation": _repeats_calls,
        "boost_s": _repeats_calls,
        "cache_speedup": _finds_cached,
        "row_efficiency": lambda rows: any(map(_is_over_rows, rows)),
        "backward_kv_ramp": lambda rows: len({row.text("seq") for row in rows}) > 1,
    }
)
"""Whether rows tell of a parameter at all; of all others, every row of the block does."""


def _is_gemm(precision: str) -> Callable[[KernelRow], bool]:
    return lambda row: _is_product(row) and not row.is_best_shape and _precision(row) == precision


def _measures(
    is_kernel: Callable[[KernelRow], bool], *directions: str
) -> Callable[[KernelRow], bool]:
    """Whether a row is of such a kernel, and of one of these passes."""
    return lambda row: is_kernel(row) and row.direction in directions


def _is_product(row: KernelRow) -> bool:
    return row.text("op") in ("gemm", "bmm", "grouped_gemm", "grouped_gemm_contig")


def _is_attention(row: KernelRow) -> bool:
    return "attention" in row.text("op") and not _is_old_attention(row)


def _is_old_attention(row: KernelRow) -> bool:
    older = row.text("op").startswith(("flash_attention_2", "triton_attention"))
    return older and any(name in row.text("gpu") for name in _FLASH_2_IS_OLDER)


def _is_norm(row: KernelRow) -> bool:
    return "norm" in row.text("op")


def _is_torchs_norm(row: KernelRow) -> bool:
    """Whether a norm is PyTorch's own kernel, not Liger's, Apex's or one written out in Python.

    Liger's benchmark says which; what it calls Hugging Face's is PyTorch's where it is a layer
    norm, and eager operations where it is an RMS norm.
    """
    notes, op = row.text("notes"), row.text("op")
    says = re.search(r"(\w+) implementation", notes)
    own = {"torch", "huggingface"} if op == "layer_norm" else {"torch"}
    return _is_norm(row) and (says is None or says[1] in own)


def _is_stream(row: KernelRow) -> bool:
    streams = row.text("op").startswith(_STREAM_NAMES) and row.direction != "bwd"
    return streams or _is_over_rows(row)


def _is_over_rows(row: KernelRow) -> bool:
    return (_is_norm(row) and row.direction != "bwd") or "softmax" in row.text("op")


def _precision(row: KernelRow) -> str:
    try:
        return precision_of(row)
    except SkippedRowError:
        return ""


BLOCKS = (
    Block((), _STREAM_PRIOR, _is_stream, has_sources_per_number=True),
    Block((), _NORM_PRIOR, _measures(_is_torchs_norm, "bwd"), has_sources_per_number=True),
    Block(("gemm", "bf16"), _GEMM_PRIOR, _is_gemm("bf16"), also=(("gemm", "fp16"),)),
    Block(("gemm", "fp16"), _GEMM_PRIOR, _is_gemm("fp16")),
    Block(("gemm", "tf32"), _GEMM_PRIOR, _is_gemm("tf32")),
    Block(("gemm", "fp32"), _VECTOR_PRIOR, _is_gemm("fp32")),
    Block(
        ("gemm", "fp8"),
        _GEMM_PRIOR,
        _is_gemm("fp8"),
        also=(("gemm", "mxfp8"), ("gemm", "nvfp4")),
    ),
    Block(("flash_attention",), _ATTENTION_PRIOR, _measures(_is_attention, "fwd")),
    Block(
        ("flash_attention",),
        _BACKWARD_PRIOR,
        _measures(_is_attention, "bwd", "fwd+bwd"),
        has_sources_per_number=True,
    ),
    Block(("flash_attention_2",), _ATTENTION_PRIOR, _measures(_is_old_attention, "fwd")),
    Block(
        ("flash_attention_2",),
        _BACKWARD_PRIOR,
        _measures(_is_old_attention, "bwd"),
        has_sources_per_number=True,
    ),
)
"""What is fitted, in order: later blocks take the earlier ones as found, because fp8 rows
contain streaming kernels and backward rows may contain a forward pass."""


def family_blocks() -> tuple[Block, ...]:
    """The same for many GPUs at once, which share the kernels of both 16-bit formats.

    The best of a search over shapes is a row like others here: of some GPUs it is all there is.
    """
    half = Block(
        ("gemm", "fp16"),
        _GEMM_PRIOR,
        lambda row: _is_product(row) and is_half_precision(row),
        also=(("gemm", "bf16"), ("gemm", "tf32")),
    )
    of_half = (half.path, *half.also)
    alone = [block for block in BLOCKS if block.path not in of_half]
    return (*alone[:2], half, *alone[2:])


def is_half_precision(row: KernelRow) -> bool:
    """Whether the row's operands have 16 bits."""
    return _precision(row) in ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters of one block and how far its rows are off.

    Attributes:
        profile: Name of the profile whose rows were fitted.
        block: What was fitted.
        values: Parameters by their Python names.
        errors: Relative error of every row.
    """

    profile: str
    block: Block
    values: Mapping[str, float]
    errors: Sequence[float]

    @property
    def residual(self) -> str:
        """Rows and errors in words."""
        size = [abs(error) for error in self.errors]
        mape, median = statistics.fmean(size), statistics.median(size)
        return f"{len(size)} rows, mean error {mape:.1%}, median {median:.1%}"

    def __str__(self) -> str:
        values = "  ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        return f"{self.profile} {'.'.join(self.block.path) or 'memory'}: {self.residual}; {values}"


def fit_profile(profile: HardwareProfile, rows: Sequence[KernelRow]) -> list[Fit]:
    """One fit per block of which enough rows tell.

    Args:
        profile: Profile whose other numbers (peaks, bandwidth) stay as they are.
        rows: Rows of this device only.
    """
    fits = []
    current = without_sustained_clock(profile)
    for block in BLOCKS:
        fit = fit_block(current, block, rows)
        if fit is not None:
            fits.append(fit)
            current = with_values(current, block, fit.values)
    return fits


def fit_block(profile: HardwareProfile, block: Block, rows: Sequence[KernelRow]) -> Fit | None:
    """Best parameters of one block, or None where too few rows can be answered."""
    from scipy.optimize import minimize  # heavy; only calibration needs it

    answerable = [row for row in rows if block.rows(row) and _is_answerable(row, profile)]
    if len(answerable) < _FEWEST_ROWS or not _has(profile.kernels, block.path):
        return None
    prior = block.prior_determined_by(answerable)

    def values_of(point: Sequence[float]) -> dict[str, float]:
        pairs = zip(prior.items(), point, strict=True)
        return {name: typical * abs(factor) for (name, typical), factor in pairs}

    def errors_of(values: Mapping[str, float]) -> list[float]:
        candidate = with_values(profile, block, values)
        pairs = (compared(row, candidate) for row in answerable)
        return [pair.predicted_s / pair.measured_s - 1.0 for pair in pairs]

    def loss(point: Sequence[float]) -> float:
        values = values_of(point)
        excess = math.fsum(max(0.0, v - 1.0) for n, v in values.items() if n.endswith(_AT_MOST_ONE))
        excess += max(0.0, 1.0 - values.get("cache_speedup", 1.0))
        if excess > 0:
            return 1e3 * (1.0 + excess)
        data = statistics.fmean(_soft_l1(math.log1p(error)) for error in errors_of(values))
        unlikely = math.fsum(
            (math.log(max(abs(factor), 1e-9)) / _prior_spread(block, name)) ** 2
            for name, factor in zip(prior, point, strict=True)
        )
        return data + _PRIOR_WEIGHT * unlikely

    options = {"maxfev": 120 * (1 + len(prior)), "xatol": 1e-3, "fatol": 1e-6}

    def best_of(starts: Sequence[Sequence[float]]) -> Any:
        found = [minimize(loss, start, method="Nelder-Mead", options=options) for start in starts]
        return min(found, key=lambda result: result.fun)

    best = best_of([[1.0] * len(prior), [0.7] * len(prior)])
    if "boost_s" in prior:
        best = min(best, best_of(_other_valleys(best.x, prior)), key=lambda result: result.fun)
    values = {name: three_digits(value) for name, value in values_of(best.x).items()}
    return Fit(profile.name, block, values, errors_of(values))


def _other_valleys(point: Sequence[float], prior: Mapping[str, float]) -> Sequence[Sequence[float]]:
    """The point with a power limit that is felt soon, and late.

    Of ``boost_s`` the loss has several valleys.
    """
    limits = ({"joule_per_operation": 1.0, "boost_s": factor} for factor in (0.3, 5.0))
    return [
        [limit.get(name, value) for name, value in zip(prior, point, strict=True)]
        for limit in limits
    ]


def with_values(
    profile: HardwareProfile, block: Block, values: Mapping[str, float]
) -> HardwareProfile:
    """The profile with one block's parameters replaced."""
    kernels = profile.kernels
    match block.path:
        case ():
            update: dict[str, Any] = dict(values)
        case ("gemm", precision):
            model = kernels.gemm[precision].model_copy(update=dict(values))  # type: ignore[index]
            update = {"gemm": {**kernels.gemm, precision: model}}
        case (family,):
            update = {family: getattr(kernels, family).model_copy(update=dict(values))}
        case _:
            raise ValueError(block.path)
    return profile.model_copy(update={"kernels": kernels.model_copy(update=update)})


def written(text: str, path: Sequence[str], fit: Fit, kind: str, reference: str) -> str:
    """Text of a profile file with the fit's numbers, and their source, at ``path``."""
    source = f'{{kind: {kind}, reference: "{reference}"}}'
    alone = fit.block.has_sources_per_number
    for name, value in fit.values.items():
        number = format_quantity(value, "s") if name.endswith("_s") else f"{value:.12g}"
        shown = f"{{value: {number}, source: {source}}}" if alone else number
        text = with_value(text, ["kernels", *path, file_name_of_field(name)], shown)
    if alone or not fit.values:
        return text
    return with_value(text, ["kernels", *path, "source"], source)


def _prior_spread(block: Block, name: str) -> float:
    of_memory = block.path[:1] == ("gemm",) and name == "memory_efficiency"
    return _MEMORY_SPREAD if of_memory else _PRIOR_SPREAD


def _soft_l1(error: float) -> float:
    return math.sqrt(1.0 + (error / _ROBUST_SCALE) ** 2) - 1.0


def _is_answerable(row: KernelRow, profile: HardwareProfile) -> bool:
    try:
        compared(row, profile)
    except SkippedRowError:
        return False
    return True


def with_fits(text: str, profile: HardwareProfile, fits: Sequence[Fit], table: str) -> str:
    """Text of a profile's file with all fits, each with ``table`` and residual as source."""
    for fit in fits:
        text = written(text, fit.block.path, fit, "fitted", f"{table}: {fit.residual}")
        for target in fit.block.also:
            if _has(profile.kernels, target):
                shared = f"as {fit.block.path[-1]}, whose kernels it shares"
                text = written(text, target, fit, "assumed", shared)
    return text


def _has(kernels: KernelModel, path: Sequence[str]) -> bool:
    match path:
        case ("gemm", precision):
            return precision in kernels.gemm
        case (family,):
            return getattr(kernels, family) is not None
    return True
