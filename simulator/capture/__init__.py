"""How does a training step of the user's own torch code become a program?

The code runs once for each rank that differs, on a GPU that is not there: tensors have
shapes and no contents, process groups have any size and no wires. What it launches, sends,
takes and gives back is written down in a file, and from the file comes a
:class:`~simulator.program.ir.Program`, on any profile.

=======================  ==========================================================
:mod:`.stated_values`    values that only a real run knows, by line of code
:mod:`.make`             a script or function, run on ranks that do not exist
:mod:`.recording`        what such a rank does, written down; the only part with torch
:mod:`.table`            the captured step, as columns
:mod:`.file`             the same on disk
:mod:`.kernel_cost`      seconds of an operator
:mod:`.exchange_work`    seconds of an exchange
:mod:`.host_link`        seconds of a copy between the device and its host
:mod:`.kernels_to_measure` what `calibrate gpu --only` measures of a step
:mod:`.rescale`          other numbers of data-parallel ranks
:mod:`.merged_operations` which operations are one
:mod:`.captured_program` the whole step as a program
:mod:`.held_memory`      who holds what, when
:mod:`.result`           the simulated step
:mod:`.dearest_operators` which operators take most of the GPU's time
:mod:`.installed_transformers` parameters of a network that transformers builds
=======================  ==========================================================

torch is needed to make a capture, never to read or simulate one. The room can be called:
``simulator.capture(step_function, world=64)``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.capture.table import Capture


class _Room(ModuleType):
    """The package, which is a function, too."""

    def __call__(
        self,
        step_function: Callable[[], object],
        world: int = 64,
        device: str = "h100-sxm-80gb",
        values: Sequence[str] = (),
    ) -> Capture:
        """The step that a function runs as rank 0 of so many; see :func:`make.capture_steps`."""
        from simulator.capture.make import capture_steps

        return capture_steps(step_function, world=world, device=device, values=values)


sys.modules[__name__].__class__ = _Room
