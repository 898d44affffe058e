"""How long does a kernel take that only moves bytes?"""

from __future__ import annotations

from simulator.spec.hardware import HardwareProfile


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
