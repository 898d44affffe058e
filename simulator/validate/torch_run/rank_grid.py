"""Which ranks share a tensor, a sequence, an expert, a batch or a pipeline?"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from simulator.described.job import Job
from simulator.ranks.world import World

_AXES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": (),
    "dp": ("replicate", "shard", "ep"),
    "pp": ("pp",),
}
"""Axes of the mesh for each word of the rank order, the slowest first; experts take part of
the data-parallel ranks."""


@dataclass(frozen=True)
class Grid:
    """The groups of one rank; None where a group is the rank alone.

    Attributes:
        tensor: Ranks that share each weight matrix.
        context: Ranks that share each sequence.
        expert: Ranks that the experts are spread over.
        data: Ranks that hold the same weights, sharded or not; (replicate, shard) where
            sharding spans only part of them.
        pipeline: The stages of one pipeline.
        stage: This rank's place among them.
        data_rank: This rank's place among those that take different sequences.
    """

    tensor: DeviceMesh | None
    context: DeviceMesh | None
    expert: DeviceMesh | None
    data: DeviceMesh | None
    pipeline: DeviceMesh | None
    stage: int
    data_rank: int

    @property
    def pipeline_group(self) -> dist.ProcessGroup | None:
        """The stages of one pipeline as a process group."""
        return None if self.pipeline is None else self.pipeline.get_group()


def build_grid(job: Job, world: World) -> Grid:
    """The groups of this rank, ranks numbered as ``plan.rank_order`` says."""
    sizes = _sizes(job)
    order = [axis for word in reversed(job.plan.rank_order.split("-")) for axis in _AXES[word]]
    shape = tuple(sizes[axis] for axis in order)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=tuple(order))

    def along(name: str, *axes: str) -> DeviceMesh | None:
        used = tuple(axis for axis in order if axis in axes and sizes[axis] > 1)
        if not used:
            return None
        return mesh[used[0]] if len(used) == 1 else mesh[used]._flatten(name)

    copies = ("replicate", "shard", "ep", "cp")
    is_hybrid = sizes["replicate"] > 1 and sizes["shard"] > 1
    data_rank = 0
    for axis in _AXES["dp"]:
        data_rank = data_rank * sizes[axis] + mesh.get_local_rank(axis)
    return Grid(
        tensor=along("tensor", "tp"),
        context=along("context", "cp"),
        expert=along("expert", "ep"),
        data=mesh["replicate", "shard"] if is_hybrid else along("data", *copies),
        pipeline=along("pipeline", "pp"),
        stage=mesh.get_local_rank("pp"),
        data_rank=data_rank,
    )


def _sizes(job: Job) -> dict[str, int]:
    plan = job.plan
    experts = plan.ep if job.model.experts else 1
    shards = plan.zero_group or job.dp // experts
    return {
        "tp": job.choices.tensor_ranks,
        "cp": plan.cp,
        "replicate": job.dp // (shards * experts),
        "shard": shards,
        "ep": experts,
        "pp": plan.pp,
    }
