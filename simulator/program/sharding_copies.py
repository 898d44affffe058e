"""What does ZeRO 3 copy on the compute stream?

Weights out of the gathered buffer, and gradients into the one that is reduced.
"""

from __future__ import annotations

from simulator.cost.kernels import memory_bound_s
from simulator.program.ir import Category, Part
from simulator.program.layout import Slice
from simulator.program.ranks import shard_group
from simulator.program.states import slice_parameters
from simulator.schedule.slots import Phase
from simulator.spec.job import Job

SHARDING_COPY = "sharding_copy"
"""Name of the part that copies between whole parameters and shards on the device."""


def sharding_copies(job: Job, run: Slice, phase: Phase) -> Part | None:
    """What one microbatch through a run of layers copies; None where it copies nothing."""
    stack = job.plan.stack
    if job.plan.zero < 3 or shard_group(job).ranks == 1:
        return None
    per_parameter = {
        Phase.FORWARD: stack.gather_copy_bytes,
        Phase.BACKWARD: stack.gather_copy_bytes + stack.reduce_copy_bytes,
        Phase.BACKWARD_INPUT: stack.gather_copy_bytes,
        Phase.BACKWARD_WEIGHT: stack.reduce_copy_bytes,
    }[phase]
    num_bytes = slice_parameters(job, run).total * per_parameter
    if not num_bytes:
        return None
    seconds = memory_bound_s(job.cluster.profile, num_bytes)
    return Part(SHARDING_COPY, Category.DATA_PARALLEL, seconds)
