"""How do changes of one instant count once?

Many things start and end at the same moment: every rank of a group, in an unfolded
program. What depends on all of them (rates on shared ports, the pace of a computation)
is settled once, after everything else of that moment has happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import simpy
from simpy.events import NORMAL, EventPriority

Action = Callable[[], object]
"""Something to do when its time has come."""

_AFTER_ALL = EventPriority(2)
"""Priority below SimPy's own two, urgent (0) and normal (1)."""


class _Timer(simpy.Event):
    """Happens ``delay_s`` from now, as a ``Timeout`` does, with its one callback from the start."""

    def __init__(
        self, env: simpy.Environment, delay_s: float, callback: Callable[[simpy.Event], None]
    ) -> None:
        self.env = env
        self.callbacks = [callback]
        self._ok = True
        self._value = None
        env.schedule(self, NORMAL, delay_s)


def after(env: simpy.Environment, delay_s: float, action: Action) -> None:
    """Run an action ``delay_s`` from now."""

    def run(_: simpy.Event) -> None:
        action()

    _Timer(env, delay_s, run)


class _LastEvent(simpy.Event):
    """Happens now, but after all that is yet to happen now."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=_AFTER_ALL)


class EndOfInstant:
    """Runs an action at the end of every instant in which somebody asked for it.

    Args:
        env: The simulation.
        action: What to run; it may end nothing at this instant, only plan ahead.
    """

    def __init__(self, env: simpy.Environment, action: Action) -> None:
        self._env = env
        self._action = action
        self._is_due = False

    def ask(self) -> None:
        """Run the action once this instant is over."""
        if self._is_due:
            return
        self._is_due = True
        _LastEvent(self._env).callbacks.append(self._run)

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

    def __init__(self, env: simpy.Environment) -> None:
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
        now_s = self.env.now
        delay_s = self._due_s - now_s
        wakes_s = now_s + delay_s
        if wakes_s > self._due_s:  # rounded up: wake a little early and sleep on
            delay_s = math.nextafter(delay_s, 0.0)
            wakes_s = now_s + delay_s
        self._wakes_s = wakes_s
        self._event = _Timer(self.env, delay_s, self._wake)

    def _wake(self, event: simpy.Event) -> None:
        if event is not self._event:
            return
        self._event = None
        if self._due_s > self.env.now:
            self._sleep()
        else:
            self.ring()
