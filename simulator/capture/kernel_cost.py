"""How long does a captured operator take on a profile?

Matrix products, convolutions and attention by the models of their families; all else moves
bytes. Operators that do more than move bytes and that no model knows are counted by their bytes
and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.capture.table import Call, Tensor
from simulator.cost.kernel_time import (
    LARGEST_TILE_SIDE,
    attention_s,
    gemm_s,
    grouped_gemm_s,
    many_tensors_efficiency,
    memory_bound_s,
    rows_are_aligned,
    softmax_s,
    widening_s,
)
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import FlashKernel, Precision

FORMATS: Mapping[str, Precision] = MappingProxyType(
    {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}
)
CAUSAL_AT: Mapping[str, int] = MappingProxyType(
    {
        "_scaled_dot_product_flash_attention": 1,
        "_scaled_dot_product_flash_attention_backward": 3,
        "_scaled_dot_product_efficient_attention": 2,
        "_scaled_dot_product_efficient_attention_backward": 5,
        "_scaled_dot_product_cudnn_attention": 2,
        "_scaled_dot_product_cudnn_attention_backward": 3,
    }
)
"""Place of ``is_causal`` among the numbers that an operator is called with."""
_KERNELS: Mapping[str, FlashKernel] = MappingProxyType(
    {
        "_scaled_dot_product_flash_attention": "flash-2",
        "_scaled_dot_product_efficient_attention": "efficient",
    }
)
"""What torch ships under a name: FlashAttention-2 on all devices
(``ATen/native/transformers/cuda/flash_attn``), and CUTLASS's memory-efficient kernel. cuDNN has the
best of the device."""
_PASSES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "_softmax": (3,), "_log_softmax": (3,),
        "_softmax_backward_data": (2, 2), "_log_softmax_backward_data": (2, 1),
    }
)  # fmt: skip
"""How often a softmax reads each operand where a block cannot keep a row: for the maximum, for the
sum, and to write. Each pass streams: four over rows of 50,304 and of 128,256 in fp32 reach 0.88 to
0.92 of the bandwidth of an H100 (``reports/gpu/raw.jsonl.gz``). Source: torch's ``SoftMax.cu``,
``cunn_SoftMaxForward`` and ``Backward``."""
_READ_AGAIN: Mapping[str, int] = MappingProxyType(
    {
        "native_batch_norm": 1, "native_batch_norm_backward": 2, "cudnn_batch_norm": 1,
        "cudnn_batch_norm_backward": 2, "native_group_norm": 1, "native_group_norm_backward": 2,
    }
)  # fmt: skip
"""How many of its first operands a norm over pictures reads a second time: once for the sums of a
channel, and once to write. Source: torch's ``Normalization.cuh`` and ``group_norm_kernel.cu``."""
_ROW_KEPT_BYTES = 48 << 10
"""Shared memory of a block where a kernel asks for no more, CUDA's ``sharedMemPerBlock``."""
_LOADS_PER_CYCLE = 32
"""Of a multiprocessor, numbers of 4 bytes. Source: load and store units of NVIDIA's white papers on
Volta to Hopper."""
_SIZES = {"bfloat16": 2, "float16": 2, "float64": 8}
"""Bytes of an element; 4 of all others that a softmax is taken of."""
_OVER_ROWS = ("layer_norm", "rms_norm", "softmax")
_REDUCES_ROWS = ("layer_norm_backward", "rms_norm_backward")
_SUPERLINEAR = (
    "sort", "topk", "fft", "linalg_svd", "linalg_inv", "linalg_solve", "linalg_qr", "cdist",
    "unique", "cumsum", "cumprod", "logcumsumexp", "svd", "cholesky", "linalg_lu", "lu_solve",
    "lu_unpack", "scan", "histc", "bincount", "nonzero", "searchsorted",
)  # fmt: skip
_MANY_TENSORS = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")
_OWN = {"aten", "inductor", "fsdp", "prims", "c10d", "_c10d_functional"}


class Cost(NamedTuple):
    """What one operator costs.

    Attributes:
        seconds: Alone on the device [s].
        flop: Of products, a multiply-add as two; of attention, as MFU counts it.
        name: For pictures.
        is_known: Whether a model stands for it.
        precision: Number format of products.
    """

    seconds: float
    flop: float
    name: str
    is_known: bool = True
    precision: Precision = "fp32"


def kernel_cost(call: Call, profile: HardwareProfile, shrink: float = 1.0) -> Cost:
    """Cost of one operator.

    Args:
        call: What it does.
        profile: The system.
        shrink: Factor on bytes in shards of data ranks, where there are more ranks than
            captured (below 1) or fewer.

    Raises:
        InputError: The device has no unit for the number format.
    """
    namespace, _, rest = call.name.partition(".")
    name = rest.partition(".")[0]
    price = _PRICED.get(name) if namespace == "aten" else None
    if price is not None:
        found = price(call, profile)
        if found is not None:
            return found
    num_bytes = call.read_bytes + call.written_bytes - (1 - shrink) * call.sharded_bytes
    again_bytes = _read_again_bytes(name, call)
    seconds = memory_bound_s(
        profile,
        num_bytes + again_bytes,
        over_rows=not again_bytes and any(word in call.name for word in _OVER_ROWS),
        reduces_rows=any(word in call.name for word in _REDUCES_ROWS),
        efficiency=_many_tensors_efficiency(name, call, profile),
    )
    if _adds_rows(call) and not profile.device.launches_itself:
        seconds += profile.common.column_sum_start_s
    if name in ("_softmax", "_log_softmax") and call.inputs and call.inputs[0].shape:
        shape = call.inputs[0].shape
        seconds = max(seconds, softmax_s(profile, math.prod(shape), shape[-1]))
    if _widens(call):
        elements = (1 - (1 - shrink) * bool(call.sharded_bytes)) * math.prod(call.outputs[0].shape)
        seconds = max(seconds, widening_s(profile, elements))
    return Cost(seconds, 0.0, name, is_costed(namespace, name))


def _many_tensors_efficiency(name: str, call: Call, profile: HardwareProfile) -> float | None:
    """Share of the bandwidth where it takes many tensors at once; None where it does not."""
    if not call.inputs or not name.startswith(_MANY_TENSORS):
        return None
    is_half = all(_SIZES.get(tensor.dtype, 4) == 2 for tensor in call.inputs)
    return many_tensors_efficiency(profile, is_half=is_half)


def _widens(call: Call) -> bool:
    """Whether it copies 16-bit numbers as fp32, as :meth:`Block.casts` has it."""
    if call.name != "aten._to_copy.default" or not (call.inputs and call.outputs):
        return False
    return _SIZES.get(call.inputs[0].dtype) == 2 and call.outputs[0].dtype == "float32"


def is_costed(namespace: str, name: str) -> bool:
    """Whether a model stands for an operator: it is torch's own and does no more than its bytes."""
    return namespace in _OWN and not any(word in name for word in _SUPERLINEAR)


def _adds_rows(call: Call) -> bool:
    """Whether it is a sum over rows, such as the gradient of a bias, not along them."""
    if call.name != "aten.sum.dim_IntList" or not (call.inputs and call.outputs):
        return False
    before, after = call.inputs[0].shape, call.outputs[0].shape
    return bool(before and after) and before[-1] == after[-1] > 1


def _read_again_bytes(name: str, call: Call) -> float:
    """What a norm or a softmax reads after the first time [B].

    A softmax does where its rows are too long to keep.
    """
    again = _READ_AGAIN.get(name)
    if again is not None:
        return math.fsum(map(_bytes, call.inputs[:again]))
    operands = call.inputs[: len(_PASSES.get(name, ()))]
    if not operands or not operands[0].shape:
        return 0.0
    rows = [_bytes(operand) for operand in operands]
    if rows[0] / max(1, math.prod(operands[0].shape[:-1])) <= _ROW_KEPT_BYTES:
        return 0.0
    return sum((passes - 1) * size for passes, size in zip(_PASSES[name], rows, strict=True))


def _bytes(tensor: Tensor) -> float:
    return float(math.prod(tensor.shape) * _SIZES.get(tensor.dtype, 4))


def _precision(call: Call, place: int = -1) -> Precision:
    dtype = call.inputs[place].dtype
    uses_tf32 = bool(call.settings) and bool(call.settings[0])
    return FORMATS.get(dtype, "tf32" if uses_tf32 else "fp32")


def _product(call: Call, profile: HardwareProfile) -> Cost | None:
    """``mm``, ``addmm``, ``bmm``, ``baddbmm`` and their like: the last two operands."""
    operands = [t for t in call.inputs if len(t.shape) >= 2 and t.dtype != "float8_e8m0fnu"]
    left, right = operands if len(operands) == 2 else operands[-2:]
    if "scaled" in call.name:
        left, right = operands[:2]
    batch = math.prod(left.shape[:-2])
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    if not (m and n and k and batch):
        return Cost(0.0, 0.0, "product")
    precision = _supported(FORMATS.get(left.dtype) or _precision(call), profile)
    aligned = rows_are_aligned((n, k), precision)
    seconds = gemm_s(profile, m, n, k, batch=batch, precision=precision, aligned=aligned)
    return Cost(seconds, 2.0 * batch * m * n * k, call.name.split(".")[1], precision=precision)


def _supported(precision: Precision, profile: HardwareProfile) -> Precision:
    """fp32 as TF32 where a device has it and the code allows; bf16 as fp16 where only that."""
    if precision == "bf16" and profile.device.peak.of("bf16") is None:
        return "fp16"
    if precision == "tf32" and "tf32" not in profile.kernels.gemm:
        return "fp32"
    return precision


def _grouped_product(call: Call, profile: HardwareProfile) -> Cost | None:
    """``_grouped_mm``: one launch for all experts, rows taken as even."""
    matrices = [t for t in call.inputs if t.dtype not in ("int32", "int64")]
    left, right = matrices[:2]
    stacked = next((t for t in (left, right) if len(t.shape) == 3), None)
    groups = stacked.shape[0] if stacked else next(
        (t.shape[0] for t in call.inputs if t.dtype == "int32"), 1
    )  # fmt: skip
    k, n = left.shape[-1], right.shape[-1]
    precision = _supported(FORMATS.get(left.dtype, "fp32"), profile)
    if stacked is None:  # gradient of the weights: the inner dimension is divided
        rows, inner = [left.shape[-2]] * groups, max(1, k // groups)
        flop = 2.0 * left.shape[-2] * k * n
        seconds = grouped_gemm_s(profile, rows, n, inner, precision=precision, by_torch=True)
    else:
        rows = (
            [left.shape[-2] // groups] * groups
            if len(left.shape) == 2
            else [left.shape[-2]] * groups
        )
        flop = 2.0 * math.fsum(rows) * k * n
        seconds = grouped_gemm_s(profile, rows, n, k, precision=precision, by_torch=True)
    return Cost(seconds, flop, "grouped_mm", precision=precision)


def _convolution(call: Call, profile: HardwareProfile) -> Cost | None:
    """A convolution as the products that it is by im2col, one for each group of channels.

    The kernel makes the patches as it goes: it reads a picture once, not each place of a filter
    anew (implicit GEMM: S. Chetlur et al., "cuDNN", arXiv 1410.0759, section 3). Backward is the
    gradients that it makes: nobody asks for that of an input without parameters before it, nor of
    frozen weights. That of the weights sums over all places. A transposed one is the gradient of
    another that goes the other way.
    """
    is_backward = "backward" in call.name
    given, weight = call.inputs[is_backward : is_backward + 2]
    result = call.inputs[0] if is_backward else call.outputs[0]
    if _is_transposed(call, len(weight.shape) - 2):
        given, result = result, given
    groups = max(1, given.shape[1] // weight.shape[1])
    n, k = weight.shape[0] // groups, math.prod(weight.shape[1:])
    m = math.prod(result.shape) // weight.shape[0]
    precision = _supported(_precision(call, 1), profile)
    flop = 2.0 * m * n * k * groups
    made = [each.shape for each in call.outputs if len(each.shape) > 1]
    gradients = made if is_backward and made else [call.outputs[0].shape]
    if weight.shape[1] == 1 and groups > 1:
        seconds = len(gradients) * _channel_filter_s(profile, call, flop)
    else:
        patches_bytes = flop / (2.0 * n) * _bytes(given) / math.prod(given.shape)
        rest_bytes = _bytes(weight) + _bytes(result)
        read_bytes = rest_bytes + min(_bytes(given), patches_bytes)
        seconds = math.fsum(
            _grouped_channels_s(
                profile, (m, n, k), groups, precision,
                sums_places=shape == weight.shape,
                moved_bytes=rest_bytes + _bytes(given) if shape == given.shape else read_bytes,
            )
            for shape in gradients
        )  # fmt: skip
    return Cost(seconds, len(gradients) * flop, "convolution", precision=precision)


def _grouped_channels_s(
    profile: HardwareProfile,
    sizes: tuple[int, int, int],
    groups: int,
    precision: Precision,
    *,
    sums_places: bool,
    moved_bytes: float,
) -> float:
    """Products of groups of channels: each alone, or several in a tile that is zero between them.

    Source: ``GroupMode`` of CUTLASS's convolutions (``cutlass/conv/convolution.h``): one block
    computes one group or less, or several. The library is assumed to pick the faster.
    """
    m, n, k = sizes

    def together_s(several: int) -> float:
        wide_n, wide_k = several * n, several * k
        product = (wide_n, wide_k, m) if sums_places else (m, wide_n, wide_k)
        return gemm_s(
            profile, *product, batch=groups // several, precision=precision, moved_bytes=moved_bytes
        )

    widest = max(1, LARGEST_TILE_SIDE // n)
    return min(together_s(p) for p in range(1, min(groups, widest) + 1) if groups % p == 0)


def _is_transposed(call: Call, axes: int) -> bool:
    """Whether a convolution says so: before its padding of the result on each axis and groups.

    Backward also says which of three gradients it makes.
    """
    place = axes + (5 if "backward" in call.name else 2)
    return len(call.settings) >= place and bool(call.settings[-place])


def _channel_filter_s(profile: HardwareProfile, call: Call, flop: float) -> float:
    """A filter over each channel alone, which no matrix unit helps with [s].

    It loads a number and its weight for each multiply-add, as torch's ``DepthwiseConv2d.cu`` does.
    """
    device = profile.device
    loads_s = flop / (_LOADS_PER_CYCLE * device.sm_count * device.boost_clock_hz)
    moved_s = memory_bound_s(profile, call.read_bytes + call.written_bytes)
    return max(loads_s, moved_s)


def _attention(call: Call, profile: HardwareProfile) -> Cost | None:
    name = call.name.split(".")[1]
    backward = name.endswith("backward")
    query, key, value = call.inputs[1:4] if backward else call.inputs[:3]
    place = CAUSAL_AT[name]
    causal = place < len(call.settings) and bool(call.settings[place])
    batch, heads, seq_q, head_dim = query.shape
    seq_kv, v_dim = key.shape[2], value.shape[3]
    precision = _supported(FORMATS.get(query.dtype, "fp32"), profile)
    seconds = attention_s(
        profile, batch=batch, heads=heads, kv_heads=key.shape[1], seq_q=seq_q, seq_kv=seq_kv,
        head_dim=head_dim, v_head_dim=v_dim, causal=causal, backward=backward,
        precision=precision, kernel=_KERNELS.get(name.removesuffix("_backward"), "best"),
    )  # fmt: skip
    # As MFU counts attention (PaLM, appendix B): unmasked, and backward as twice forward.
    flop = 2.0 * batch * heads * seq_q * seq_kv * (head_dim + v_dim) * (2 if backward else 1)
    return Cost(seconds, flop, "attention", precision=precision)


_Price = Callable[[Call, HardwareProfile], Cost | None]

_PRICED: Mapping[str, _Price] = MappingProxyType(
    {
        **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "linear"), _product),
        "_grouped_mm": _grouped_product,
        "convolution": _convolution,
        "convolution_backward": _convolution,
        **dict.fromkeys(CAUSAL_AT, _attention),
    }
)
