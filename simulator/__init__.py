"""clustersim: what does training cost, before you rent a single GPU?

    import simulator as sim

    job = sim.load_job("job.yaml")
    result = sim.simulate(job)

Data flows one way: Model + Cluster + Plan -> Program -> Timeline -> everything a person
wants to know. A room imports only from the rooms below it:

api           the public functions
cli           the command ``clustersim``
capture       a step of the user's own torch code -> Program
planning      questions above one step
plots, exporters, validate, calibrate, chakra
              pictures; traces; predictions against reality; fits; execution traces replayed
results       Timeline -> step time, breakdown, waits, memory
engine        Program -> Timeline: the SimPy simulation and the contention-free replay
program       specification + costs + schedule -> Program, one file per strategy
schedule      pipeline orders, one function each
cost          FLOP, bytes and seconds of one thing alone
importers     foreign configurations -> specifications
spec          what the user says: validated, immutable
units, errors, processor
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simulator.version import __version__

if TYPE_CHECKING:
    from simulator import capture
    from simulator.api import Job, Result, load_job, simulate, sweep

__all__ = ["Job", "Result", "__version__", "capture", "load_job", "simulate", "sweep"]


def __getattr__(name: str) -> Any:
    """The public functions, loaded when they are first used."""
    if name == "capture":
        return import_module("simulator.capture")
    if name in __all__:
        from simulator import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
