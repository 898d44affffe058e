"""How long does the update of one rank's weights take on its GPU?"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.cost.kernel_time import memory_bound_s
from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category, Part, Work
from simulator.program.price.host_pace import launched, waiting_s
from simulator.program.price.muon import orthogonalisation
from simulator.program.states.resident import (
    ParameterCount,
    device_update_bytes,
    state_bytes,
)

FLAT_GRADIENTS = "flat_gradients"
"""Name of the part that copies all gradients into one tensor to be reduced, and back."""

_FLAT_PASSES = 6
"""Reads and writes of copying them in, dividing them by the ranks, and copying them back."""

NEWTON_SCHULZ = "newton_schulz"
"""Name of the part that orthogonalises: matrix products."""

_KERNELS = 8
"""Assumption: launches of a fused multi-tensor optimizer step: scale, norm, update, cast."""


def optimizer_work(
    job: Job, parameters: ParameterCount, runs: Sequence[Slice], host_s_per_kernel: float
) -> Work:
    """The optimizer step of a rank that holds these parameters: bound by memory or the host.

    With the copies around a reduction of all gradients in one flat tensor, on one rank, too.

    Args:
        job: The job.
        parameters: Before they are sharded.
        runs: The layers that they belong to.
        host_s_per_kernel: Host time of a launch [s].
    """
    profile = job.cluster.profile
    update_s = memory_bound_s(profile, device_update_bytes(job, parameters))
    parts = [Part("optimizer", Category.OPTIMIZER, update_s)]
    host_s = _KERNELS * host_s_per_kernel
    if waits_s := waiting_s([launched(profile, 1, update_s, host_s, _KERNELS)]):
        parts.append(Part("launch", Category.HOST, waits_s))
    if job.choices.flattens_gradients:
        num_bytes = _FLAT_PASSES * state_bytes(job).reduced * parameters.total
        flat_s = memory_bound_s(profile, num_bytes)
        parts.append(Part(FLAT_GRADIENTS, Category.DATA_PARALLEL, flat_s))
    flop = 0.0
    if job.plan.optimizer == "muon":
        seconds, flop = orthogonalisation(job, runs)
        parts.append(Part(NEWTON_SCHULZ, Category.OPTIMIZER, seconds))
    return Work(sum(part.seconds for part in parts), tuple(parts), flop=flop)
