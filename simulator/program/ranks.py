"""Which ranks form which group, and what does each group cross?

Ranks are numbered tp fastest, then cp, then dp, then pp: Megatron's order, in which
tensor-parallel ranks are neighbours. Scale-up domains (nodes, or racks for NVL72) hold
consecutive ranks.

Routed experts are laid over the same ranks of a stage in another grid, etp fastest, then
ep, then what is left (Megatron-Core's parallel folding, arXiv 2504.14960, section 3.1).
"""

from __future__ import annotations

from simulator.cost.collectives import Group
from simulator.spec.job import Job


def tensor_group(job: Job) -> Group:
    """Ranks that share each weight matrix."""
    return _strided_group(job, job.plan.tp, stride=1)


def context_group(job: Job) -> Group:
    """Ranks that share each sequence."""
    return _strided_group(job, job.plan.cp, stride=job.plan.tp)


def data_group(job: Job) -> Group:
    """Ranks that hold the same weights: data-parallel and context-parallel together."""
    return _strided_group(job, job.dp * job.plan.cp, stride=job.plan.tp)


def shard_group(job: Job) -> Group:
    """Ranks that optimizer states (and what ``plan.zero`` adds) are sharded over."""
    ranks = job.plan.zero_group or job.dp * job.plan.cp
    return _strided_group(job, ranks, stride=job.plan.tp)


def replica_group(job: Job) -> Group:
    """Ranks that hold copies of the same shard, where sharding spans only part of dp."""
    shards = shard_group(job).ranks
    return _strided_group(job, data_group(job).ranks // shards, stride=job.plan.tp * shards)


def expert_group(job: Job) -> Group:
    """Ranks that the routed experts of a layer are spread over: neighbours."""
    return _strided_group(job, job.plan.ep, stride=job.plan.expert_tp)


def expert_tensor_group(job: Job) -> Group:
    """Ranks that share each routed expert."""
    return _strided_group(job, job.plan.expert_tp, stride=1)


def expert_data_group(job: Job) -> Group:
    """Ranks that hold the same routed experts."""
    holders = job.plan.ep * job.plan.expert_tp
    ranks = job.plan.tp * data_group(job).ranks
    return _strided_group(job, max(1, ranks // holders), stride=holders)


def expert_shard_group(job: Job) -> Group:
    """Ranks that the states of routed experts are sharded over.

    Where sharding spans only part of the data-parallel ranks, it spans the same part here.
    """
    ranks = expert_data_group(job).ranks // replica_group(job).ranks
    return _strided_group(job, max(1, ranks), stride=job.plan.ep * job.plan.expert_tp)


def expert_replica_group(job: Job) -> Group:
    """Ranks that hold copies of the same shard of routed experts."""
    shards = expert_shard_group(job).ranks
    stride = job.plan.ep * job.plan.expert_tp * shards
    return _strided_group(job, expert_data_group(job).ranks // shards, stride=stride)


def pipeline_hop_crosses(job: Job, stage: int, other: int) -> bool:
    """Whether a transfer between two pipeline stages leaves the scale-up domain."""
    domain = job.cluster.profile.network.scale_up.gpus
    stride = job.cluster.gpus // job.plan.pp
    return stage * stride // domain != other * stride // domain


def _strided_group(job: Job, ranks: int, stride: int) -> Group:
    """A group of ranks that are ``stride`` apart, starting in the first domain."""
    domain = job.cluster.profile.network.scale_up.gpus
    return Group(ranks, max(1, min(ranks, domain // stride)))
