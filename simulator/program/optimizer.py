"""How long does the update of one rank's weights take?"""

from __future__ import annotations

from simulator.cost.kernels import memory_bound_s
from simulator.program.ir import Category, Part, Work
from simulator.program.states import ParameterCount, optimizer_traffic_bytes
from simulator.spec.job import Job

_KERNELS = 8
"""Assumption: launches of a fused multi-tensor optimizer step: scale, norm, update, cast."""


def optimizer_work(job: Job, parameters: ParameterCount, host_s_per_kernel: float) -> Work:
    """The optimizer step of a rank that holds these parameters: bound by memory or the host.

    Args:
        job: The job.
        parameters: Before they are sharded.
        host_s_per_kernel: Host time of a launch [s].
    """
    update_s = memory_bound_s(job.cluster.profile, optimizer_traffic_bytes(job, parameters))
    host_s = _KERNELS * host_s_per_kernel
    parts = [Part("optimizer", Category.OPTIMIZER, update_s)]
    if host_s > update_s:
        parts.append(Part("launch", Category.HOST, host_s - update_s))
    return Work(sum(part.seconds for part in parts), tuple(parts))
