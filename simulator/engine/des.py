"""When does everything happen, with streams, rendezvous and shared links?

A SimPy simulation of a :class:`~simulator.program.ir.Program`. Each lane (one stream of
one rank class) is a process that runs its operations first in, first out. An operation
on several lanes is a rendezvous: the last lane to arrive runs it, the others wait.
Communication moves through the :class:`~simulator.engine.network.FluidNetwork`, whose
ports are shared max-min fairly; computation beside it slows by the streaming
multiprocessors that the communication holds (:mod:`simulator.engine.device`).
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
import simpy

from simulator.engine.deadlock import deadlock_error
from simulator.engine.device import Devices
from simulator.engine.instant import Action, Timer
from simulator.engine.network import FluidNetwork
from simulator.engine.timeline import Timeline
from simulator.program.ir import Kind, Operation, Program, Stream, Traffic

Process = Generator[simpy.Event, Any, None]


def simulate_program(program: Program, *, contention: bool = True) -> Timeline:
    """Timeline of the program on the simulated cluster.

    Args:
        program: What each rank class does.
        contention: Whether communications share ports and take multiprocessors from
            computation. Without it the result equals :func:`simulator.engine.replay.replay`.
    """
    return _Simulation(program, contention).run()


class _Simulation:
    """One run: the clock, the devices, the network and the records."""

    def __init__(self, program: Program, contention: bool) -> None:
        self.program = program
        self.env = simpy.Environment()
        self.contention = contention
        sm_counts = [c.device.sm_count if c.device else program.sm_count for c in program.classes]
        self.devices = Devices(self.env, sm_counts)
        shares = {i: c.port_shares for i, c in enumerate(program.classes) if c.port_shares}
        self.network = FluidNetwork(self.env, program.ports, shares)
        count = len(program.operations)
        self.start_s = [0.0] * count
        self.end_s = [-1.0] * count
        self.done: list[simpy.Event | None] = [None] * count
        self.arrived = [0] * count

    def run(self) -> Timeline:
        for operations in self.program.lanes.values():
            self.env.process(self._lane(operations))
        self.env.run()
        blocked = [index for index, end in enumerate(self.end_s) if end < 0]
        if blocked:
            raise deadlock_error(self.program, blocked)
        return Timeline(self.program, np.asarray(self.start_s), np.asarray(self.end_s))

    def _lane(self, operations: list[int]) -> Process:
        for index in operations:
            operation = self.program.operations[index]
            self.arrived[index] += 1
            if self.arrived[index] == len(operation.lanes):
                for before in operation.after:
                    if self.end_s[before] < 0:
                        yield self._ended(before)
                self._start(index, operation)
            if self.end_s[index] < 0:
                yield self._ended(index)

    def _ended(self, index: int) -> simpy.Event:
        """The event of an operation's end, made only if somebody waits for it."""
        event = self.done[index]
        if event is None:
            event = self.done[index] = self.env.event()
        return event

    def _start(self, index: int, operation: Operation) -> None:
        self.start_s[index] = self.env.now
        seconds, traffic = operation.work.seconds, operation.work.traffic
        end = partial(self._end, index)
        if self.contention and traffic is not None:
            self._communicate(operation, traffic, end)
        elif self.contention and operation.lanes[0][1] is Stream.COMPUTE:
            classes = [rank_class for rank_class, _ in operation.lanes]
            self.devices.compute(classes, seconds, end)
        else:
            Timer(self.env, end).set(seconds)

    def _end(self, index: int) -> None:
        self.end_s[index] = self.env.now
        waiting = self.done[index]
        if waiting is not None:
            waiting.succeed()

    def _communicate(self, operation: Operation, traffic: Traffic, end: Action) -> None:
        # A class that waits for it on its compute stream has nothing to slow down.
        held = [c for c, stream in operation.lanes if stream is not Stream.COMPUTE]
        for rank_class in held:
            self.devices.take(rank_class, traffic.sm_count)

        def let_go() -> None:
            for rank_class in held:
                self.devices.give(rank_class, traffic.sm_count)
            end()

        senders, receivers = _ends(operation)
        self.network.transfer(operation.work.seconds, traffic, senders, receivers, let_go)


def _ends(operation: Operation) -> tuple[list[int], list[int]]:
    """Classes that send and classes that receive; all do both in a collective."""
    if operation.kind is Kind.SEND_RECV:
        return [operation.lanes[0][0]], [operation.lanes[-1][0]]
    classes = sorted({rank_class for rank_class, _ in operation.lanes})
    return classes, classes
