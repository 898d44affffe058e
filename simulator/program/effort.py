"""How long does it take to simulate a step, and how much memory, before it is tried?"""

from __future__ import annotations

from typing import NamedTuple

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.build import steps_around
from simulator.units import format_seconds

_OPERATIONS_PER_PASS = 4
"""The pass, its send and receive, and what data parallelism does of it."""
_OPERATIONS_PER_GATHERED_LAYER, _OPERATIONS_PER_UNEVEN_LAYER = 5, 1
"""Of one microbatch: both passes, their gathers and a reduction; a wait for the fullest expert."""
_SECONDS_PER_OPERATION, _SECONDS_WHERE_RANKS_DIFFER = 30e-6, 60e-6
_BYTES_PER_OPERATION = 1300
"""Measured on steps of 0.1 to 15 s on a core of 2023: within a factor of three."""
_MOST_SECONDS, _MOST_BYTES = 60.0, 4 * 2**30
"""What nobody is asked about."""


class Effort(NamedTuple):
    """What a simulation takes.

    Attributes:
        seconds: Of one core [s], within a factor of three.
        num_bytes: Of memory [B], within a factor of three.
    """

    seconds: float
    num_bytes: float

    def __str__(self) -> str:
        minutes = round(self.seconds / 60)
        time = f"{minutes} min" if minutes > 1 else format_seconds(round(self.seconds))
        return f"about {time} and {max(1, round(self.num_bytes / 2**30))} GiB"

    def is_large(self) -> bool:
        """Whether somebody should be asked first."""
        return self.seconds > _MOST_SECONDS or self.num_bytes > _MOST_BYTES

    def times(self, count: int) -> Effort:
        """So many simulations, one after another."""
        return Effort(count * self.seconds, self.num_bytes)

    def refusal(self, way_on: str) -> InputError:
        """That it is too much for here, and how to have it done all the same."""
        hint = f"{way_on}, or make it smaller: fewer microbatches, layers, or ranks that differ"
        return InputError.single("job", f"takes {self} to simulate", hint=hint)


def step_effort(job: Job, *, unfolded: bool = False) -> Effort:
    """What it takes to simulate a job's step; ``unfolded`` with every rank by itself."""
    plan = job.plan
    operations = _OPERATIONS_PER_PASS * job.microbatches * plan.pp * plan.vpp
    layers = job.microbatches * job.model.layers
    operations += _OPERATIONS_PER_GATHERED_LAYER * layers * job.choices.shards_weights
    operations += _OPERATIONS_PER_UNEVEN_LAYER * layers * (plan.expert_load is not None)
    copies = job.cluster.gpus // plan.pp
    differ = unfolded or bool(job.perturbations) or plan.expert_load is not None
    if not unfolded:
        copies = min(copies, 1 + 2 * len(job.perturbations) + (plan.expert_load is not None))
    operations *= copies * steps_around(job).total
    each_s = _SECONDS_WHERE_RANKS_DIFFER if differ else _SECONDS_PER_OPERATION
    return Effort(each_s * operations, _BYTES_PER_OPERATION * operations)
