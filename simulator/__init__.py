"""clustersim: what does training cost, before you rent a single GPU?

    import simulator as sim

    job = sim.load_job("job.yaml")
    result = sim.simulate(job)

Data flows one way: Model + Cluster + Plan -> Program -> Timeline -> everything a person
wants to know. A room imports only from the rooms below it:

cli           the command ``clustersim``
studio        the page to click, served to a browser
api           the public functions
capture       a step of the user's own torch code -> Program
planning      questions above one step
calibrate     profiles from measurements
validate      predictions against reality
ranks         real torch processes to measure with
chakra        execution traces, written and replayed
exporters     traces, pages and files of other frameworks
plots         pictures
serving       requests, schedulers and KV blocks on a cluster
results       Timeline -> step time, breakdown, waits, memory
engine        Program -> Timeline: the SimPy simulation and the contention-free replay
program       description + cost + schedule -> Program
tables        measured rows as people keep them
cost          FLOP, bytes and seconds of one thing alone
importers     foreign files -> descriptions and measurements
described     what the user says: validated, immutable
schedule      pipeline orders, one function each, with all facts of a schedule
facts         what is known of frameworks, model families and words, with its evidence
errors, extras, files, processor, units     for every room
"""

# ruff: noqa: F405 - a test asks for every name

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simulator.version import __version__

if TYPE_CHECKING:
    from simulator import capture
    from simulator.api import *  # noqa: F403 - most of the names below

__all__ = [
    "Answer",
    "Job",
    "RLJob",
    "Result",
    "ServingJob",
    "__version__",
    "advise",
    "calibrate",
    "capacity",
    "capture",
    "checks",
    "compare",
    "diagnose",
    "limits",
    "load_job",
    "load_rl",
    "load_serving",
    "memory",
    "plan",
    "rent",
    "rl",
    "sample",
    "schedule",
    "sensitivity",
    "serve",
    "serve_capacity",
    "serve_compare",
    "serve_plan",
    "serve_sweep",
    "simulate",
    "strategies",
    "sweep",
    "validate",
    "write_sweep_page",
]


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
