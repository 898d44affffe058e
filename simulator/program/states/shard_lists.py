"""What does it cost to hand a collective a list of tensors, one per rank, and not one buffer?

PyTorch's ``all_gather`` and ``reduce_scatter`` move one buffer and copy each rank's part between it
and the list with a kernel of its own, on all ranks: on a thousand of them the copies take as
long as the transfer. DeepSpeed zeroes what it gathers into, and divides what it reduces by the
number of ranks first; parameters that it gathers together it unpacks part by part.

Ignores: the Python code that makes the lists.
Source: PyTorch 1.8, torch/lib/c10d/ProcessGroupNCCL.cpp, allgather and reduce_scatter; DeepSpeed
0.3.13, deepspeed/runtime/zero/partition_parameters.py, _allgather_param, _allgather_params and
_reduce_scatter_gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.cost.kernel_time import memory_bound_s
from simulator.described.job import Job
from simulator.program.communication import Call
from simulator.program.ir import Category, Part, Work

_PASSES = {CollectiveKind.ALL_GATHER: 3, CollectiveKind.REDUCE_SCATTER: 4}
"""Passes over the message: zero it, read it and write it; or divide it in place, read and write."""


def with_list_copies(work: Work, calls: Sequence[Call], job: Job) -> Work:
    """Collectives of ZeRO 3, and the copies of their lists where the stack hands them any."""
    if not (job.choices.shards_weights and job.choices.lists_shards):
        return work
    return _with_copies(work, sum(_copies_s(call, job) for call in calls))


def with_unpacking(work: Work, parameters: int, ranks: int, job: Job) -> Work:
    """A gather of several small parameters, and one copy of each rank's part of each."""
    if not job.choices.lists_shards or ranks == 1:
        return work
    return _with_copies(work, ranks * parameters * memory_bound_s(job.cluster.profile, 0.0))


def _copies_s(call: Call, job: Job) -> float:
    ranks, passes = call.group.ranks, _PASSES.get(call.kind, 0)
    if ranks == 1 or not passes:
        return 0.0
    return ranks * memory_bound_s(job.cluster.profile, passes * call.num_bytes / ranks)


def _with_copies(work: Work, seconds: float) -> Work:
    copies = Part("list_copies", Category.DATA_PARALLEL, seconds)
    return replace(work, seconds=work.seconds + seconds, parts=(*work.parts, copies))
