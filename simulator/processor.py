"""What processor does this program run on, and what does it leave undone there?"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
from collections.abc import Iterator


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """Its maker's name where Linux says it, else its architecture."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage: for work whose objects nearly all live until it is done.

    Looking again and again at all that is still alive takes a quarter of a step's simulation, and
    a seventh of serving a million requests; neither makes cycles that would need it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Leave alone what is alive now whenever garbage is collected: for work beside large tables."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
