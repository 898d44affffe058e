"""How do changes of one instant count once?

Many things start and end at the same moment: every rank of a group, in an unfolded
program. What depends on all of them (rates on shared ports, the pace of a computation)
is settled once, after everything else of that moment has happened.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, EventPriority

Action = Callable[[], object]
"""Something to do when its time has come."""

_AFTER_ALL = EventPriority(2)
"""Priority below SimPy's own two, urgent (0) and normal (1)."""


class _Timer(simpy.Event):
    """Happens at its time, as a ``Timeout`` does, with its one callback from the start."""

    _ok = True
    _value = None

    def __init__(self, callback: Callable[[simpy.Event], Any]) -> None:
        self.callbacks = [callback]


class Clock(simpy.Environment):
    """SimPy's environment, with less around the hundreds of thousands of events of a simulation.

    Attributes:
        now_s: The time, as ``now`` says it [s].
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def at(
        self, time_s: float, callback: Callable[[simpy.Event], Any],
        priority: EventPriority = NORMAL,
    ) -> simpy.Event:  # fmt: skip
        """Call back at a time, now or later; returns the event that is handed over then."""
        event = _Timer(callback)
        heappush(self._queue, (time_s, priority, next(self._eid), event))
        return event

    def after(self, delay_s: float, action: Action) -> None:
        """Run an action ``delay_s`` from now."""
        self.at(self.now_s + delay_s, lambda _: action())

    def step(self) -> None:
        """Let the next event happen.

        Raises:
            EmptySchedule: There is none.
        """
        try:
            self.now_s, _, _, event = heappop(self._queue)
        except IndexError:
            raise EmptySchedule from None
        self._now = self.now_s
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise event._value


class EndOfInstant:
    """Runs an action at the end of every instant in which somebody asked for it.

    Args:
        env: The simulation.
        action: What to run; it may end nothing at this instant, only plan ahead.
    """

    def __init__(self, env: Clock, action: Action) -> None:
        self._env = env
        self._action = action
        self._is_due = False

    def ask(self) -> None:
        """Run the action once this instant is over."""
        if self._is_due:
            return
        self._is_due = True
        self._env.at(self._env.now_s, self._run, _AFTER_ALL)

    def _run(self, _: simpy.Event) -> None:
        self._is_due = False
        self._action()


class Alarm:
    """Rings once at a time that may still be changed; only the last setting counts.

    A later time costs no event of its own: the alarm wakes when it was first set to, and
    sleeps on. It holds nothing that refers back to it, so it is gone as soon as it rang.

    Args:
        env: The simulation.
    """

    __slots__ = ("_due_s", "_event", "_wakes_s", "env")

    def __init__(self, env: Clock) -> None:
        self.env = env
        self._event: simpy.Event | None = None
        self._wakes_s = 0.0
        self._due_s = 0.0

    def set_at(self, due_s: float) -> None:
        """Ring at ``due_s``, now or later, instead of at any time set before."""
        self._due_s = due_s
        if self._event is None or due_s < self._wakes_s:
            self._sleep()

    def ring(self) -> None:
        """What happens when the time has come."""
        raise NotImplementedError

    def _sleep(self) -> None:
        self._wakes_s = due_s = self._due_s
        self._event = self.env.at(due_s, self._wake)

    def _wake(self, event: simpy.Event) -> None:
        if event is not self._event:
            return
        self._event = None
        if self._due_s > self._wakes_s:
            self._sleep()
        else:
            self.ring()
