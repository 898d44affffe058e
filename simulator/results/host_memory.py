"""What does the fullest node hold in its memory and on its drives, and is there room?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.described.job import Job
from simulator.program.grid.rank_groups import rank_grid
from simulator.program.ir import Memory, Owner, Program, total_bytes


@dataclass(frozen=True)
class HostMemory:
    """Memory and drives of the node that holds most.

    Attributes:
        held_bytes: In its memory, by owner [B]; pinned buffers are ``communication``.
        capacity_bytes: Its memory [B].
        nvme_held_bytes: On its drives, by owner [B].
        nvme_capacity_bytes: Its drives [B]; 0 where the profile knows none.
    """

    held_bytes: Mapping[Owner, float]
    capacity_bytes: float
    nvme_held_bytes: Mapping[Owner, float]
    nvme_capacity_bytes: float

    @property
    def fits(self) -> bool:
        """Whether there is room for both; ignores the system and data loaders."""
        in_memory, on_drives = sum(self.held_bytes.values()), sum(self.nvme_held_bytes.values())
        return in_memory <= self.capacity_bytes and on_drives <= self.nvme_capacity_bytes


def host_memory(job: Job, program: Program) -> HostMemory | None:
    """The fullest node of a job; None where nothing leaves the GPUs."""
    if not job.plan.offload.is_used:
        return None
    host = job.cluster.profile.host
    by_stage = {each.stage: each for each in program.classes}
    per_stage = np.asarray(
        [total_bytes(by_stage[s].host) + total_bytes(by_stage[s].nvme) for s in sorted(by_stage)]
    )
    stage_of_rank = np.empty(job.cluster.gpus, dtype=np.int64)
    for stage, ranks in enumerate(rank_grid(job)):
        stage_of_rank[ranks] = stage
    nodes = np.arange(job.cluster.gpus) // job.cluster.profile.network.gpus_per_node
    fullest = int(np.argmax(np.bincount(nodes, weights=per_stage[stage_of_rank])))
    stages = stage_of_rank[nodes == fullest].tolist()
    return HostMemory(
        _summed([by_stage[stage].host for stage in stages]),
        host.memory_bytes,
        _summed([by_stage[stage].nvme for stage in stages]),
        host.nvme.size_bytes if host.nvme else 0.0,
    )


def _summed(memories: list[Memory]) -> Mapping[Owner, float]:
    held: dict[Owner, float] = {}
    for memory in memories:
        for owner, size in memory:
            held[owner] = held.get(owner, 0.0) + size
    return held
