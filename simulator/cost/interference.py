"""How much slower is computing beside communication?

A collective's kernel holds multiprocessors, about one per channel, and every byte that passes its
links is read from the device's memory and written to it. Computing beside it keeps the rest of
both: what several take adds up.

Ignored: what kind of kernel is slowed and how its waves fall on the multiprocessors that are left,
caches, power, and that the collective itself slows a little.

Source: Mist's measurements of products beside collectives on V100 and A100 (Dazz993/Mist,
tools/results-final); the number of accesses is in ``hardware_profiles/common``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from simulator.described.cluster.common import Common
from simulator.described.cluster.hardware import Device

_LINKS = ("scale_up", "fabric")
"""Ports whose bytes a GPU itself moves."""


def taken_share(sm_count: float, link_bytes_per_s: float, device: Device, common: Common) -> float:
    """Share of full speed that a communication takes from what computes beside it.

    Args:
        sm_count: Multiprocessors that it holds; one without any takes nothing.
        link_bytes_per_s: What passes its links meanwhile, one way [B/s].
        device: Where both run.
        common: Accesses of memory per byte.
    """
    if not sm_count:
        return 0.0
    memory_bytes_per_s = common.memory_accesses_per_link_byte * link_bytes_per_s
    return sm_count / device.sm_count + memory_bytes_per_s / device.memory_bandwidth_bytes_per_s


def link_bytes_per_s(port_bytes: Mapping[str, float], seconds: float) -> float:
    """What passes the links of one rank on average, one way [B/s].

    Args:
        port_bytes: Bytes by port.
        seconds: How long that takes.
    """
    return math.fsum(port_bytes.get(port, 0.0) for port in _LINKS) / seconds if seconds else 0.0


def rate_beside(taken: float, common: Common) -> float:
    """Share of full speed that is left to computing where communications take so much together."""
    return max(common.least_rate, 1.0 - taken)
