"""Which kernel parameters are fitted together, and to which rows of a kernel table?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from simulator.tables.kernel_rows import KernelRow, SkippedRowError, precision_of, repeated_calls

_FLASH_2_IS_OLDER = (
    "H100", "H200", "H800", "H20", "GH200", "B200", "B300", "GB200", "GB300",
)  # fmt: skip
"""GPUs, as tables spell them, for which faster kernels than FlashAttention 2 are shipped."""

_STREAM_NAMES = (
    "stream", "rms_norm", "megatron_rms_norm", "fused_a", "softmax", "encoder", "cross",
    "activation", "cast", "optimizer",
)  # fmt: skip


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

    def prior_told_by(self, rows: Sequence[KernelRow]) -> dict[str, float]:
        """Typical values of the parameters that these rows of the block tell something of."""
        return {
            name: typical
            for name, typical in self.prior.items()
            if name not in _TOLD_BY or _TOLD_BY[name](rows)
        }


def _repeats_calls(rows: Sequence[KernelRow]) -> bool:
    return any(repeated_calls(row.text("notes")) > 1 for row in rows)


def _varies_length(rows: Sequence[KernelRow]) -> bool:
    return len({row.text("seq") for row in rows}) > 1


_TOLD_BY: Mapping[str, Callable[[Sequence[KernelRow]], bool]] = MappingProxyType(
    {
        "held_share": _repeats_calls,
        "boost_s": _repeats_calls,
        "backward_kv_ramp": _varies_length,
    }
)
"""Whether rows tell of a parameter at all; of all others, every row of the block does."""

_GEMM_PRIOR = MappingProxyType(
    {
        "efficiency": 0.8,
        "tile_half": 20.0,
        "k_ramp": 100.0,
        "memory_efficiency": 0.8,
        "floor_s": 4e-6,
        "held_share": 0.9,
        "boost_s": 2e-3,
    }
)
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
_NORM_PRIOR = MappingProxyType({"row_reduction_efficiency": 0.3})
_STREAM_PRIOR = MappingProxyType({"memory_efficiency": 0.85, "memory_floor_s": 4e-6})


def _is_gemm(precision: str) -> Callable[[KernelRow], bool]:
    def matches(row: KernelRow) -> bool:
        is_product = row.text("op") in ("gemm", "grouped_gemm", "grouped_gemm_contig")
        return is_product and not row.is_best_shape and _precision(row) == precision

    return matches


def _is_attention(row: KernelRow) -> bool:
    return "attention" in row.text("op") and not _is_old_attention(row)


def _is_attention_forward(row: KernelRow) -> bool:
    return _is_attention(row) and row.text("direction") == "fwd"


def _is_attention_backward(row: KernelRow) -> bool:
    return _is_attention(row) and "bwd" in row.text("direction")


def _is_old_attention(row: KernelRow) -> bool:
    older = row.text("op").startswith(("flash_attention_2", "triton_attention"))
    return older and any(name in row.text("gpu") for name in _FLASH_2_IS_OLDER)


def _is_old_attention_forward(row: KernelRow) -> bool:
    return _is_old_attention(row) and row.text("direction") == "fwd"


def _is_old_attention_backward(row: KernelRow) -> bool:
    return _is_old_attention(row) and row.text("direction") == "bwd"


def _is_stream(row: KernelRow) -> bool:
    return row.text("op").startswith(_STREAM_NAMES) and row.text("direction") != "bwd"


def _is_norm_backward(row: KernelRow) -> bool:
    return "norm" in row.text("op") and row.text("direction") == "bwd"


def _precision(row: KernelRow) -> str:
    try:
        return precision_of(row)
    except SkippedRowError:
        return ""


BLOCKS = (
    Block((), _STREAM_PRIOR, _is_stream, has_sources_per_number=True),
    Block((), _NORM_PRIOR, _is_norm_backward, has_sources_per_number=True),
    Block(("gemm", "bf16"), _GEMM_PRIOR, _is_gemm("bf16"), also=(("gemm", "fp16"),)),
    Block(("gemm", "fp16"), _GEMM_PRIOR, _is_gemm("fp16")),
    Block(("gemm", "tf32"), _GEMM_PRIOR, _is_gemm("tf32")),
    Block(("gemm", "fp32"), _GEMM_PRIOR, _is_gemm("fp32")),
    Block(("gemm", "fp8"), _GEMM_PRIOR, _is_gemm("fp8"), also=(("gemm", "mxfp8"),)),
    Block(("flash_attention",), _ATTENTION_PRIOR, _is_attention_forward),
    Block(
        ("flash_attention",), _BACKWARD_PRIOR, _is_attention_backward, has_sources_per_number=True
    ),
    Block(("flash_attention_2",), _ATTENTION_PRIOR, _is_old_attention_forward),
    Block(
        ("flash_attention_2",),
        _BACKWARD_PRIOR,
        _is_old_attention_backward,
        has_sources_per_number=True,
    ),
)
"""What is fitted, in order: later blocks take the earlier ones as found, because fp8 rows
contain streaming kernels and backward rows may contain a forward pass."""
