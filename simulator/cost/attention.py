"""How long does a fused (flash) attention kernel take on one device?

One thread block owns a tile of queries and walks over the keys, so time follows the
number of query tiles per SM, the keys each one sees, and per score the matrix work
plus the softmax that runs beside it. Unfused attention is a batched product, a softmax
and another product, and is built from :mod:`simulator.cost.gemm`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from simulator.cost.rates import ELEMENT_BYTES, peak_flop_per_s, sustained_share
from simulator.described.cluster.common import Common
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import AttentionModel, FlashKernel, Precision

_WIDEST_HEAD = 128
"""Widest head that kernels are made for first; wider ones keep fewer of their sums in registers."""

_QUERY_TILE = 128
"""Queries per thread block (FlashAttention-2, arXiv 2307.08691, section 3.3)."""

_TF32_PRODUCTS = 3
"""Products of TF32 numbers that give one of 32-bit numbers: big by big, and big by small twice
(CUTLASS, example 27)."""


def attention_s(
    profile: HardwareProfile,
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    seq_q: int,
    seq_kv: int,
    head_dim: int,
    v_head_dim: int | None = None,
    causal: bool,
    backward: bool = False,
    precision: Precision = "bf16",
    kernel: FlashKernel = "best",
) -> float:
    """Seconds for one pass of fused attention, forward or backward.

    Work per score is 2 (d_qk + d_v) FLOP forward and 2 (3 d_qk + 2 d_v) backward (scores
    are computed again), plus the softmax. A causal mask halves the scores, except that
    tiles on the diagonal are computed whole. Never faster than reading and writing the
    tensors once. Ignores dropout and sliding windows.

    Args:
        profile: System with the fitted parameters.
        batch: Sequences.
        heads: Query heads on this device.
        kv_heads: Key and value heads on this device; only their traffic differs.
        seq_q: Queries per sequence.
        seq_kv: Keys per sequence.
        head_dim: Size of a query and key head.
        v_head_dim: Size of a value head; as ``head_dim`` if None.
        causal: Whether query i sees keys up to i + seq_kv - seq_q only.
        backward: Backward pass instead of forward.
        precision: Number format of the products; sixteen-bit kernels are the rule.
        kernel: The best kernel of the device, or an older or a memory-efficient one.

    Returns:
        Time [s].

    Source:
        Dao, FlashAttention-2 (arXiv 2307.08691), section 3, for work and tiling; softmax
        beside matrix work: FlashAttention-3 (arXiv 2407.08608), section 3. Parameters:
        fitted, see the profile.
    """
    model = _attention_model(profile, kernel)
    one = _pass(model, wide=head_dim > _WIDEST_HEAD, backward=backward)
    v_dim = head_dim if v_head_dim is None else v_head_dim
    products_dim = 3 * head_dim + 2 * v_dim if backward else head_dim + v_dim
    rate = (
        _peak_flop_per_s(profile, precision, kernel)
        * one.efficiency
        * _vector_ratio(profile, model, precision)
        * _sustained_share(profile, precision, kernel)
    )
    sms = profile.device.sm_count
    tiles = batch * heads * math.ceil(seq_q / _QUERY_TILE)
    keys = _keys_per_sm(tiles / sms, seq_q, seq_kv, one, causal=causal)
    flop_per_key = 2.0 * _QUERY_TILE * (products_dim + model.softmax_dim)
    compute_s = keys * flop_per_key * sms / rate
    q_elements = batch * heads * seq_q * (head_dim + v_dim)
    kv_elements = batch * kv_heads * seq_kv * (head_dim + v_dim)
    passes = 2.0 if backward else 1.0
    traffic_bytes = passes * ELEMENT_BYTES[precision] * (q_elements + kv_elements)
    bandwidth = profile.kernels.memory_efficiency * profile.device.memory_bandwidth_bytes_per_s
    return model.floor_s + max(compute_s, traffic_bytes / bandwidth)


class _Pass(NamedTuple):
    """Fitted parameters of one direction, see ``AttentionModel`` of a profile."""

    efficiency: float
    tail: float
    kv_ramp: float


def _pass(model: AttentionModel, *, wide: bool, backward: bool) -> _Pass:
    """The parameters of a direction; those that backward does not have are as forward's."""
    if not backward:
        return _Pass(model.forward_efficiency, model.tail, model.kv_ramp)
    return _Pass(
        model.backward_efficiency * (model.wide_backward_share if wide else 1.0),
        model.tail if model.backward_tail is None else model.backward_tail,
        model.kv_ramp if model.backward_kv_ramp is None else model.backward_kv_ramp,
    )


def _peak_flop_per_s(profile: HardwareProfile, precision: Precision, kernel: FlashKernel) -> float:
    """Peak rate of the units that compute the products, for FlashAttention 2's efficiency [FLOP/s].

    Memory-efficient attention multiplies 32-bit numbers as three products of TF32 ones, where a
    device has units for these (PyTorch, ``mem_eff_attention/gemm_kernel_utils.h``,
    ``DefaultGemmType``: OpMultiplyAddFastF32). What it loses to FlashAttention beside products of
    16 bits is left out of these, which take six times as long.
    """
    tf32 = profile.device.peak.of("tf32")
    if kernel == "efficient" and precision in ("fp32", "tf32") and tf32 is not None:
        return tf32 / _TF32_PRODUCTS
    return peak_flop_per_s(profile, precision) * _share_of_flash_2(profile.common, kernel)


def _vector_ratio(profile: HardwareProfile, model: AttentionModel, precision: Precision) -> float:
    """What products reach of the peak of vector units, over what they reach of matrix units'."""
    has_matrix_units = precision != "fp32" or profile.device.peak.of("tf32") is not None
    return 1.0 if has_matrix_units else model.vector_ratio


def _share_of_flash_2(common: Common, kernel: FlashKernel) -> float:
    """Rate of kernels that have no parameters of their own, over FlashAttention 2's."""
    match kernel:
        case "flash-1":
            return common.flash_1_share
        case "efficient":
            return common.efficient_attention_share
        case _:
            return 1.0


def _sustained_share(profile: HardwareProfile, precision: Precision, kernel: FlashKernel) -> float:
    """Share of its benchmark rate that attention keeps in long training."""
    common = profile.common
    is_slow = kernel in ("flash-1", "efficient")
    power_share = common.flash_1_power_share if is_slow else common.attention_power_share
    return min(1.0, sustained_share(profile, precision) / power_share)


def _keys_per_sm(
    tiles_per_sm: float, seq_q: int, seq_kv: int, one: _Pass, *, causal: bool
) -> float:
    """Keys that the busiest SM walks over, start-up of its tiles included.

    An even share plus part of the longest tile, never less than the longest tile (the
    bounds of Graham, SIAM J. Appl. Math. 17(2), 1969, for list scheduling). Under a causal
    mask the tiles on the diagonal are computed whole.
    """
    longest = seq_kv + one.kv_ramp
    mean = longest
    if causal:
        mean -= (seq_q - min(_QUERY_TILE, seq_q)) / 2.0
    return max(longest, tiles_per_sm * mean + one.tail * longest)


def _attention_model(profile: HardwareProfile, kernel: FlashKernel) -> AttentionModel:
    kernels = profile.kernels
    if kernel != "best" and kernels.flash_attention_2 is not None:
        return kernels.flash_attention_2
    return kernels.flash_attention
