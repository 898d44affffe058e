"""How do communications share the ports of a GPU and its NICs?

Every rank class has one set of ports ("scale_up", "fabric"), each per direction: what a
rank sends never slows what it receives, unless two ranks share one connection (gloo). A
communication loads ports in proportion to the bytes it moves over them; all active
communications share every port max-min fairly, and none goes faster than it would alone.
Rates change when a communication starts or ends, and only among those that meet, directly
or through others (a connected part of the network). Latency is waited out before bytes
flow.

Ignores: queueing inside switches, congestion control, and packets.
Source: :mod:`simulator.engine.sharing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import simpy

from simulator.engine.instant import Action, EndOfInstant, Timer
from simulator.engine.sharing import FULL_SPEED, Port, max_min_rates
from simulator.program.ir import Traffic
from simulator.spec.network import PAIR_PORT

_WHOLE: Mapping[str, float] = MappingProxyType({})
"""Shares of a rank class whose ports have all their capacity."""


class _Flow:
    """A communication under way; progress is measured in seconds-alone still to do."""

    __slots__ = ("loads", "rate", "remaining_s", "timer", "updated_s")

    def __init__(self, timer: Timer, seconds: float, loads: Mapping[Port, float]) -> None:
        self.timer = timer
        self.remaining_s = seconds
        self.loads = loads
        """Share of each port's capacity taken at full speed."""
        self.rate = 0.0
        self.updated_s = 0.0

    def set_rate(self, rate: float, now_s: float) -> None:
        """Book the progress so far and go on at another rate."""
        if rate == self.rate:
            return
        self.remaining_s -= (now_s - self.updated_s) * self.rate
        self.updated_s = now_s
        self.rate = rate
        self.timer.set(max(0.0, self.remaining_s) / rate)


class FluidNetwork:
    """The shared ports of all rank classes.

    Args:
        env: The simulation.
        ports: Capacity of each port of a rank [B/s], by name; others are never a limit.
        shares: Share of some ports' capacity that is left, by rank class and port.
    """

    def __init__(
        self,
        env: simpy.Environment,
        ports: Mapping[str, float],
        shares: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        self._env = env
        self._capacity = dict(ports)
        self._shares = shares or {}
        self._flows_at: dict[Port, dict[_Flow, None]] = {}
        self._changed: dict[Port, None] = {}
        self._settling = EndOfInstant(env, self._settle)

    def transfer(
        self,
        seconds_alone: float,
        traffic: Traffic,
        senders: Sequence[int],
        receivers: Sequence[int],
        ended: Action,
    ) -> None:
        """Begin a communication that takes ``seconds_alone`` on idle ports.

        Args:
            seconds_alone: Latency and transfer time without contention [s].
            traffic: Bytes over each port of each rank, and the latency.
            senders: Rank classes whose outward ports it loads.
            receivers: Rank classes whose inward ports it loads; all take both parts in a
                collective.
            ended: Called when it is through.
        """
        flow_s = max(0.0, seconds_alone - traffic.latency_s)
        ends = [(c, "out") for c in senders] + [(c, "in") for c in receivers]
        loads = self._port_loads(traffic, flow_s, ends)
        if not loads:
            Timer(self._env, ended).set(seconds_alone)
            return
        flow = _Flow(Timer(self._env, lambda: self._remove(flow, ended)), flow_s, loads)
        if traffic.latency_s > 0:
            Timer(self._env, lambda: self._add(flow)).set(traffic.latency_s)
        else:
            self._add(flow)

    def _add(self, flow: _Flow) -> None:
        flow.updated_s = self._env.now
        is_alone = True
        for port in flow.loads:
            flows = self._flows_at.setdefault(port, {})
            is_alone = is_alone and not flows
            flows[flow] = None
        if is_alone:
            flow.set_rate(FULL_SPEED, self._env.now)
        else:
            self._share_again(flow.loads)

    def _remove(self, flow: _Flow, ended: Action) -> None:
        left = []
        for port in flow.loads:
            flows = self._flows_at[port]
            del flows[flow]
            if flows:
                left.append(port)
        if left:
            self._share_again(left)
        ended()

    def _port_loads(
        self, traffic: Traffic, flow_s: float, ends: Sequence[tuple[int, str]]
    ) -> dict[Port, float]:
        if flow_s <= 0:
            return {}
        loads: dict[Port, float] = {}
        for port, num_bytes in traffic.port_bytes.items():
            if port not in self._capacity or num_bytes <= 0:
                continue
            load = num_bytes / flow_s / self._capacity[port]
            if port == PAIR_PORT:
                first, *_, last = sorted(rank_class for rank_class, _ in ends)
                loads[first, f"{PAIR_PORT} {last}", "both"] = min(1.0, load)
                continue
            for rank_class, direction in ends:
                share = self._shares.get(rank_class, _WHOLE).get(port, 1.0)
                loads[rank_class, port, direction] = min(1.0, load / share)
        return loads

    def _share_again(self, ports: Iterable[Port]) -> None:
        self._changed.update(dict.fromkeys(ports))
        self._settling.ask()

    def _settle(self) -> None:
        """Set new rates wherever flows came or went."""
        changed, self._changed = self._changed, {}
        settled: set[Port] = set()
        for port in changed:
            if port not in settled:
                flows = self._connected(port, settled)
                rates = max_min_rates([flow.loads for flow in flows])
                for flow, rate in zip(flows, rates, strict=True):
                    flow.set_rate(rate, self._env.now)

    def _connected(self, port: Port, reached: set[Port]) -> list[_Flow]:
        """Flows that meet at a port or through others; adds their ports to ``reached``."""
        flows: dict[_Flow, None] = {}
        pending = [port]
        reached.add(port)
        while pending:
            for flow in self._flows_at.get(pending.pop(), ()):
                if flow in flows:
                    continue
                flows[flow] = None
                new = [other for other in flow.loads if other not in reached]
                reached.update(new)
                pending += new
        return list(flows)
