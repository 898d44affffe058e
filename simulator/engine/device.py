"""How fast does a GPU compute while communication holds some of its multiprocessors?

Communication kernels occupy streaming multiprocessors (SMs); computation beside them
keeps the rest and slows in proportion, and by a little more for the memory, caches and power
that both share. A computation that several GPUs run in lockstep goes at the pace of the slowest.
What kind of kernel is slowed, and how its waves fall on the remaining SMs, is ignored.

Source: one channel of NCCL is one thread block, about one SM; the measured mean slow-down over
four GPU types is 18.9 % (arXiv 2507.03114).
"""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from simulator.engine.instant import Action, Alarm, EndOfInstant

BESIDE_MULTIPROCESSORS = 0.07
"""Share of full speed that communication takes besides its multiprocessors. With the 16 of 132
that NCCL's channels hold on H100 over a fabric, this makes up the measured 18.9 %."""

_LEAST_RATE = 0.5
"""Communication never takes more than half the device (assumption)."""


class _Computation(Alarm):
    """Work under way on one or more devices."""

    __slots__ = ("devices", "ended", "rate", "remaining_s", "updated_s")

    def __init__(
        self, env: simpy.Environment, devices: Sequence[_Device], seconds: float, ended: Action
    ) -> None:
        super().__init__(env)
        self.devices = devices
        self.remaining_s = seconds
        self.ended = ended
        self.rate = 0.0
        self.updated_s = 0.0

    def keep_pace(self, now_s: float) -> None:
        """Book the progress so far and go on at the pace of the slowest device."""
        rate = min(device.rate for device in self.devices)
        if rate == self.rate:
            return
        self.remaining_s = max(0.0, self.remaining_s - (now_s - self.updated_s) * self.rate)
        self.updated_s = now_s
        self.rate = rate
        self.set(self.remaining_s / rate)

    def ring(self) -> None:
        """The work is done."""
        for device in self.devices:
            device.computing = None
        self.ended()


class _Device:
    """The multiprocessors of one representative GPU."""

    __slots__ = ("computing", "held", "sm_count")

    def __init__(self, sm_count: int) -> None:
        self.sm_count = sm_count
        self.held = 0
        self.computing: _Computation | None = None

    @property
    def rate(self) -> float:
        """Share of full speed."""
        if not self.held:
            return 1.0
        return max(_LEAST_RATE, 1.0 - self.held / self.sm_count - BESIDE_MULTIPROCESSORS)


class Devices:
    """The representative GPU of every rank class.

    Args:
        env: The simulation.
        sm_counts: Multiprocessors of each; 0 switches interference off.
    """

    def __init__(self, env: simpy.Environment, sm_counts: Sequence[int]) -> None:
        self._env = env
        self._devices = [_Device(sm_count) for sm_count in sm_counts]
        self._changed: dict[_Computation, None] = {}
        self._settling = EndOfInstant(env, self._settle)

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
        computation.keep_pace(self._env.now)

    def _hold(self, index: int, sm_count: int) -> None:
        device = self._devices[index]
        if not sm_count or not device.sm_count:
            return
        device.held += sm_count
        if device.computing is not None:
            self._changed[device.computing] = None
            self._settling.ask()

    def _settle(self) -> None:
        """Give every computation its new pace, if it has not ended meanwhile."""
        changed, self._changed = self._changed, {}
        for computation in changed:
            if computation.devices[0].computing is computation:
                computation.keep_pace(self._env.now)
