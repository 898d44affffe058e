"""How do changes of one instant count once?

Many things start and end at the same moment: every rank of a group, in an unfolded
program. What depends on all of them (rates on shared ports, the pace of a computation)
is settled once, after everything else of that moment has happened.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import EventPriority

Action = Callable[[], object]
"""Something to do when its time has come."""

_AFTER_ALL = EventPriority(2)
"""Priority below SimPy's own two, urgent (0) and normal (1)."""


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


class Timer:
    """An alarm that can be set anew; only the last setting rings.

    Args:
        env: The simulation.
        action: What to run when it rings.
    """

    __slots__ = ("_action", "_env", "_setting")

    def __init__(self, env: simpy.Environment, action: Action) -> None:
        self._env = env
        self._action = action
        self._setting: simpy.Event | None = None

    def set(self, delay_s: float) -> None:
        """Ring after ``delay_s`` from now instead of at any time set before."""
        self._setting = self._env.timeout(delay_s)
        self._setting.callbacks.append(self._ring)

    def _ring(self, event: simpy.Event) -> None:
        if event is self._setting:
            self._action()
