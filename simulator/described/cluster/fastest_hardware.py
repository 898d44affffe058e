"""Which rates does no hardware reach, so that one beyond them is most likely a slip of its unit?

A gigabyte per second where a gigabit was meant makes a network eight times as fast, and nothing
else would show it. The limits are the fastest parts announced by 2026, all of NVIDIA's Rubin
generation; a job may be of later ones, so what lies beyond is doubtful, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.described.cluster.hardware import HardwareProfile
from simulator.errors import Fault
from simulator.units import format_quantity, format_rate

_BITS_PER_BYTE = 8
_PREFIX = 1000


@dataclass(frozen=True, slots=True)
class _Fastest:
    """The fastest part of its kind.

    Attributes:
        rate: In SI units.
        dimension: Key of :data:`simulator.units.UNITS`.
        text: The rate as the data sheet writes it, and the part.
    """

    rate: float
    dimension: str
    text: str


_NIC = _Fastest(200e9, "bytes_per_s", "1600 Gbit/s (ConnectX-9 SuperNIC)")
_LINKS = _Fastest(1.8e12, "bytes_per_s", "1.8 TB/s per GPU and one way (NVLink 6)")
_MEMORY = _Fastest(22e12, "bytes_per_s", "22 TB/s (HBM4 of a Rubin)")
_PEAKS = {
    "fp4": _Fastest(50e15, "flop_per_s", "50 PFLOP/s (Rubin)"),
    "fp8": _Fastest(25e15, "flop_per_s", "25 PFLOP/s, half of a Rubin in fp4"),
    "bf16": _Fastest(12.5e15, "flop_per_s", "12.5 PFLOP/s, a quarter of a Rubin in fp4"),
    "fp16": _Fastest(12.5e15, "flop_per_s", "12.5 PFLOP/s, a quarter of a Rubin in fp4"),
    "tf32": _Fastest(6.25e15, "flop_per_s", "6.25 PFLOP/s, an eighth of a Rubin in fp4"),
    "fp32": _Fastest(6.25e15, "flop_per_s", "6.25 PFLOP/s, an eighth of a Rubin in fp4"),
}


def rates_beyond_hardware(profile: HardwareProfile) -> Iterator[Fault]:
    """Every rate of a profile that is faster than any hardware, with what may have been meant."""
    network, device = profile.network, profile.device
    given = {
        "network.fabric.nic": (network.fabric.nic_bytes_per_s, _NIC),
        "network.scale_up.bandwidth": (network.scale_up.bandwidth_bytes_per_s, _LINKS),
        "device.memory_bandwidth": (device.memory_bandwidth_bytes_per_s, _MEMORY),
    }
    for precision, fastest in _PEAKS.items():
        rate: float | None = getattr(device.peak, f"{precision}_flop_per_s")
        given[f"device.peak.{precision}"] = (rate or 0.0, fastest)
    for path, (rate, fastest) in given.items():
        if rate > fastest.rate:
            text = format_quantity(rate, fastest.dimension)
            rule = f"is more than the fastest of today reaches, {fastest.text}"
            yield Fault(path, rule, text, _meant(rate, fastest))


def _meant(rate: float, fastest: _Fastest) -> str:
    """The rate with bits for bytes, or with the next smaller prefix, whichever can be."""
    if fastest in (_NIC, _LINKS) and rate / _BITS_PER_BYTE <= fastest.rate:
        return f"did you mean {format_rate(rate).replace('B/s', 'bit/s')}?"
    if rate / _PREFIX <= fastest.rate:
        return f"did you mean {format_quantity(rate / _PREFIX, fastest.dimension)}?"
    return "check the unit"
