"""What does one rank hold in host memory and on NVMe instead of on its GPU?

Pinned buffers come on top: copies pass through a few pieces at a time, so buffers have a
constant size whatever the model (ZeRO-R's constant-size buffers).

Source: ZeRO-Offload (arXiv 2101.06840, section 4): 14 of 16 B per parameter on the host;
ZeRO-Infinity (arXiv 2104.07857, sections 3.1 and 5.1.3). DeepSpeed's ``cpu_adam.h`` for the size
of a tile, its ``offload_param.buffer_count`` for the number of buffers.
"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.program.ir import Memory, Owner
from simulator.program.states.resident import (
    ParameterCount,
    device_shares,
    further_moment_bytes,
    shard_numel,
    state_bytes,
)

TILE_NUMEL = 128 * 2**20
"""Parameters that the CPUs update at a time."""
PARAMETER_BUFFERS = 5
"""Layers that are on their way between drives and GPU."""
_TILES_UNDER_WAY = 3
"""One is read or copied in, one updated, one written or copied out. Assumption."""


def offloaded_states(job: Job, parameters: ParameterCount) -> tuple[Memory, Memory]:
    """What a rank keeps from step to step in host memory, and on NVMe.

    Args:
        job: The job.
        parameters: What the rank holds of the model before sharding.
    """
    offload, states = job.plan.offload, _states(job, parameters)
    host: dict[Owner, float] = {}
    drives: dict[Owner, float] = {}
    for owner, num_bytes in states.items():
        place = offload.parameters if owner is Owner.WEIGHTS else offload.optimizer
        (drives if place == "nvme" else host)[owner] = num_bytes
    buffers = _buffer_bytes(job, parameters)
    return _listed({**host, Owner.COMMUNICATION: buffers}), _listed(drives)


def _states(job: Job, parameters: ParameterCount) -> dict[Owner, float]:
    """States that are not on the GPU, wherever they are, by owner [B]."""
    per, offload = state_bytes(job), job.plan.offload
    shard, away = shard_numel(job, parameters), 1 - device_shares(job)[Owner.OPTIMIZER_STATES]
    # Gradients of one step arrive while those of the step before are read.
    copies = 2 if offload.delayed_update else 1
    # Without 16-bit weights, the CPUs update the very ones that are fetched.
    master = per.master or (0.0 if offload.parameters else per.weights)
    return {
        Owner.WEIGHTS: shard * per.weights if offload.parameters else 0.0,
        Owner.GRADIENTS: shard * away * (copies * per.gradients + per.gradient_copy),
        Owner.MASTER_WEIGHTS: shard * away * master,
        Owner.OPTIMIZER_STATES: away
        * (shard * per.moments + further_moment_bytes(job, parameters)),
    }


def _buffer_bytes(job: Job, parameters: ParameterCount) -> float:
    """Pinned memory through which copies pass [B]."""
    per, offload = state_bytes(job), job.plan.offload
    shard = shard_numel(job, parameters)
    tile = min(shard, _TILES_UNDER_WAY * TILE_NUMEL) if offload.overlap else shard
    total = 0.0
    if offload.optimizer and not offload.parameters:
        total += tile * per.weights
    if offload.optimizer == "nvme":
        total += tile * (per.master + per.moments + per.gradients)
    if offload.parameters == "nvme":
        layers = max(1, job.model.layers)
        total += min(1.0, PARAMETER_BUFFERS / layers) * shard * (per.weights or per.master)
    return total


def _listed(memory: dict[Owner, float]) -> Memory:
    return tuple((owner, size) for owner, size in memory.items() if size)
