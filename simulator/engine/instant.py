"""How do changes of one instant count once?

Many things start and end at the same moment: every rank of a group, in an unfolded
program. What depends on all of them (rates on shared ports, the pace of a computation)
is settled once, after everything else of that moment has happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, EventPriority

Action = Callable[[], object]
"""Something to do when its time has come."""

_AFTER_ALL = EventPriority(2)
"""Priority below SimPy's own two, urgent (0) and normal (1)."""


class _Timer(simpy.Event):
    """Happens at its time, as a ``Timeout`` does, and may be in the queue more than once."""

    __slots__ = ()

    def happen(self) -> None:
        """What it does at its time."""
        raise NotImplementedError


class _Callback(_Timer):
    """Runs an action at its time."""

    __slots__ = ("_action",)

    def __init__(self, action: Action) -> None:
        self._action = action

    def happen(self) -> None:
        self._action()


class Clock(simpy.Environment):
    """SimPy's environment, with less around the hundreds of thousands of events of a simulation.

    Attributes:
        now_s: The time, as ``now`` says it [s].
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def at(self, time_s: float, action: Action, priority: EventPriority = NORMAL) -> None:
        """Run an action at a time, now or later."""
        heappush(self._queue, (time_s, priority, next(self._eid), _Callback(action)))

    def wake(self, alarm: Alarm, time_s: float) -> None:
        """Let an alarm happen at a time, now or later."""
        heappush(self._queue, (time_s, NORMAL, next(self._eid), alarm))

    def after(self, delay_s: float, action: Action) -> None:
        """Run an action ``delay_s`` from now."""
        self.at(self.now_s + delay_s, action)

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
        if isinstance(event, _Timer):
            event.happen()
            return
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

    def _run(self) -> None:
        self._is_due = False
        self._action()


class Alarm(_Timer):
    """Rings once at a time that may still be changed; only the last setting counts.

    A later time costs no event of its own: the alarm wakes when it was first set to, and
    sleeps on. A sooner one leaves it in the queue twice, and it wakes once.

    Args:
        env: The simulation.
    """

    __slots__ = ("_due_s", "_wakes_s", "env")
    env: Clock

    def __init__(self, env: Clock) -> None:
        self.env = env
        self._wakes_s = math.inf
        self._due_s = math.inf

    def set_at(self, due_s: float) -> None:
        """Ring at ``due_s``, now or later, instead of at any time set before."""
        self._due_s = due_s
        if due_s < self._wakes_s:
            self._sleep()

    def unset(self) -> None:
        """Ring no more, unless it is set again."""
        self._wakes_s = math.inf

    def ring(self) -> None:
        """What happens when the time has come."""
        raise NotImplementedError

    def happen(self) -> None:
        """Ring, or sleep on; nothing where it was set to another time since."""
        wakes_s = self._wakes_s
        if wakes_s != self.env.now_s:
            return
        if self._due_s > wakes_s:
            self._sleep()
        else:
            self._wakes_s = math.inf
            self.ring()

    def _sleep(self) -> None:
        self._wakes_s = due_s = self._due_s
        self.env.wake(self, due_s)
