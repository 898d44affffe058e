"""Which rooms are public functions, too?

``simulator.schedule`` is a package, and users call it: ``sim.schedule("1f1b", pp=4)``. Python lets
a module have a class of its own; this one hands calls to the function of the same name in
:mod:`simulator.api`, which stands above all rooms, so it is looked up when it is called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableRoom(ModuleType):
    """A package that can be called."""

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """What the function of the same name in :mod:`simulator.api` returns."""
        function = getattr(import_module("simulator.api"), self.__name__.rpartition(".")[2])
        return function(*positional, **named)


def make_callable(name: str) -> None:
    """Let a package be called; ``name`` is its ``__name__``."""
    sys.modules[name].__class__ = CallableRoom
