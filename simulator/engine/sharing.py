"""How fast does each flow go where several meet at a port?

Source: max-min fair sharing by progressive filling (Bertsekas and Gallager, Data
Networks, 1992, section 6.5.2). Sums are exact until their last rounding, so that rates
do not depend on the order in which flows or ports are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum

Port = tuple[int, str, str]
"""One direction of a port of a rank class: (class index, port name, "out" or "in")."""

FULL_SPEED = 1.0
"""Speed of a flow that nothing holds back, as a share of its speed alone."""


def max_min_rates(loads: Sequence[Mapping[Port, float]]) -> list[float]:
    """Max-min fair speed of each flow, as a share of its speed alone.

    Args:
        loads: Per flow, the share (at most 1) of each port's capacity taken at full speed.

    Returns:
        One number in (0, 1] per flow. Fairness is in bandwidth, at the port that a flow
        loads most: flows that meet there get equal shares of it, unless they need less.
    """
    if len(loads) < 2:
        return [FULL_SPEED] * len(loads)
    flows_at: dict[Port, list[int]] = {}
    for flow, load in enumerate(loads):
        for port in load:
            flows_at.setdefault(port, []).append(flow)
    if all(len(at) < 2 or fsum(loads[f][p] for f in at) <= 1.0 for p, at in flows_at.items()):
        return [FULL_SPEED] * len(loads)
    return _Filling(loads, flows_at).rates()


class _Filling:
    """Raises the common level until every flow is satisfied or held by a full port."""

    def __init__(
        self, loads: Sequence[Mapping[Port, float]], flows_at: Mapping[Port, list[int]]
    ) -> None:
        self.loads = loads
        self.need = [max(load.values()) for load in loads]
        self.rate: list[float | None] = [None] * len(loads)
        self.waiting = set(range(len(loads)))
        self.flows_at = flows_at
        self.level: dict[Port, float] = {}
        """Common bandwidth at which each port with waiting flows would be full."""
        self._update(flows_at)

    def rates(self) -> list[float]:
        while self.waiting:
            level = min(self.level.values())
            fixed = [flow for flow in self.waiting if self.need[flow] <= level]
            if fixed:
                self._fix(dict.fromkeys(fixed, FULL_SPEED))
                continue
            full = [port for port, its_level in self.level.items() if its_level == level]
            held = {flow for port in full for flow in self.flows_at[port] if flow in self.waiting}
            self._fix({flow: level / self.need[flow] for flow in held})
        return [FULL_SPEED if rate is None else rate for rate in self.rate]

    def _fix(self, rates: Mapping[int, float]) -> None:
        for flow, rate in rates.items():
            self.rate[flow] = rate
        self.waiting.difference_update(rates)
        self._update({port for flow in rates for port in self.loads[flow]})

    def _update(self, ports: Iterable[Port]) -> None:
        for port in ports:
            level = self._level(port)
            if level is None:
                self.level.pop(port, None)
            else:
                self.level[port] = level

    def _level(self, port: Port) -> float | None:
        """Bandwidth at which a port's waiting flows fill it; None where none waits."""
        at = self.flows_at[port]
        pull = fsum(self.loads[f][port] / self.need[f] for f in at if self.rate[f] is None)
        if not pull:
            return None
        used = fsum(rate * self.loads[f][port] for f in at if (rate := self.rate[f]) is not None)
        return max(0.0, 1.0 - used) / pull
