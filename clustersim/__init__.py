"""The package ``simulator`` under the name that it is installed by.

``import clustersim`` and ``import simulator`` give the same functions; neither loads what is heavy
before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import simulator
from simulator import __version__

if TYPE_CHECKING:
    from simulator import (
        Answer,
        Job,
        Result,
        advise,
        calibrate,
        capacity,
        capture,
        compare,
        diagnose,
        limits,
        load_job,
        memory,
        plan,
        sample,
        schedule,
        sensitivity,
        simulate,
        strategies,
        sweep,
        validate,
        write_sweep_page,
    )

__all__ = [
    "Answer",
    "Job",
    "Result",
    "__version__",
    "advise",
    "calibrate",
    "capacity",
    "capture",
    "compare",
    "diagnose",
    "limits",
    "load_job",
    "memory",
    "plan",
    "sample",
    "schedule",
    "sensitivity",
    "simulate",
    "strategies",
    "sweep",
    "validate",
    "write_sweep_page",
]


def __getattr__(name: str) -> Any:
    """What the package ``simulator`` has."""
    return getattr(simulator, name)


def __dir__() -> list[str]:
    return sorted(__all__)
