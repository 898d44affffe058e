"""How fast does a GPU compute while communication holds some of its multiprocessors?

Communication kernels occupy streaming multiprocessors (SMs); computation beside them
keeps the rest and slows in proportion. This ignores wave quantisation on the remaining
SMs and shared memory bandwidth, so the slow-down is a lower bound.

Source: assumption; the measured mean slow-down over four GPU types is 18.9 %
(arXiv 2507.03114), and one channel of NCCL is one thread block, about one SM.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy


class Device:
    """The multiprocessors of one representative GPU.

    Args:
        env: The simulation.
        sm_count: Multiprocessors of the device; 0 switches interference off.
    """

    def __init__(self, env: simpy.Environment, sm_count: int) -> None:
        self._env = env
        self._sm_count = sm_count
        self._held = 0
        self._computing: simpy.Process | None = None

    def take(self, sm_count: int) -> None:
        """Give ``sm_count`` multiprocessors to a communication."""
        self._hold(sm_count)

    def give(self, sm_count: int) -> None:
        """Return ``sm_count`` multiprocessors to computation."""
        self._hold(-sm_count)

    def compute(self, seconds: float) -> Generator[simpy.Event, Any, None]:
        """Run work that takes ``seconds`` on the whole device."""
        remaining_s = seconds
        while True:
            rate, began_s = self._rate, self._env.now
            self._computing = self._env.active_process
            try:
                yield self._env.timeout(remaining_s / rate)
            except simpy.Interrupt:
                remaining_s = max(0.0, remaining_s - (self._env.now - began_s) * rate)
            else:
                self._computing = None
                return

    @property
    def _rate(self) -> float:
        """Share of full speed; communication never takes more than half the device."""
        if not self._held:
            return 1.0
        return max(0.5, 1.0 - self._held / self._sm_count)

    def _hold(self, sm_count: int) -> None:
        if not sm_count or not self._sm_count:
            return
        self._held += sm_count
        if self._computing is not None:
            self._computing.interrupt()
