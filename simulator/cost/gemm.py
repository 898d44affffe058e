"""How long does one matrix product take on one device?

The library cuts the output into tiles and gives each streaming multiprocessor (SM) one
tile at a time. Three effects set the time: waves of tiles, of which the last is rarely full, the
start and end of every tile, and the memory traffic; the library is assumed to pick the best tile
and the best split of the inner dimension. Cool benchmarks are the base; the profile's
``sustained_clock`` slows the compute part for long training, as its number format draws power.

Shape letters: an (m, k) operand times a (k, n) operand gives (m, n).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.cost.rates import (
    ELEMENT_BYTES,
    memory_traffic_bytes,
    output_bytes,
    peak_flop_per_s,
    sustained_share,
)
from simulator.described.cluster.common import Common
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import GemmModel, Precision
from simulator.described.rules.profile_rules import precision_faults
from simulator.errors import InputError

Tile = tuple[int, int]
"""Rows and columns of an output tile."""

_TENSOR_TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64),
)  # fmt: skip
_VECTOR_TILES = (
    (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64),
)  # fmt: skip
"""Output tiles (rows, columns) that vendor libraries ship, the largest first, for matrix units and
for fp32 on the vector units.

Source: the CTA shapes of CUTLASS's default kernels for sm80 to sm100; the names of cuBLAS's
``sgemm`` kernels on Pascal to Ada.
"""

LARGEST_TILE_SIDE = 256
"""Rows or columns that no output tile exceeds."""

_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Ways to cut the inner dimension; more than one costs a reduction of fp32 partials.

Powers of two, and 128 as the most, are assumed.
"""

_SPLIT_BELOW_WAVES = 4
"""Waves from which on cutting further fills no multiprocessor that was idle."""

_ALIGNED_ROW_BYTES = 16
"""Rows of operands that start on multiples of this are loaded by whole vectors (NVIDIA, Matrix
Multiplication Background User's Guide, section 2.1; cuBLAS, Tensor Core Usage)."""


@dataclass(frozen=True)
class Tiling:
    """What is known of how a library cuts a product.

    Attributes:
        tile: Rows and columns of its tile, where its kernel is known; else the fastest is taken.
        fits: Whether the output is known to fill tiles and waves of the real library, as that of a
            shape which a search over shapes has found best; those known here are a choice of the
            library's.
        cuts_inner: Whether it may cut the inner dimension among multiprocessors.
    """

    tile: Tile | None = None
    fits: bool = False
    cuts_inner: bool = True


ANY_TILING = Tiling()


def gemm_s(
    profile: HardwareProfile,
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    precision: Precision = "bf16",
    accumulate: bool = False,
    aligned: bool = True,
    read_again_after: int = 0,
    moved_bytes: float | None = None,
    tiling: Tiling = ANY_TILING,
) -> float:
    """Seconds for ``batch`` independent (m, k) x (k, n) products in one launch.

    The floor, plus computing and memory time for the fastest tile shape, the smaller of which
    hides behind the larger, except for a rest where both are about equal. Ignores operand layout.

    Args:
        profile: System with the fitted parameters of the number format.
        m: Rows of the output, >= 1.
        n: Columns of the output, >= 1.
        k: Inner dimension, >= 1.
        batch: Products in the launch, >= 1.
        precision: Number format of both operands.
        accumulate: Whether the product is added into an fp32 output (fused weight-gradient
            accumulation) instead of written in a 16-bit format.
        aligned: Whether the rows of all operands can be loaded by whole vectors, see
            :func:`rows_are_aligned`.
        read_again_after: After how many such products the right operand is read again, and found in
            the last cache where all between fits: 1 where a benchmark repeats one call, 0 is never.
            The left operand is read, and the output written, by each of these products again.
            Products of a training step find other weights and activations there.
        moved_bytes: What is read of memory and written there, where that is not every operand and
            result once: rows of patches of a picture overlap.
        tiling: What is known of the library's tiles.

    Returns:
        Time [s].

    Raises:
        InputError: The device or the profile does not know the number format.

    Source:
        Tile and wave quantisation: NVIDIA, Matrix Multiplication Background User's Guide,
        sections 3 and 4. Roofline: Williams et al., CACM 52(4), 2009. Parameters: fitted, see
        the profile.
    """
    return grouped_gemm_s(
        profile,
        [m] * batch,
        n,
        k,
        precision=precision,
        accumulate=accumulate,
        aligned=aligned,
        read_again_after=read_again_after,
        hides_results=True,
        moved_bytes=moved_bytes,
        tiling=tiling,
    )


def rows_are_aligned(columns: Sequence[int], precision: Precision) -> bool:
    """Whether rows of so many elements start on multiples of 16 bytes in memory."""
    # Scales of block formats are stored separately, so whole half bytes are left.
    element_bytes = math.floor(2 * ELEMENT_BYTES[precision]) / 2
    return all(n * element_bytes % _ALIGNED_ROW_BYTES == 0 for n in columns)


def grouped_gemm_s(
    profile: HardwareProfile,
    rows: Sequence[int],
    n: int,
    k: int,
    *,
    precision: Precision = "bf16",
    accumulate: bool = False,
    aligned: bool = True,
    read_again_after: int = 0,
    hides_results: bool = False,
    accumulator_bytes: float = 4.0,
    by_torch: bool = False,
    moved_bytes: float | None = None,
    tiling: Tiling = ANY_TILING,
) -> float:
    """Seconds for several (rows[i], k) x (k, n) products in one launch, one per expert.

    Tiles of all groups share the waves, as in a grouped kernel; groups without rows cost
    nothing. Where results are accumulated, a part of reading and writing them hides behind no
    computing (``grouped_results_exposed``), unless ``hides_results``: gradients of experts'
    weights sum over few rows, so a tile is soon computed, and then read and written. An
    accumulated result has ``accumulator_bytes`` per number. A kernel that is PyTorch's own
    (``by_torch``) computes at ``torch_grouped_share``, behind a small one that writes where each
    group lies (``prepare_grouped_gemm_data`` of ``GroupMM.cu``). Otherwise as :func:`gemm_s`.
    """
    model = _gemm_model(profile, precision)
    result_bytes = 2.0 * accumulator_bytes if accumulate else output_bytes(precision)
    traffic_bytes = product_bytes(rows, n, k, precision=precision, result_bytes=result_bytes)
    if moved_bytes is not None:
        traffic_bytes = moved_bytes
    if read_again_after:
        weight_bytes = ELEMENT_BYTES[precision] * sum(1 for m in rows if m > 0) * n * k
        traffic_bytes = _repeated_bytes(profile, traffic_bytes, weight_bytes, read_again_after)
    exposed_bytes = 0.0
    if accumulate and not hides_results:
        exposed_bytes = profile.kernels.grouped_results_exposed * result_bytes * sum(rows) * n
    device = _Device(
        model,
        sms=profile.device.sm_count,
        sm_flop_per_s=(
            _full_flop_per_s(profile, precision)
            * sustained_share(profile, precision)
            * (1.0 if aligned else _unaligned_share(profile.common, precision))
            * (profile.kernels.torch_grouped_share if by_torch else 1.0)
            / profile.device.sm_count
        ),
        bytes_per_s=model.memory_efficiency * profile.device.memory_bandwidth_bytes_per_s,
        overlap_exponent=profile.common.overlap_exponent,
        menu=_VECTOR_TILES if _runs_on_vector_units(precision) else _TENSOR_TILES,
    )
    fastest_s = _fastest_s(device, rows, n, k, traffic_bytes - exposed_bytes, tiling)
    prepared_s = profile.kernels.memory_floor_s if by_torch else 0.0
    return model.floor_s + prepared_s + fastest_s + exposed_bytes / device.bytes_per_s


class _Device(NamedTuple):
    """What computes and moves the numbers of one product.

    Attributes:
        model: Parameters of the number format.
        sms: Multiprocessors.
        sm_flop_per_s: Rate of one of them on the largest tile [FLOP/s].
        bytes_per_s: Rate of memory [B/s].
        overlap_exponent: How far the shorter of computing and memory hides behind the longer.
        menu: Output tiles that the library has, the largest first.
    """

    model: GemmModel
    sms: int
    sm_flop_per_s: float
    bytes_per_s: float
    overlap_exponent: float
    menu: Sequence[Tile]


def _fastest_s(
    device: _Device, rows: Sequence[int], n: int, k: int, hidden_bytes: float, tiling: Tiling
) -> float:
    """Time of the best tile and split, beside ``hidden_bytes`` of memory traffic [s]."""
    model, sms, total_rows = device.model, device.sms, sum(rows)
    counts = Counter(rows).items()
    whole = float if tiling.fits else math.ceil
    tail = 0.0 if tiling.fits else model.tail
    largest, fastest_s = _overhead(device.menu[0], model), math.inf
    for tile_m, tile_n in device.menu if tiling.tile is None else (tiling.tile,):
        tiles = math.fsum(c * whole(m / tile_m) for m, c in counts) * whole(n / tile_n)
        rate = device.sm_flop_per_s * largest / _overhead((tile_m, tile_n), model)
        step_s = 2.0 * tile_m * tile_n / rate
        for split in _SPLITS if tiling.cuts_inner else (1,):
            filled = split * tiles / sms
            if split > 1 and filled > _SPLIT_BELOW_WAVES:
                break
            waves = filled if tiling.fits else max(1.0, filled)
            waves += tail * (math.ceil(filled) - waves)
            compute_s = waves * (step_s * math.ceil(k / split) + model.tile_start_s)
            partials_bytes = 8.0 * split * total_rows * n if split > 1 else 0.0
            memory_s = (hidden_bytes + partials_bytes) / device.bytes_per_s
            if max(compute_s, memory_s) < fastest_s:
                overlapped_s = _overlapped_s(compute_s, memory_s, device.overlap_exponent)
                fastest_s = min(fastest_s, overlapped_s)
    return fastest_s


def _full_flop_per_s(profile: HardwareProfile, precision: Precision) -> float:
    """Rate of large products in short, cool benchmarks [FLOP/s]."""
    kernels = profile.kernels
    own = peak_flop_per_s(profile, precision) * _gemm_model(profile, precision).efficiency
    limits = {"mxfp8": kernels.mxfp8_over_fp8, "nvfp4": kernels.nvfp4_over_fp8}
    limit = limits.get(precision)
    if limit is None:
        return own
    return min(
        own, limit * peak_flop_per_s(profile, "fp8") * _gemm_model(profile, "fp8").efficiency
    )


def _repeated_bytes(
    profile: HardwareProfile, traffic_bytes: float, weight_bytes: float, products: int
) -> float:
    """Bytes that take as long from memory as those of one of several products in turn.

    Each has weights of its own; activations and results are those of the product before.
    """
    shared_bytes = traffic_bytes - weight_bytes
    missed_bytes = memory_traffic_bytes(profile, shared_bytes, meanwhile_bytes=traffic_bytes)
    return missed_bytes + memory_traffic_bytes(
        profile, weight_bytes, meanwhile_bytes=shared_bytes + products * weight_bytes
    )


def _runs_on_vector_units(precision: Precision) -> bool:
    return precision == "fp32"


def _unaligned_share(common: Common, precision: Precision) -> float:
    """Rate of a product whose rows cannot be loaded by whole vectors, over that of others."""
    is_vector = _runs_on_vector_units(precision)
    return common.unaligned_vector_share if is_vector else common.unaligned_share


def _overlapped_s(one_s: float, other_s: float, exponent: float) -> float:
    """Time of two things that go on at once: the larger, or up to 15 % more."""
    longer_s, shorter_s = max(one_s, other_s), min(one_s, other_s)
    if longer_s == 0:
        return 0.0
    return float(longer_s * (1.0 + (shorter_s / longer_s) ** exponent) ** (1.0 / exponent))


def product_bytes(
    rows: Sequence[int],
    n: int,
    k: int,
    *,
    precision: Precision = "bf16",
    result_bytes: float | None = None,
) -> float:
    """Bytes that products read and write once each, operands and results [B].

    A result is written in the format of its product, or takes ``result_bytes`` per number.
    """
    operand = ELEMENT_BYTES[precision]
    output = output_bytes(precision) if result_bytes is None else result_bytes
    total_rows = sum(rows)
    groups = sum(1 for m in rows if m > 0)
    return operand * k * (total_rows + groups * n) + output * total_rows * n


def _overhead(tile: Tile, model: GemmModel) -> float:
    """Time of a tile over that of its arithmetic: operand traffic grows as tiles shrink."""
    tile_m, tile_n = tile
    return 1.0 + model.tile_half * (1.0 / tile_m + 1.0 / tile_n) / 2.0


def _gemm_model(profile: HardwareProfile, precision: Precision) -> GemmModel:
    model = profile.kernels.gemm.get(precision)
    if model is None:
        raise InputError(list(precision_faults(profile, precision)))
    return model
