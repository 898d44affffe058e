"""How often was a measured kernel repeated, and what does that do to its time?

A device computes at its boost clock until its power limit is felt. Benchmarks that repeat a call
back to back run into the limit, find their operands in the cache, and, where the clock runs on
the host, take at least as long as the host needs to issue a call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import Precision
from simulator.facts import shipped_facts
from simulator.tables.kernel_rows import KernelRow
from simulator.units import parse_quantity


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a benchmark repeats a call.

    Attributes:
        warm_up: Calls back to back before those that count.
        counted: Calls back to back of which the time is the mean.
        host_s: Time the host takes to issue a call; 0 where the device's own clock is read.
        is_per_group: Whether a grouped product is a call for each of its groups.
        weights: Products with weights of their own that take turns.
        clears_cache: Whether the last cache is overwritten before each call.
        is_eager: Whether norms and softmaxes are torch's own kernels.
        cuts_inner: Whether the library may cut the inner dimension of a product.
        inner: Column of a product's inner dimension, ``k`` or ``n``; the other is its columns.
    """

    warm_up: int = 0
    counted: int = 1
    host_s: float = 0.0
    is_per_group: bool = False
    weights: int = 1
    clears_cache: bool = False
    is_eager: bool = False
    cuts_inner: bool = True
    inner: str = "k"

    @property
    def read_again_after(self) -> int:
        """After how many products operands are read again; 0 is never."""
        return self.weights if self.warm_up + self.counted > 1 else 0


def protocol_of(row: KernelRow) -> Protocol:
    """How the row's benchmark repeats calls: as its notes say, else as the program is known to.

    Benchmarks that clear the cache or write to memory between calls leave the device time to
    cool, and count as single calls.
    """
    stated = re.search(r"(\d+) warm-up", row.text("notes"))
    if stated:
        return Protocol(warm_up=int(stated.group(1)), counted=1)
    said = f"{row.text('source')} {row.text('notes')}".lower()
    for known in shipped_facts("benchmarks"):
        if all(word in said for word in known["words"]):
            return Protocol(
                known.get("warm_up", 0),
                known.get("counted", 1),
                parse_quantity(known.get("host", "0 s"), "s"),
                known.get("per_group", False),
                known.get("weights", 1),
                known.get("clears_cache", False),
                known.get("eager", False),
                known.get("cuts_inner", True),
                known.get("inner", "k"),
            )
    return Protocol()


def mean_call_s(
    profile: HardwareProfile, precision: Precision, cool_s: float, flop: float, protocol: Protocol
) -> float:
    """Mean seconds of a repeated product that takes ``cool_s`` on a cool device.

    A device keeps its boost clock for a while; after that its operations per second are at most
    its power limit over the energy of one. Ignores that the device cools where the host is late.

    Args:
        profile: Device, with ``joule_per_operation`` and ``boost`` of the format.
        precision: Number format of the operands.
        cool_s: Time of one call at boost clock [s].
        flop: Operations of one call.
        protocol: How calls are repeated.

    Source:
        Energy per operation: fitted, see the profile; the shape is an assumption.
    """
    model = profile.kernels.gemm[precision]
    held_s = max(cool_s, flop * model.joule_per_operation / profile.device.power_w)

    def calls_s(calls: int) -> float:
        in_boost = min(calls, model.boost_s / cool_s)
        return in_boost * cool_s + (calls - in_boost) * held_s

    warm_up, counted = protocol.warm_up, protocol.counted
    mean_s = (calls_s(warm_up + counted) - calls_s(warm_up)) / counted
    return max(mean_s, protocol.host_s)
