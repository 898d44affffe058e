"""What do 1D, 2D, 2.5D and 3D tensor parallelism cost on as many GPUs?

One job is run in every method that its number of GPUs allows, and nothing else is changed:
time, what a GPU sends, and what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from simulator.described.job import Job
from simulator.program.ir import Category
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.results.traffic import rank_collectives, sent_bytes

METHODS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "1D": {"plan.tp_method": "1d", "plan.sequence_parallel": False},
        "1D + sequence": {"plan.tp_method": "1d", "plan.sequence_parallel": True},
        "2D": {"plan.tp_method": "2d"},
        "2.5D": {"plan.tp_method": "2.5d"},
        "3D": {"plan.tp_method": "3d"},
    }
)
"""What is compared, as changes of the job."""

GRIDS: Mapping[int, Mapping[str, str]] = MappingProxyType(
    {
        4: {"2D": "2 x 2"},
        8: {"2.5D": "2 x 2 x 2", "3D": "2 x 2 x 2"},
        16: {"2D": "4 x 4", "2.5D": "2 x 2 x 4"},
        64: {"2D": "8 x 8", "2.5D": "4 x 4 x 4", "3D": "4 x 4 x 4"},
    }
)
"""The grid of each method by number of GPUs, its depth last; 1D is a line of any length."""


@dataclass(frozen=True)
class MethodCost:
    """One method on so many GPUs.

    Attributes:
        method: A key of :data:`METHODS`.
        gpus: Ranks that share every layer.
        grid: How they are laid out, for people.
        step_s: Time of a step [s].
        exposed_s: Part of it in which a GPU waits for the others [s].
        sent_bytes: What a GPU sends to the others, on average [B].
        peak_bytes: The most that a GPU has allocated [B].
    """

    method: str
    gpus: int
    grid: str
    step_s: float
    exposed_s: float
    sent_bytes: float
    peak_bytes: float


def compare_tensor_methods(job: Job, profile: str) -> Sequence[MethodCost]:
    """Every method on every number of GPUs of :data:`GRIDS`, in order.

    Args:
        job: What is trained; its microbatch must divide over the deepest grid.
        profile: The system.
    """
    return [
        _cost(method, gpus, run_step(_changed(job, profile, method, gpus), "replay"))
        for gpus, grids in GRIDS.items()
        for method in METHODS
        if method.startswith("1D") or method in grids
    ]


def _changed(job: Job, profile: str, method: str, gpus: int) -> Job:
    grid = GRIDS[gpus].get(method, "")
    depth = int(grid.split(" x ")[-1]) if method == "2.5D" else 1
    sizes = {"cluster.profile": profile, "cluster.gpus": gpus, "plan.tp": gpus}
    return job.replace({**sizes, **METHODS[method], "plan.tp_depth": depth})


def _cost(method: str, gpus: int, result: StepResult) -> MethodCost:
    collectives = rank_collectives(result.timeline.program)
    return MethodCost(
        method,
        gpus,
        GRIDS[gpus].get(method, f"{gpus}"),
        result.step_time_s,
        result.breakdown_s.get(Category.TENSOR_PARALLEL, 0.0),
        math.fsum(sent_bytes(each) for each in collectives if each.axis.startswith("tp")),
        result.memory[0].peak_allocated_bytes,
    )
