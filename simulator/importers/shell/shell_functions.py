"""Which functions does a script define, and which commands do they hold?

A function's commands are set aside where it is written and read where it is called; those that
nothing calls are read at the end, since a launch may hide in one.
"""

from __future__ import annotations

import re

from simulator.importers.shell.shell_language import Command

_HEAD = re.compile(r"([A-Za-z_][\w-]*)\(\)")


class Functions:
    """Functions of a script, and the one that is being read."""

    def __init__(self) -> None:
        """Start with none."""
        self._bodies: dict[str, list[Command]] = {}
        self._called: set[str] = set()
        self._open = ""
        self._depth = 0

    def takes(self, command: Command) -> bool:
        """Whether a command belongs to a definition; it is then set aside."""
        words = command.words
        if not self._open:
            name = _defined(words)
            if name is None:
                return False
            self._bodies[name], self._open, self._depth = [], name, words.count("{")
            rest = words[words.index("{") + 1 :] if "{" in words else []
            if rest:
                self._bodies[name].append(Command(rest, document=command.document))
            return True
        self._depth += words.count("{") - (words[:1] == ["}"])
        is_over = words[:1] == ["}"] and self._depth == 0
        if not is_over and words != ["{"]:
            self._bodies[self._open].append(command)
        self._open = "" if is_over else self._open
        return True

    def body(self, name: str) -> list[Command] | None:
        """Commands of a function; None where there is none of that name."""
        self._called.add(name)
        return self._bodies.get(name)

    def uncalled(self) -> list[Command]:
        """Commands of the functions that nothing has called."""
        idle = [name for name in self._bodies if name not in self._called]
        return [command for name in idle for command in self._bodies[name]]


def _defined(words: list[str]) -> str | None:
    """Name of the function whose definition begins here; None where none does."""
    if words[:1] == ["function"] and len(words) > 1:
        return words[1].removesuffix("()")
    found = _HEAD.fullmatch(words[0]) if words else None
    if found is None and words[1:2] == ["()"]:
        return words[0]
    return found[1] if found else None
