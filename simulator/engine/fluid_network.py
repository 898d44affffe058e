"""How do communications share the ports of a GPU and its NICs?

Every rank class has one set of ports ("scale_up", "fabric"), each per direction: what a
rank sends never slows what it receives, unless two ranks share one connection (gloo). In a
full mesh the link to every other rank is a port as well. A communication loads ports in
proportion to the bytes it moves over them; all active communications share every port
max-min fairly, and none goes faster than it would alone.
Rates change when a communication starts or ends, and only among those that meet, directly
or through others (a connected part of the network). Latency is waited out before bytes
flow.

Ignores: queueing inside switches, congestion control, and packets.
Source: max-min fair sharing by progressive filling (Bertsekas and Gallager, Data Networks, 1992,
section 6.5.2). Sums are exact until their last rounding, so that rates do not depend on the order
in which communications or ports are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from simulator.described.cluster.network import LINK_PORT, PAIR_PORT
from simulator.engine.instant import Action, Alarm, Clock, EndOfInstant
from simulator.program.ir import Traffic

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


_WHOLE: Mapping[str, float] = {}
"""Shares of a rank class whose ports have all their capacity."""


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """What a communication needs of the ports, the same whenever it runs.

    Attributes:
        latency_s: Waited before bytes flow [s].
        flow_s: How long they flow on idle ports [s].
        loads: Share of each port's capacity taken at full speed; empty where nothing is a limit.
        flows_at: Communications under way at each of these ports, in the same order.
    """

    latency_s: float
    flow_s: float
    loads: Mapping[Port, float]
    flows_at: Sequence[dict[_Flow, None]]


class _Flow(Alarm):
    """A communication under way; progress is measured in seconds-alone still to do."""

    __slots__ = ("ended", "network", "rate", "remaining_s", "route", "updated_s")

    def __init__(
        self, env: Clock, route: Route, network: FluidNetwork, ended: Action, begins_s: float
    ) -> None:
        super().__init__(env)
        self.route = route
        self.remaining_s = route.flow_s
        self.network = network
        self.ended = ended
        self.rate = 0.0
        self.updated_s = begins_s

    def wait(self) -> None:
        """Begin when it is to begin, to see who is there then."""
        self.unset()
        self.rate = 0.0
        self.env.at(self.updated_s, self.begin)

    def begin(self) -> None:
        """Let bytes flow."""
        self.network.add(self)

    def ring(self) -> None:
        """All bytes are through."""
        self.network.remove(self)
        self.ended()

    def set_rate(self, rate: float, now_s: float) -> None:
        """Book the progress so far and go on at another rate."""
        self.remaining_s -= (now_s - self.updated_s) * self.rate
        self.updated_s = now_s
        self.rate = rate
        self.set_at(now_s + max(0.0, self.remaining_s) / rate)


class FluidNetwork:
    """The shared ports of all rank classes.

    Args:
        env: The simulation.
        ports: Capacity of each port of a rank [B/s], by name; others are never a limit.
        shares: Share of some ports' capacity that is left, by rank class and port.
    """

    def __init__(
        self,
        env: Clock,
        ports: Mapping[str, float],
        shares: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        self._env = env
        self._capacity = dict(ports)
        self._shares = shares or {}
        self._flows_at: dict[Port, dict[_Flow, None]] = {}
        self._changed: dict[Port, None] = {}
        self._rates: dict[tuple[Route, ...], list[float]] = {}
        """Of flows that met before; in a pipeline the same ones meet again and again."""
        self._settling = EndOfInstant(env, self._settle)

    def route(
        self,
        seconds_alone: float,
        traffic: Traffic,
        senders: Sequence[int],
        receivers: Sequence[int],
    ) -> Route:
        """What a communication needs that takes ``seconds_alone`` on idle ports.

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
            return Route(0.0, seconds_alone, {}, ())
        flows_at = [self._flows_at.setdefault(port, {}) for port in loads]
        return Route(traffic.latency_s, flow_s, loads, flows_at)

    def transfer(self, route: Route, ended: Action) -> None:
        """Begin a communication; ``ended`` is called when it is through."""
        if not route.loads:
            self._env.after(route.flow_s, ended)
            return
        env = self._env
        begins_s = env.now_s + route.latency_s
        flow = _Flow(env, route, self, ended, begins_s)
        if any(route.flows_at):
            if route.latency_s > 0:
                env.at(begins_s, flow.begin)
            else:
                flow.begin()
            return
        # As long as nobody else comes before it begins, nothing need happen then.
        for flows in route.flows_at:
            flows[flow] = None
        flow.set_rate(FULL_SPEED, begins_s)

    def add(self, flow: _Flow) -> None:
        """Share ports with what is under way there."""
        now_s = flow.updated_s = self._env.now_s
        self._let_begin_later(flow.route, now_s)
        is_alone = True
        for flows in flow.route.flows_at:
            if flows:
                is_alone = False
            flows[flow] = None
        if is_alone:
            flow.set_rate(FULL_SPEED, now_s)
        else:
            self._share_again(flow.route.loads)

    def _let_begin_later(self, route: Route, now_s: float) -> None:
        """Of those that have ports of a route to themselves, take out who has not begun yet."""
        early = [flow for flows in route.flows_at for flow in flows if flow.updated_s > now_s]
        for flow in dict.fromkeys(early):
            for flows in flow.route.flows_at:
                del flows[flow]
            flow.wait()

    def remove(self, flow: _Flow) -> None:
        """Leave the ports to others."""
        left = []
        for port, flows in zip(flow.route.loads, flow.route.flows_at, strict=True):
            del flows[flow]
            if flows:
                left.append(port)
        if left:
            self._share_again(left)

    def _port_loads(
        self, traffic: Traffic, flow_s: float, ends: Sequence[tuple[int, str]]
    ) -> dict[Port, float]:
        if flow_s <= 0:
            return {}
        loads: dict[Port, float] = {}
        passing = [(port, port, num_bytes) for port, num_bytes in traffic.port_bytes.items()]
        passing += [(LINK_PORT, f"{LINK_PORT} {p}", size) for p, size in traffic.link_bytes.items()]
        for port, name, num_bytes in passing:
            if port not in self._capacity or num_bytes <= 0:
                continue
            load = num_bytes / flow_s / self._capacity[port]
            if port == PAIR_PORT:
                first, *_, last = sorted(rank_class for rank_class, _ in ends)
                loads[first, f"{PAIR_PORT} {last}", "both"] = min(1.0, load)
                continue
            for rank_class, direction in ends:
                share = self._shares.get(rank_class, _WHOLE).get(port, 1.0)
                loads[rank_class, name, direction] = min(1.0, load / share)
        return loads

    def _share_again(self, ports: Iterable[Port]) -> None:
        self._changed.update(dict.fromkeys(ports))
        self._settling.ask()

    def _settle(self) -> None:
        changed, self._changed = self._changed, {}
        now_s = self._env.now_s
        settled: set[Port] = set()
        for port in changed:
            # Those that were there may all have ended at this instant.
            if port not in settled and self._flows_at[port]:
                flows = self._connected(port, settled)
                for flow, rate in zip(flows, self._fair_rates(flows), strict=True):
                    if rate != flow.rate:
                        flow.set_rate(rate, now_s)

    def _fair_rates(self, flows: Sequence[_Flow]) -> list[float]:
        routes = tuple(flow.route for flow in flows)
        rates = self._rates.get(routes)
        if rates is None:
            rates = self._rates[routes] = max_min_rates([flow.route.loads for flow in flows])
        return rates

    def _connected(self, port: Port, reached: set[Port]) -> list[_Flow]:
        """Flows that meet at a port or through others; adds their ports to ``reached``."""
        flows: dict[_Flow, None] = {}
        pending = [port]
        reached.add(port)
        while pending:
            for flow in self._flows_at[pending.pop()]:
                if flow in flows:
                    continue
                flows[flow] = None
                new = [other for other in flow.route.loads if other not in reached]
                reached.update(new)
                pending += new
        return list(flows)
