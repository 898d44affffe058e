"""Which pools of different GPUs can work together in one job, as far as it is modelled?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.errors import Fault, InputError


def pool_faults(job: Job) -> Iterator[Fault]:
    """Every rule of mixed clusters that the job breaks."""
    if not job.cluster.pools:
        return
    yield from _pools_are_built_alike(job)
    yield from _plan_spans_pools(job)


def _pools_are_built_alike(job: Job) -> Iterator[Fault]:
    """Ranks of all pools are numbered through nodes and scale-up domains of one size."""
    first, *others = [pool.profile.network for pool in job.cluster.pools]
    domain = max(first.gpus_per_node, first.scale_up.gpus)
    for number, network in enumerate(others, start=1):
        for name, here, there in (
            ("gpus_per_node", network.gpus_per_node, first.gpus_per_node),
            ("scale_up.gpus", network.scale_up.gpus, first.scale_up.gpus),
        ):
            if here != there:
                yield Fault(
                    f"cluster.pools.{number}.network.{name}",
                    f"must be {there} as in the first pool: nodes of different sizes are not "
                    "modelled",
                    here,
                )
    for number, pool in enumerate(job.cluster.pools[:-1]):
        if pool.gpus % domain:
            yield Fault(
                f"cluster.pools.{number}.gpus",
                f"must be a multiple of {domain}: a node has GPUs of one kind",
                pool.gpus,
                f"use {max(1, round(pool.gpus / domain)) * domain}",
            )


def _plan_spans_pools(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if not job.choices.data_parallelism.divides_model:
        yield Fault(
            "plan.data_parallel",
            "is not modelled over pools of different GPUs",
            plan.data_parallel,
            "use ddp, or one pool",
        )
    if plan.offload.is_used:
        yield Fault(
            "plan.offload",
            "is not modelled over pools of different GPUs, because their hosts differ as well",
            hint="remove it, or use one pool",
        )


def refuse_pools(job: Job, question: str) -> None:
    """Refuse a question that is asked of one kind of GPU.

    Args:
        job: What it is asked of.
        question: What was asked, as the subject of a sentence.

    Raises:
        InputError: The job's cluster has several pools.
    """
    if job.cluster.pools:
        raise InputError.single(
            "cluster.pools",
            f"{question} is computed for clusters with one kind of GPU only",
            job.cluster.name,
            "use a single pool: write its profile and gpus instead of pools",
        )
