"""When does everything happen, with streams, rendezvous and shared links?

A SimPy simulation of a :class:`~simulator.program.ir.Program`. Each lane (one stream of
one rank class) runs its operations first in, first out. An operation on several lanes is
a rendezvous: it starts when the last of them reaches it and all that it depends on has ended.
Communication moves through the :class:`~simulator.engine.fluid_network.FluidNetwork`, whose
ports are shared max-min fairly; computation beside it slows by what the communication takes of the
device (:mod:`simulator.engine.device`). What only repeats
what was simulated is passed over (:mod:`simulator.engine.repetition`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
from simpy.core import EmptySchedule

from simulator.cost.interference import link_bytes_per_s, taken_share
from simulator.engine.dependencies import Dependencies, deadlock_error, dependencies
from simulator.engine.device import SharedDevice, compute
from simulator.engine.fluid_network import FluidNetwork, Route
from simulator.engine.instant import Clock
from simulator.engine.repetition import TOLERANCE, Records, Repetition
from simulator.engine.replay import remaining_s
from simulator.engine.timeline import Timeline
from simulator.program.ir import Kind, Lane, Operation, Program, Stream, Traffic

_COMPUTE = Stream.COMPUTE


class Limit(NamedTuple):
    """How long a program may take before its simulation is given up.

    Attributes:
        most_s: The longest time that is of interest [s].
        remaining_s: How long it goes on from the start of each operation at least
            (:func:`simulator.engine.replay.remaining_s`) [s].
        dependencies: Those of the program, which it was found from.
    """

    most_s: float
    remaining_s: Sequence[float]
    dependencies: Dependencies

    @classmethod
    def of(cls, program: Program, most_s: float) -> Limit:
        """The limit of a program that is of interest up to a time [s]."""
        known = dependencies(program)
        return cls(most_s, remaining_s(program, known), known)


class LimitError(Exception):
    """A program that takes longer than its limit.

    Attributes:
        least_s: How long it takes at least [s].
    """

    def __init__(self, least_s: float) -> None:
        super().__init__(least_s)
        self.least_s = least_s


def simulate_program(
    program: Program,
    *,
    contention: bool = True,
    every_operation: bool = False,
    limit: Limit | None = None,
) -> Timeline:
    """Timeline of the program on the simulated cluster.

    Args:
        program: What each rank class does.
        contention: Whether communications share ports and take multiprocessors from
            computation. Without it every operation is simulated, and the result equals
            :func:`simulator.engine.replay.replay` to the last bit.
        every_operation: Whether to simulate also what only repeats what was simulated
            (:mod:`simulator.engine.repetition`). The result differs by rounding.
        limit: How long it may take; None is for ever.

    Raises:
        LimitError: It takes longer; found out when an operation starts too late for all that
            follows it.
    """
    simulation = _Simulation(program, contention, every_operation or not contention, limit)
    try:
        return simulation.run()
    finally:
        # Events that are left hold the simulation, which holds them: the program need not wait
        # until that is collected.
        vars(simulation).clear()


class _Way(NamedTuple):
    """What a communication needs.

    Attributes:
        route: Of the network.
        taken: Devices that it slows, and the share of full speed that it takes of each.
    """

    route: Route
    taken: list[tuple[SharedDevice, float]]


class _Simulation:
    """One run: the clock, the devices, the network and the records."""

    def __init__(
        self, program: Program, contention: bool, every_operation: bool, limit: Limit | None
    ) -> None:
        self.program, self.limit = program, limit
        self.env = Clock()
        self.contention = contention
        self.devices = [SharedDevice(self.env, program.common) for _ in program.classes]
        self.alone = [[device] for device in self.devices]
        shares = {i: c.port_shares for i, c in enumerate(program.classes) if c.port_shares}
        self.network = FluidNetwork(self.env, program.ports, shares)
        self.operations = program.operations
        self.ways: dict[tuple[int, tuple[Lane, ...]], _Way] = {}
        """Of work by its identity and lanes; most communications run many times."""
        known = dependencies(program) if limit is None else limit.dependencies
        self.waits_for, self.followers = known.counts.copy(), known.followers
        count = len(program.operations)
        self.start_s = [0.0] * count
        self.end_s = [-1.0] * count
        records = Records(self.start_s, self.end_s, self.waits_for)
        self.repetition = Repetition(program, records)
        self.marks = frozenset[int]() if every_operation else self.repetition.marks
        self.mark: int | None = None
        """Operation that has ended and after which something may be passed over."""
        self.passed_over_s = 0.0
        self.under_way: dict[int, int] = {}
        """What is under way since something was passed over, by what it began as."""

    def run(self) -> Timeline:
        env = self.env
        for index in [i for i, count in enumerate(self.waits_for) if not count]:
            self._start(index, env.now_s)
        step = env.step
        with suppress(EmptySchedule):
            while True:
                if self.mark is not None and env.peek() - env.now_s > TOLERANCE * self._now_s:
                    self._pass_over(self.mark)
                step()
        blocked = [index for index, end in enumerate(self.end_s) if end < 0]
        if blocked:
            raise deadlock_error(self.program, blocked)
        return Timeline(self.program, np.asarray(self.start_s), np.asarray(self.end_s))

    @property
    def _now_s(self) -> float:
        """Time since the start, with all that was passed over [s]."""
        return self.env.now_s + self.passed_over_s

    def _pass_over(self, mark: int) -> None:
        self.mark = None
        skip = self.repetition.skip(mark)
        if skip is not None:
            self.passed_over_s += skip.seconds
            self.under_way = skip.under_way

    def _start(self, index: int, now_s: float) -> None:
        self.start_s[index] = now_s
        if self.limit is not None:
            least_s = now_s + self.limit.remaining_s[index]
            if least_s > self.limit.most_s:
                raise LimitError(least_s)
        operation = self.operations[index]
        work, lanes = operation.work, operation.lanes
        if self.contention and work.traffic is not None:
            route, taken = self.ways.get((id(work), lanes)) or self._way(operation, work.traffic)
            for device, share in taken:
                device.take(share)
            self.network.transfer(route, partial(self._let_go, taken, index))
        elif self.contention and lanes[0][1] is _COMPUTE:
            first = lanes[0][0]
            devices = self.alone[first] if len(lanes) == 1 else [self.devices[c] for c, _ in lanes]
            compute(self.env, devices, work.seconds, partial(self._end, index))
        else:
            self.env.after(work.seconds, partial(self._end, index))

    def _end(self, index: int) -> None:
        if self.under_way:
            index = self.under_way.pop(index, index)
        now_s = self.end_s[index] = self.env.now_s + self.passed_over_s
        if index in self.marks:
            self.mark = index
        waits_for = self.waits_for
        for follower in self.followers[index]:
            waits_for[follower] -= 1
            if not waits_for[follower]:
                self._start(follower, now_s)

    def _let_go(self, taken: list[tuple[SharedDevice, float]], index: int) -> None:
        for device, share in taken:
            device.give(share)
        self._end(index)

    def _way(self, operation: Operation, traffic: Traffic) -> _Way:
        # A class that waits for it on its compute stream has nothing to slow down.
        beside = [c for c, stream in operation.lanes if stream is not _COMPUTE]
        seconds = operation.work.seconds
        route = self.network.route(seconds, traffic, *_ends(operation))
        shares = [(self.devices[c], self._taken_share(c, traffic, seconds)) for c in beside]
        way = _Way(route, [taken for taken in shares if taken[1]])
        self.ways[id(operation.work), operation.lanes] = way
        return way

    def _taken_share(self, rank_class: int, traffic: Traffic, seconds: float) -> float:
        device = self.program.classes[rank_class].device or self.program.device
        if device is None:
            return 0.0
        rate_bytes_per_s = link_bytes_per_s(traffic.port_bytes, seconds)
        return taken_share(traffic.sm_count, rate_bytes_per_s, device, self.program.common)


def _ends(operation: Operation) -> tuple[list[int], list[int]]:
    if operation.kind is Kind.SEND_RECV:
        return [operation.lanes[0][0]], [operation.lanes[-1][0]]
    classes = sorted({rank_class for rank_class, _ in operation.lanes})
    return classes, classes
