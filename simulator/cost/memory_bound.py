"""How long does a kernel take that only moves bytes?"""

from __future__ import annotations

from simulator.described.cluster.hardware import HardwareProfile

_STRIDED_ELEMENTS_PER_CYCLE = 1.26
"""Elements per cycle and multiprocessor of PyTorch's elementwise kernel for operands that are not
all contiguous, which divides every index to find where its operands lie (``launch_legacy_kernel``
of ``CUDALoops.cuh``). Source: figure 4 of FlashAttention-2 (arXiv 2307.08691, A100): standard
attention with a mask, one such kernel over the scores, takes 4.4 to 5.6 ps per score longer than
without in ten pairs of sequence lengths and head sizes; the mean, 5.2 ps, on 108 multiprocessors
of 1410 MHz. On other devices an assumption."""


def memory_bound_s(
    profile: HardwareProfile,
    num_bytes: float,
    *,
    reduces_rows: bool = False,
    efficiency: float | None = None,
) -> float:
    """Seconds for a kernel that reads and writes ``num_bytes`` of device memory in all.

    A floor, plus the bytes at the streaming share of the memory bandwidth. Ignores the L2
    cache: kernels of a training step find it overwritten.

    Args:
        profile: System with the fitted parameters.
        num_bytes: Bytes read plus bytes written, >= 0.
        reduces_rows: Whether the kernel also sums over rows, as the backward pass of a norm
            does for its weight; published kernels then stay far below the bandwidth.
        efficiency: Share of the bandwidth that this kind of kernel reaches, where it is known
            to differ from the profile's.

    Returns:
        Time [s].

    Source:
        Latency plus bandwidth; parameters fitted, see the profile.
    """
    kernels = profile.kernels
    if efficiency is None:
        reduced = kernels.row_reduction_efficiency if reduces_rows else None
        efficiency = kernels.memory_efficiency if reduced is None else reduced
    bandwidth = profile.device.memory_bandwidth_bytes_per_s
    return kernels.memory_floor_s + num_bytes / (efficiency * bandwidth)


def strided_s(profile: HardwareProfile, elements: float) -> float:
    """Seconds that an eager kernel takes at least to find where so many elements lie.

    Args:
        profile: System whose multiprocessors divide.
        elements: Elements of the result, >= 0.

    Returns:
        Time [s], without the bytes, see :func:`memory_bound_s`.
    """
    device = profile.device
    elements_per_s = _STRIDED_ELEMENTS_PER_CYCLE * device.sm_count * device.boost_clock_hz
    return profile.kernels.memory_floor_s + elements / elements_per_s
