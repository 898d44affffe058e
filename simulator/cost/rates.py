"""What do the peaks, the memory and the number formats of a device mean for every kernel?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.rules.profile_rules import precision_faults
from simulator.errors import InputError

ELEMENT_BYTES: Mapping[Precision, float] = MappingProxyType(
    {
        "fp32": 4.0,
        "tf32": 4.0,
        "fp16": 2.0,
        "bf16": 2.0,
        "fp8": 1.0,
        "int8": 1.0,
        "mxfp8": 1.0 + 1 / 32,
        "nvfp4": 0.5 + 1 / 16,
    }
)
"""Bytes per operand element, block scales included.

Source: OCP Microscaling specification 1.0 (one scale byte per 32 elements) for mxfp8;
NVIDIA's NVFP4 layout (one scale byte per 16 elements).
"""

_WAITING = 3
"""Power in which the time of a memory and that of waiting for it are added (assumption)."""

_LONGEST_ROW_OF_A_WARP = 2048
"""Elements of a row up to which one warp computes its softmax. Source: PyTorch, ``SoftMax.cu``."""

HALF_BYTES = 2.0
"""A number of 16 bits [B]."""
FULL_BYTES = 4.0
"""A number of 32 bits [B]."""
_SIXTEEN_BIT: tuple[Precision, ...] = ("bf16", "fp16")


def activation_precision(precision: Precision) -> Precision:
    """Format of all that is not a product with a weight: of 8- and 4-bit training, bf16."""
    return "bf16" if ELEMENT_BYTES[precision] < HALF_BYTES else precision


def output_bytes(precision: Precision) -> float:
    """Bytes per output element: fp32 for fp32 and tf32 products, else a 16-bit format."""
    return FULL_BYTES if precision in ("fp32", "tf32") else HALF_BYTES


def peak_flop_per_s(profile: HardwareProfile, precision: Precision) -> float:
    """Dense peak rate of the device in a number format [FLOP/s].

    Raises:
        InputError: The device has no matrix unit for the format.
    """
    peak = profile.device.peak.of(precision)
    if peak is None:
        raise InputError(list(precision_faults(profile, precision)))
    return peak


def sustained_share(profile: HardwareProfile, precision: Precision) -> float:
    """Share of their benchmark rate that products of a number format keep in long training.

    Long training leaves a device the power at which 16-bit products run at ``sustained_clock``.
    A format whose benchmark rate draws less than 16-bit products do keeps as much more of it, up
    to all; one that would draw more is measured under the same limit and keeps as much as they.
    Where runs tell what 8-bit products keep, that holds for them and for narrower ones.

    Args:
        profile: System with its clocks and the energy per operation of each format.
        precision: Number format of both operands.

    Source:
        Power is energy per operation times operations per second; that energy does not depend on
        the clock is an assumption.
    """
    narrow = profile.kernels.sustained_clock_8_bit
    if narrow is not None and ELEMENT_BYTES[precision] < HALF_BYTES:
        return narrow * profile.device.limited_clock
    clock = profile.kernels.sustained_clock * profile.device.limited_clock
    if precision in _SIXTEEN_BIT:
        return clock
    watts = {name: _cool_product_w(profile, name) for name in (precision, *_SIXTEEN_BIT)}
    drawn_w = watts[precision]
    sixteen_bit_w = max(watts[name] for name in _SIXTEEN_BIT)
    saved = sixteen_bit_w / drawn_w if 0.0 < drawn_w < sixteen_bit_w else 1.0
    return min(1.0, clock * saved)


def _cool_product_w(profile: HardwareProfile, precision: Precision) -> float:
    """Power of products at their benchmark rate [W]; 0 where it is unknown."""
    model, peak = profile.kernels.gemm.get(precision), profile.device.peak.of(precision)
    if model is None or peak is None:
        return 0.0
    return peak * model.efficiency * model.joule_per_operation


def memory_bound_s(
    profile: HardwareProfile,
    num_bytes: float,
    *,
    over_rows: bool = False,
    reduces_rows: bool = False,
    efficiency: float | None = None,
    operands_cached: bool = True,
) -> float:
    """Seconds for a kernel that reads and writes ``num_bytes`` of device memory in all.

    A floor, plus the bytes at the streaming share of the memory bandwidth, or faster where all of
    them stay in the last cache, into which the kernel before has written them.

    Args:
        profile: System with the fitted parameters.
        num_bytes: Bytes read plus bytes written, >= 0.
        over_rows: Whether the kernel needs whole rows before it writes them, as a norm or a
            softmax does.
        reduces_rows: Whether the kernel also sums over rows, as the backward pass of a norm
            does for its weight; published kernels then stay far below the bandwidth.
        efficiency: Share of the bandwidth that this kind of kernel reaches, where it is known
            to differ from the profile's.
        operands_cached: Whether what it reads was just written, and so is in the last cache where
            it fits.

    Returns:
        Time [s].

    Source:
        Latency plus bandwidth; parameters fitted, see the profile.
    """
    kernels = profile.kernels
    if efficiency is None:
        own = kernels.row_reduction_efficiency if reduces_rows else None
        own = kernels.row_efficiency if over_rows and not reduces_rows else own
        efficiency = kernels.memory_efficiency if own is None else own
    bandwidth = profile.device.memory_bandwidth_bytes_per_s
    missed_bytes = memory_traffic_bytes(profile, num_bytes) if operands_cached else num_bytes
    return kernels.memory_floor_s + missed_bytes / (efficiency * bandwidth)


def many_tensors_efficiency(profile: HardwareProfile, *, is_half: bool) -> float:
    """Share of the memory bandwidth of kernels that pass over many tensors at once.

    They have few bytes under way for the fastest memories, so that the time that each
    multiprocessor waits for them (Little's law) counts beside the time that the memory needs. Both
    are added as cubes (assumption): an H100 and an H200, whose multiprocessors are alike and whose
    memories are not, are then met within 4 % (``reports/gpu``), and one H100 of a memory of 2.4
    TB/s within 14 %.

    Args:
        profile: System with its memory and multiprocessors.
        is_half: Whether all tensors have 16-bit numbers.
    """
    device, kernels = profile.device, profile.kernels
    of_one = kernels.many_half_tensors_bytes_per_s if is_half else kernels.many_tensors_bytes_per_s
    if of_one is None:
        return kernels.memory_efficiency
    reached = device.sm_count * of_one / device.memory_bandwidth_bytes_per_s
    of_memory, of_waiting = kernels.memory_efficiency**-_WAITING, reached**-_WAITING
    return float((of_memory + of_waiting) ** (-1.0 / _WAITING))


def memory_traffic_bytes(
    profile: HardwareProfile, num_bytes: float, *, meanwhile_bytes: float | None = None
) -> float:
    """Bytes that take as long from memory as ``num_bytes`` of which some are in the last cache.

    All are there while half its size has passed since they were used, none from its size on.

    Args:
        profile: System with its cache and how much faster that is.
        num_bytes: Bytes that one kernel reads and writes, >= 0.
        meanwhile_bytes: Bytes that have passed; the kernel's own if None.

    Source:
        The shape is an assumption; ``cache_speedup`` is fitted, see the profile.
    """
    cache_bytes = profile.device.l2_cache_bytes
    passed_bytes = num_bytes if meanwhile_bytes is None else meanwhile_bytes
    if passed_bytes >= cache_bytes:
        return num_bytes
    hit = min(1.0, 2.0 * (1.0 - passed_bytes / cache_bytes))
    return num_bytes * (1.0 - hit + hit / profile.kernels.cache_speedup)


def without_sustained_clock(profile: HardwareProfile) -> HardwareProfile:
    """The profile as short, cool benchmarks see it."""
    cool = {"sustained_clock": 1.0, "sustained_clock_8_bit": None}
    kernels = profile.kernels.model_copy(update=cool)
    return profile.model_copy(update={"kernels": kernels})


def widening_s(profile: HardwareProfile, elements: float) -> float:
    """Seconds that a copy of so many 16-bit elements as fp32 takes at least, beside its bytes.

    Source: PyTorch's ``unrolled_elementwise_kernel`` copies bf16 as fp32 at 1.9 of 3.35 TB/s on an
    H100 and 2.1 of 4.8 on an H200, and fp32 as bf16 at 2.8 on the former (``reports/gpu``). A
    processor's copies are vectorised both ways.
    """
    if profile.device.launches_itself:
        return 0.0
    per_cycle = profile.common.widening_elements_per_cycle
    return profile.kernels.memory_floor_s + _elements_s(profile, elements, per_cycle)


def softmax_s(profile: HardwareProfile, elements: float, columns: float) -> float:
    """Seconds that PyTorch's softmax of so many elements takes at least, beside its bytes.

    Rows of up to 2,048 stay in the registers of one warp, and stream. Longer ones are a block's.

    Args:
        profile: System whose multiprocessors compute.
        elements: Elements of all rows, >= 0.
        columns: Elements of a row.

    Returns:
        Time [s], without the bytes, see :func:`memory_bound_s`; 0 on a processor.

    Source:
        ``host_softmax`` of ``SoftMax.cu``, PyTorch 2.7 on (pytorch/pytorch#144679). Before, rows of
        more than 1,024 were a block's; how fast is not known, and they count as streams.
    """
    if profile.device.launches_itself or columns <= _LONGEST_ROW_OF_A_WARP:
        return 0.0
    return _elements_s(profile, elements, profile.common.block_softmax_elements_per_cycle)


def row_sum_s(profile: HardwareProfile, elements: float, *, sorts: bool) -> float:
    """Seconds that adding so many elements to rows at indices takes at least.

    Args:
        profile: System whose multiprocessors add.
        elements: Elements of what is added, >= 0.
        sorts: Whether indices are sorted before, so that no addition is atomic.

    Returns:
        Time [s], without the bytes, see :func:`memory_bound_s`; 0 on a processor, whose threads
        add whole rows.
    """
    common = profile.common
    if profile.device.launches_itself or not elements:
        return 0.0
    per_cycle = common.atomic_sum_elements_per_cycle, common.sorted_sum_elements_per_cycle
    return _elements_s(profile, elements, per_cycle[sorts])


def strided_s(profile: HardwareProfile, elements: float, *, casts: bool = False) -> float:
    """Seconds that an eager kernel takes at least to find where so many elements lie.

    Args:
        profile: System whose multiprocessors divide.
        elements: Elements of the result, >= 0.
        casts: Whether operands have several formats.

    Returns:
        Time [s], without the bytes, see :func:`memory_bound_s`.
    """
    common = profile.common
    per_cycle = common.casting_elements_per_cycle if casts else common.strided_elements_per_cycle
    return profile.kernels.memory_floor_s + _elements_s(profile, elements, per_cycle)


def _elements_s(profile: HardwareProfile, elements: float, per_cycle: float) -> float:
    """Time of elements where each multiprocessor takes so many of them in a cycle [s]."""
    return elements / (per_cycle * profile.device.sm_count * profile.device.boost_clock_hz)
