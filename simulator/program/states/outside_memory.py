"""How much device memory does one rank take outside the allocator, beyond the driver's context?

NCCL allocates its channels' buffers when a communicator is first used. A rank is in one per
kind of group that has more than one rank, and in the one of all ranks. One process for all GPUs
has one communicator, and workers of parameter servers have none. Old software loads all kernels
of PyTorch and of CUDA's libraries, whether they are used or not.

Source: 342 MB for 2 GPUs and 392 MB for 4 to 8, as NVIDIA's AIConfigurator books them; taken
for larger groups, too (assumption: channels, not ranks, decide). Context and all kernels of
CUDA 11.2: 1,343 MiB on a V100, ``model_memory_anatomy`` of Hugging Face's Transformers (January
2022); taken for other GPUs, too (assumption). Ignored: what the point-to-point transfers of a
pipeline add.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.described.job import Job
from simulator.program.grid.rank_groups import (
    context_group,
    context_lines,
    data_group,
    expert_group,
    grid_groups,
    tensor_group,
)

_PAIR_BYTES = 342e6
_GROUP_BYTES = 392e6
_ALL_KERNELS_BYTES = 1343 * 2.0**20


def outside_bytes(job: Job) -> float:
    """Device memory of one rank's communicators and of kernels that it does not use [B]."""
    return communicator_bytes(job) + unused_kernel_bytes(job)


def unused_kernel_bytes(job: Job) -> float:
    """What kernels take beyond the context that a profile states, where all are loaded [B]."""
    if not job.choices.loads_all_kernels:
        return 0.0
    return max(0.0, _ALL_KERNELS_BYTES - job.cluster.profile.device.context_bytes)


def communicator_bytes(job: Job) -> float:
    """Device memory of the communicators that one rank is in [B]."""
    if not job.choices.data_parallelism.joins_groups:
        return 0.0
    lines = grid_groups(job) if job.plan.tensor_grid else ()
    combined = context_lines(job) if job.plan.cp_heads > 1 else ()
    groups = (
        *(tensor_group(job), *lines, context_group(job), *combined),
        *(expert_group(job), data_group(job)),
    )
    sizes = [*(group.ranks for group in groups), job.plan.pp]
    shared = [ranks for ranks in sizes if ranks > 1]
    # Where one kind of group holds all ranks, frameworks still make another of them all.
    joins_world = job.cluster.gpus > 1 and job.choices.data_parallelism.joins_world
    everyone = [job.cluster.gpus] if joins_world else []
    return communicators_bytes(shared + everyone)


def communicators_bytes(sizes: Sequence[int]) -> float:
    """Device memory of communicators of so many ranks each; one rank needs none [B]."""
    return sum(_PAIR_BYTES if ranks == 2 else _GROUP_BYTES for ranks in sizes if ranks > 1)
