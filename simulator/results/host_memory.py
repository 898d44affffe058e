"""How full are the memory and the drives of the nodes, of what leaves the GPUs?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.described.job import Job
from simulator.program.grid.rank_groups import rank_grid
from simulator.program.ir import Memory, Owner, Program, total_bytes
from simulator.results.step import HostMemory


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
