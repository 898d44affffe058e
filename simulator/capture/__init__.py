"""How does a training step of the user's own torch code become a program?

The code runs once for each rank that differs, on a GPU that is not there: tensors have
shapes and no contents, process groups have any size and no wires. What it launches, sends,
takes and gives back is written down in a file, and from the file comes a
:class:`~simulator.program.ir.Program`, on any profile.

=======================  ==========================================================
:mod:`.make`             a script or function, run on ranks that do not exist
:mod:`.one_rank`         one of them; :mod:`.rank_process` is its process
:mod:`.absent_gpu`       torch takes a CUDA device for present
:mod:`.absent_streams`   ``torch.cuda``: streams, events, memory, properties
:mod:`.gpu_kernels`      operators that a GPU runs as one kernel
:mod:`.values`           numbers that only a real run knows
:mod:`.refusals`         what is skipped, and what is refused
:mod:`.recorder`         operators and storages, as they happen
:mod:`.groups`           collectives and what waits for them
:mod:`.modules`          which module, and forward, backward or update
:mod:`.owners`           who holds a block of memory
:mod:`.reducer`          DistributedDataParallel's buckets
:mod:`.record`           what is written down; :mod:`.settle` cuts the step out
:mod:`.table`            the captured step, as columns; :mod:`.file` keeps it
:mod:`.kernel_cost`      seconds of an operator; :mod:`.exchange_work` of an exchange
:mod:`.rescale`          other numbers of data-parallel ranks
:mod:`.blocks`           which operations are one; :mod:`.to_program` the whole step
:mod:`.memory`           who holds what, when
:mod:`.result`           the simulated step
=======================  ==========================================================

torch is needed to make a capture, never to read or simulate one. The room can be called:
``simulator.capture(step_function, world=64)``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    ) -> Capture:
        """The step that a function runs as rank 0 of so many; see :func:`make.capture_steps`."""
        from simulator.capture.make import capture_steps

        return capture_steps(step_function, world=world, device=device)


sys.modules[__name__].__class__ = _Room
