"""How fast does a GPU compute while communication holds some of its multiprocessors?

Communication kernels occupy streaming multiprocessors (SMs); computation beside them
keeps the rest and slows in proportion, and by a little more for the memory, caches and power
that both share. A computation that several GPUs run in lockstep goes at the pace of the slowest.
What kind of kernel is slowed, and how its waves fall on the remaining SMs, is ignored.

Source: one channel of NCCL is one thread block, about one SM; what is beside it is in
``hardware_profiles/common``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import simpy

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
    """The multiprocessors of one representative GPU, and the share of full speed they leave."""

    __slots__ = ("common", "computing", "held", "rate", "sm_count")

    def __init__(self, sm_count: int, common: Common) -> None:
        self.sm_count, self.common = sm_count, common
        self.held = 0
        self.rate = 1.0
        self.computing: _Computation | None = None

    def hold(self, sm_count: int) -> None:
        """Take multiprocessors from computation, or return them where negative."""
        self.held += sm_count
        left = 1.0 - self.held / self.sm_count - self.common.beside_share
        self.rate = max(self.common.least_rate, left) if self.held else 1.0


class Devices:
    """The representative GPU of every rank class.

    Args:
        env: The simulation.
        sm_counts: Multiprocessors of each; 0 switches interference off.
        common: What communication takes besides them, and what it leaves at the least.
    """

    def __init__(self, env: simpy.Environment, sm_counts: Sequence[int], common: Common) -> None:
        self._env = env
        self._devices = [_Device(sm_count, common) for sm_count in sm_counts]

    def take(self, index: int, sm_count: int) -> None:
        """Give ``sm_count`` multiprocessors of a device to a communication."""
        self._hold(index, sm_count)

    def give(self, index: int, sm_count: int) -> None:
        """Return ``sm_count`` multiprocessors of a device to computation."""
        self._hold(index, -sm_count)

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

    def _hold(self, index: int, sm_count: int) -> None:
        device = self._devices[index]
        if not sm_count or not device.sm_count:
            return
        computation = device.computing
        if computation is None:
            device.hold(sm_count)
            return
        computation.settle()
        device.hold(sm_count)
        if sm_count > 0:
            computation.slows_down()
        else:
            computation.speeds_up()
