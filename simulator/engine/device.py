"""How fast does a GPU compute while communication takes some of it?

What a communication takes follows from :mod:`simulator.cost.interference`. A computation that
several GPUs run in lockstep goes at the pace of the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import simpy

from simulator.cost.interference import rate_beside
from simulator.described.cluster.common import Common
from simulator.engine.instant import Action, Alarm


class _Computation(Alarm):
    """Work under way on one or more devices, at the pace of the slowest.

    What changes the pace counts once its instant is over: when the pace changes again or the
    work might be done.
    """

    __slots__ = (
        "_changed_s",
        "_ended",
        "_ends_s",
        "_rate",
        "_remaining_s",
        "_updated_s",
        "devices",
    )

    def __init__(
        self, env: simpy.Environment, devices: Sequence[_Device], seconds: float, ended: Action
    ) -> None:
        super().__init__(env)
        self.devices = devices
        self._ended = ended
        self._remaining_s = seconds
        self._updated_s = env.now
        self._rate = self._slowest
        self._ends_s = self._updated_s + seconds / self._rate
        self._changed_s = math.inf
        self.set_at(self._ends_s)

    def settle(self) -> None:
        """Book the last change of the pace, if its instant is over."""
        if self._changed_s < self.env.now:
            self._keep_pace()

    def slows_down(self) -> None:
        """Take note that a device of it goes slower from now on."""
        self._changed_s = self.env.now

    def speeds_up(self) -> None:
        """Take note that a device of it goes faster from now on, so that it may end sooner."""
        self._changed_s = self.env.now
        rate = self._slowest
        if rate > self._rate:
            self.set_at(self._changed_s + self._left_s / rate)

    def ring(self) -> None:
        """The work is done, unless it was slowed down meanwhile."""
        self.settle()
        if self._ends_s > self.env.now:
            self.set_at(self._ends_s)
            return
        for device in self.devices:
            device.computing = None
        self._ended()

    @property
    def _slowest(self) -> float:
        return min([device.rate for device in self.devices])

    @property
    def _left_s(self) -> float:
        """Seconds-alone still to do at the last change."""
        done_s = (self._changed_s - self._updated_s) * self._rate
        return max(0.0, self._remaining_s - done_s)

    def _keep_pace(self) -> None:
        """Book the progress until the last change and go on at the pace since."""
        rate = self._slowest
        if rate != self._rate:
            self._remaining_s = self._left_s
            self._updated_s = self._changed_s
            self._rate = rate
            self._ends_s = self._changed_s + self._remaining_s / rate
        self._changed_s = math.inf


class _Device:
    """One representative GPU, and the share of full speed that communication leaves it."""

    __slots__ = ("common", "computing", "rate", "taken")

    def __init__(self, common: Common) -> None:
        self.common = common
        self.taken: list[float] = []
        self.rate = 1.0
        self.computing: _Computation | None = None

    def keep_rest(self) -> None:
        """Compute at what is left from now on; the order of what was taken changes nothing."""
        self.rate = rate_beside(math.fsum(self.taken), self.common)


class Devices:
    """The representative GPU of every rank class.

    Args:
        env: The simulation.
        count: How many.
        common: What communication leaves at the least.
    """

    def __init__(self, env: simpy.Environment, count: int, common: Common) -> None:
        self._env = env
        self._devices = [_Device(common) for _ in range(count)]

    def take(self, index: int, share: float) -> None:
        """Take a share of a device's full speed for a communication."""
        device = self._devices[index]
        if device.computing is not None:
            device.computing.settle()
        device.taken.append(share)
        device.keep_rest()
        if device.computing is not None:
            device.computing.slows_down()

    def give(self, index: int, share: float) -> None:
        """Return a share that was taken."""
        device = self._devices[index]
        if device.computing is not None:
            device.computing.settle()
        device.taken.remove(share)
        device.keep_rest()
        if device.computing is not None:
            device.computing.speeds_up()

    def compute(self, indices: Sequence[int], seconds: float, ended: Action) -> None:
        """Begin work that takes ``seconds`` on whole devices, in lockstep on all of them.

        Args:
            indices: Which devices.
            seconds: Duration if no communication holds multiprocessors [s].
            ended: Called when it is done.
        """
        devices = [self._devices[index] for index in indices]
        computation = _Computation(self._env, devices, seconds, ended)
        for device in devices:
            device.computing = computation
