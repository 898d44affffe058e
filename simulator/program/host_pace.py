"""How long does a device wait for the host that launches its kernels one after another?

A host launches without waiting for the device, so what it gains on long kernels is not lost on
short ones behind them, but nothing makes up for kernels in front that it launched too late: the
product with the vocabulary ends a forward whose layers were bound by launches, and adds all its
time. Both start a pass together (assumption): whatever the host was ahead when the pass before
ended is left out, as where a framework reads something back from the device in between.

Source: the waiting time of a queue (Lindley, Proc. Cambridge Phil. Soc. 48, 1952).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Launched(NamedTuple):
    """Equal pieces of a pass, one after another.

    Attributes:
        times: How many.
        device_s: One of them on the device [s].
        host_s: Launching one of them [s].
    """

    times: int
    device_s: float
    host_s: float


def waiting_s(queue: Iterable[Launched]) -> float:
    """Time in which the device has nothing to do, from the first launch to its last kernel [s].

    Args:
        queue: What is launched, in order.
    """
    waited_s = ahead_s = 0.0
    for piece in queue:
        later_s = piece.times * (piece.host_s - piece.device_s)
        waited_s += max(0.0, later_s - ahead_s)
        ahead_s = max(0.0, ahead_s - later_s)
    return waited_s
