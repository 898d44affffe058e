"""What does one rank hold outside the GPU's allocator: communicators, kernels, host memory, NVMe?

NCCL allocates its channels' buffers when a communicator is first used. A rank is in one per
kind of group that has more than one rank, and in the one of all ranks. An all_to_all connects each
pair of ranks of a node over all channels, with buffers of their own. One process for all GPUs
has one communicator, and workers of parameter servers have none. Chips of a torus exchange what
lies in the buffers of the program itself. Old software loads all kernels of PyTorch and of CUDA's
libraries, whether they are used or not.

Pinned buffers come on top of offloaded states: copies pass through a few pieces at a time, so
buffers have a constant size whatever the model (ZeRO-R's constant-size buffers).

Ignores: what the point-to-point transfers of a pipeline add, and all_to_alls between nodes, without
NVSwitches, or among more than the eight ranks of a node.
Source: ``hardware_profiles/common`` for communicators. XLA's reports of programs that do not fit
into a TPU, which list reserved memory, program and arguments (erfanzar/EasyDeL#142), for chips of a
torus. NVIDIA/nccl#1685 for all_to_alls: one among 8 H100 takes 3.28 GB, by 32 channels to each of 7
others, with buffers of 10 MiB (a fifo of each protocol) and of 2 MiB (a page); two of the latter
per channel make up the sum. Context and all kernels of CUDA 11.2: 1,343 MiB on a V100,
``model_memory_anatomy`` of Hugging Face's Transformers (January 2022); taken for other GPUs, too
(assumption). ZeRO-Offload (arXiv 2101.06840, section 4): 14 of 16 B per parameter on the host;
ZeRO-Infinity (arXiv 2104.07857, sections 3.1 and 5.1.3).
DeepSpeed's ``cpu_adam.h`` for the size of a tile, its ``offload_param.buffer_count`` for the number
of buffers.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.described.cluster.common import Common
from simulator.described.job import Job
from simulator.program.grid.rank_groups import (
    context_group,
    context_lines,
    data_group,
    expert_group,
    grid_groups,
    tensor_group,
)
from simulator.program.ir import Memory, Owner
from simulator.program.states.resident import (
    ParameterCount,
    device_shares,
    frozen_bytes,
    further_moment_bytes,
    shard_numel,
    state_bytes,
)

_PAIR = 2
_ALL_KERNELS_BYTES = 1343 * 2.0**20
_PEER_BYTES = 32 * (10 + 2 + 2) * 2.0**20
"""Connections to another rank of a node that an all_to_all trades with [B]."""
_RANKS_OF_A_NODE = 8


def outside_memory(job: Job) -> Mapping[str, float]:
    """What one rank holds beyond the allocator and the driver's context, by cause [B]."""
    held = {
        **communicator_memory(job),
        "connections: expert": expert_connection_bytes(job),
        "kernels that are not used": unused_kernel_bytes(job),
    }
    return {cause: num_bytes for cause, num_bytes in held.items() if num_bytes}


def unused_kernel_bytes(job: Job) -> float:
    """What kernels take beyond the context that a profile states, where all are loaded [B]."""
    if not job.choices.loads_all_kernels:
        return 0.0
    return max(0.0, _ALL_KERNELS_BYTES - job.cluster.profile.device.context_bytes)


def communicator_memory(job: Job) -> dict[str, float]:
    """Device memory of every communicator that one rank is in, by its group [B]."""
    is_torus = job.cluster.profile.network.scale_up.kind == "torus"
    if is_torus or not job.choices.data_parallelism.joins_groups:
        return {}
    lines = grid_groups(job) if job.plan.tensor_grid else ()
    combined = context_lines(job) if job.plan.cp_heads > 1 else ()
    # Where one kind of group holds all ranks, frameworks still make another of them all.
    joins_world = job.choices.data_parallelism.joins_world
    groups = (
        ("tensor", tensor_group(job).ranks),
        *((f"tensor line {number}", line.ranks) for number, line in enumerate(lines)),
        ("context", context_group(job).ranks),
        *((f"context line {number}", line.ranks) for number, line in enumerate(combined)),
        ("expert", expert_group(job).ranks),
        ("data", data_group(job).ranks),
        ("pipeline", job.plan.pp),
        ("all ranks", job.cluster.gpus if joins_world else 1),
    )
    common = job.cluster.profile.common
    return {
        f"communicator: {name}": communicator_bytes(ranks, common)
        for name, ranks in groups
        if ranks > 1
    }


def communicator_bytes(ranks: int, common: Common) -> float:
    """Device memory of a communicator of so many ranks; one rank needs none [B]."""
    if ranks <= 1:
        return 0.0
    return common.pair_communicator_bytes if ranks == _PAIR else common.communicator_bytes


def expert_connection_bytes(job: Job) -> float:
    """Device memory by which a rank trades tokens with the others of its node [B]."""
    network, group = job.cluster.profile.network, expert_group(job)
    is_direct = network.library == "nccl" and network.scale_up.kind == "nvswitch"
    if job.plan.ep_dispatch != "all_to_all" or not is_direct or group.ranks == 1:
        return 0.0
    return (min(group.ranks_per_node, _RANKS_OF_A_NODE) - 1) * _PEER_BYTES


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
    per, offload = state_bytes(job), job.plan.offload
    shard, away = shard_numel(job, parameters), 1 - device_shares(job)[Owner.MASTER_WEIGHTS]
    # Gradients of one step arrive while those of the step before are read.
    copies = 2 if offload.delayed_update else 1
    weights = shard * per.weights + frozen_bytes(job, parameters)
    # Without 16-bit weights, the CPUs update the very ones that are fetched.
    master = per.master or (0.0 if offload.parameters else per.weights)
    return {
        Owner.WEIGHTS: weights if offload.parameters else 0.0,
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
        read = shard * (per.weights or per.master) + frozen_bytes(job, parameters)
        total += min(1.0, PARAMETER_BUFFERS / layers) * read
    return total


def _listed(memory: dict[Owner, float]) -> Memory:
    return tuple((owner, size) for owner, size in memory.items() if size)
