"""How much slower is computing beside communication?

A collective's kernel holds multiprocessors, about one per channel, and every byte that passes its
links is read from the device's memory and written to it. Computing beside it keeps the rest of
both: what several take adds up. Where a product and a collective wait for each other in ways that
this does not describe, a profile says what computing keeps in one number.

Ignored: what kind of kernel is slowed and how its waves fall on the multiprocessors that are left,
caches, power, and that the collective itself slows a little.

Source: Mist's measurements of products beside collectives on V100 and A100 (Dazz993/Mist,
tools/results-final); the number of accesses is in ``hardware_profiles/common``. One number for
all: A. Agrawal et al., "Optimizing ML Concurrent Computation and Communication with GPU DMA
Engines" (arXiv 2412.14335). Both together save a share r of the shorter one's time, so that
computing goes on at rate r beside the collective.
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
        common: Accesses of memory per byte, or what is left beside any collective.
    """
    if not sm_count:
        return 0.0
    if common.rate_beside_collectives is not None:
        return 1.0 - common.rate_beside_collectives
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
    measured = common.rate_beside_collectives
    least = common.least_rate if measured is None else min(common.least_rate, measured)
    return max(least, 1.0 - taken)
