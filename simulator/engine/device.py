"""How fast does a GPU compute while communication takes some of it?

What a communication takes follows from :mod:`simulator.cost.interference`. A computation that
several GPUs run in lockstep goes at the pace of the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.cost.interference import rate_beside
from simulator.described.cluster.common import Common
from simulator.engine.instant import Action, Alarm, Clock


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
        "_soonest_s",
        "_updated_s",
        "devices",
    )

    def __init__(
        self, env: Clock, devices: Sequence[SharedDevice], seconds: float, ended: Action
    ) -> None:
        super().__init__(env)
        self.devices = devices
        self._ended = ended
        self._remaining_s = seconds
        self._updated_s = now_s = env.now_s
        self._rate = rate = self._slowest_rate()
        self._ends_s = now_s + seconds / rate
        self._changed_s = math.inf
        # At full speed: no change makes it end sooner, so that no wake is in vain.
        self._soonest_s = self._due_s = now_s + seconds
        self._sleep()

    def changes(self, now_s: float) -> None:
        """Book the last change of the pace, if its instant is over; now comes another one."""
        if self._changed_s < now_s:
            self._keep_pace()
        self._changed_s = now_s

    def speeds_up(self, now_s: float) -> None:
        """Take note that a device of it goes faster from now on, so that it may end sooner."""
        if now_s < self._soonest_s:
            return  # it wakes before it can end
        rate = self._slowest_rate()
        if rate > self._rate:
            self.set_at(now_s + self._left_s() / rate)

    def ring(self) -> None:
        """The work is done, unless it was slowed down meanwhile."""
        now_s = self.env.now_s
        if self._changed_s < now_s:
            self._keep_pace()
        if self._ends_s > now_s:
            self.set_at(self._ends_s)
            return
        for device in self.devices:
            device.computing = None
        self._ended()

    def _slowest_rate(self) -> float:
        devices = self.devices
        return devices[0].rate if len(devices) == 1 else min([each.rate for each in devices])

    def _left_s(self) -> float:
        """Seconds-alone still to do at the last change."""
        done_s = (self._changed_s - self._updated_s) * self._rate
        return max(0.0, self._remaining_s - done_s)

    def _keep_pace(self) -> None:
        """Book the progress until the last change and go on at the pace since."""
        rate = self._slowest_rate()
        if rate != self._rate:
            self._remaining_s = self._left_s()
            self._updated_s = self._changed_s
            self._rate = rate
            self._ends_s = self._changed_s + self._remaining_s / rate
        self._changed_s = math.inf


class SharedDevice:
    """One representative GPU, and the share of full speed that communication leaves it.

    Args:
        env: The simulation.
        common: What communication leaves at the least.
    """

    __slots__ = ("_common", "_env", "_taken", "computing", "rate")

    def __init__(self, env: Clock, common: Common) -> None:
        self._env, self._common = env, common
        self._taken: list[float] = []
        self.rate = 1.0
        self.computing: _Computation | None = None

    def take(self, share: float) -> None:
        """Take a share of the full speed for a communication."""
        if self.computing is not None:
            self.computing.changes(self._env.now_s)
        self._taken.append(share)
        self._keep_rest()

    def give(self, share: float) -> None:
        """Return a share that was taken."""
        computing = self.computing
        if computing is None:
            self._taken.remove(share)
            self._keep_rest()
            return
        now_s = self._env.now_s
        computing.changes(now_s)
        self._taken.remove(share)
        self._keep_rest()
        computing.speeds_up(now_s)

    def _keep_rest(self) -> None:
        """Compute at what is left from now on; the order of what was taken changes nothing."""
        taken = self._taken
        self.rate = rate_beside(math.fsum(taken), self._common) if taken else 1.0


def compute(env: Clock, devices: Sequence[SharedDevice], seconds: float, ended: Action) -> None:
    """Begin work that takes ``seconds`` on whole devices, in lockstep on all of them.

    Args:
        env: The simulation.
        devices: Which ones.
        seconds: Duration if no communication holds multiprocessors [s].
        ended: Called when it is done.
    """
    computation = _Computation(env, devices, seconds, ended)
    for device in devices:
        device.computing = computation
