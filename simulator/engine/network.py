"""How do communications share the ports of a GPU and its NICs?

Every rank class has one set of ports ("scale_up", "fabric"), each per direction: what a
rank sends never slows what it receives. A communication loads ports in proportion to the
bytes it moves over them; all active communications share every port max-min fairly, and
none goes faster than it would alone.
Rates change when a communication starts or ends. Latency is waited out before bytes flow.

Ignores: queueing inside switches, congestion control, and packets.
Source: max-min fair sharing by progressive filling (Bertsekas and Gallager, Data
Networks, 1992, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from simulator.program.ir import Traffic

Port = tuple[int, str, str]
"""One direction of a port of a rank class: (class index, port name, "out" or "in")."""

_FULL_SPEED = 1.0
_TINY = 1e-12


@dataclass(eq=False, slots=True)
class _Flow:
    """A communication under way; progress is measured in seconds-alone still to do."""

    remaining_s: float
    port_load: Mapping[Port, float]
    """Share of each port's capacity taken at full speed."""
    rate: float = 0.0
    finished: simpy.Event | None = field(default=None)


class FluidNetwork:
    """The shared ports of all rank classes.

    Args:
        env: The simulation.
        ports: Capacity of each port of a rank [B/s], by name; others are never a limit.
    """

    def __init__(self, env: simpy.Environment, ports: Mapping[str, float]) -> None:
        self._env = env
        self._capacity = dict(ports)
        self._flows: list[_Flow] = []
        self._updated_s = 0.0
        self._epoch = 0

    def transfer(
        self,
        seconds_alone: float,
        traffic: Traffic,
        senders: Sequence[int],
        receivers: Sequence[int],
    ) -> Generator[simpy.Event, Any, None]:
        """Run a communication that takes ``seconds_alone`` on idle ports.

        Args:
            seconds_alone: Latency and transfer time without contention [s].
            traffic: Bytes over each port of each rank, and the latency.
            senders: Rank classes whose outward ports it loads.
            receivers: Rank classes whose inward ports it loads; all take both parts in a
                collective.
        """
        flow_s = max(0.0, seconds_alone - traffic.latency_s)
        ends = [(c, "out") for c in senders] + [(c, "in") for c in receivers]
        loads = self._port_loads(traffic, flow_s, ends)
        if not loads:
            yield self._env.timeout(seconds_alone)
            return
        if traffic.latency_s > 0:
            yield self._env.timeout(traffic.latency_s)
        flow = _Flow(flow_s, loads, finished=self._env.event())
        self._advance()
        self._flows.append(flow)
        self._share()
        assert flow.finished is not None
        yield flow.finished

    def _port_loads(
        self, traffic: Traffic, flow_s: float, ends: Sequence[tuple[int, str]]
    ) -> dict[Port, float]:
        if flow_s <= 0:
            return {}
        return {
            (rank_class, port, direction): min(1.0, num_bytes / flow_s / self._capacity[port])
            for port, num_bytes in traffic.port_bytes.items()
            if port in self._capacity and num_bytes > 0
            for rank_class, direction in ends
        }

    def _advance(self) -> None:
        """Book the progress of all flows since the last change of rates."""
        elapsed_s = self._env.now - self._updated_s
        for flow in self._flows:
            flow.remaining_s -= elapsed_s * flow.rate
        self._updated_s = self._env.now

    def _share(self) -> None:
        """Set new rates and wake up when the first flow ends under them."""
        for flow, rate in zip(self._flows, max_min_rates(self._flow_loads()), strict=True):
            flow.rate = rate
        self._epoch += 1
        if self._flows:
            next_s = min(max(0.0, flow.remaining_s) / flow.rate for flow in self._flows)
            self._env.process(self._wake(next_s, self._epoch))

    def _flow_loads(self) -> list[Mapping[Port, float]]:
        return [flow.port_load for flow in self._flows]

    def _wake(self, delay_s: float, epoch: int) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(delay_s)
        if epoch != self._epoch:
            return
        self._advance()
        # The clock's rounding leaves a remainder of the order of its own resolution.
        resolution_s = _TINY * max(1.0, self._env.now)
        ended = [flow for flow in self._flows if flow.remaining_s <= resolution_s]
        self._flows = [flow for flow in self._flows if flow.remaining_s > resolution_s]
        for flow in ended:
            assert flow.finished is not None
            flow.finished.succeed()
        self._share()


def max_min_rates(loads: Sequence[Mapping[Port, float]]) -> list[float]:
    """Max-min fair speed of each flow, as a share of its speed alone.

    Args:
        loads: Per flow, the share (at most 1) of each port's capacity taken at full speed.

    Returns:
        One number in (0, 1] per flow. Fairness is in bandwidth, at the port that a flow
        loads most: flows that meet there get equal shares of it, unless they need less.
    """
    rates = [_FULL_SPEED] * len(loads)
    if len(loads) < 2:
        return rates
    need = [max(load.values()) for load in loads]
    free = {port: 1.0 for load in loads for port in load}
    waiting = set(range(len(loads)))
    while waiting:
        # Bandwidth that each port gives away per unit of the common level.
        pull = {p: sum(loads[flow].get(p, 0.0) / need[flow] for flow in waiting) for p in free}
        level, port = min((free[p] / pull[p], p) for p in free if pull[p])
        satisfied = {flow for flow in waiting if need[flow] <= level}
        fixed = satisfied or {flow for flow in waiting if port in loads[flow]}
        for flow in fixed:
            if not satisfied:
                rates[flow] = level / need[flow]
            for used, load in loads[flow].items():
                free[used] = max(0.0, free[used] - rates[flow] * load)
        waiting -= fixed
    return rates
