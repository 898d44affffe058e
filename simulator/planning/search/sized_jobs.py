"""What is the fastest plan of a job with other global batches or numbers of GPUs?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulator.described.job import Job
from simulator.planning.search.best_plans import BATCH, GPUS, merged_searches
from simulator.planning.search.search import PlanSearch, search_plans, search_risks
from simulator.planning.search.space import searchable_job


class Variant(NamedTuple):
    """The job with another global batch or number of GPUs.

    Attributes:
        changes: What it changes: ``{"cluster.gpus": 64}``.
    """

    changes: Mapping[str, Any]
    job: Job


def variants_of(job: Job, global_batches: Sequence[int], gpus: Sequence[int]) -> list[Variant]:
    """The job, or one for each global batch and number of GPUs that it is to have."""
    found = [Variant({}, job)]
    if gpus:
        found = [Variant({GPUS: each}, with_gpus(job, each)) for each in gpus]
    if not global_batches:
        return found
    return [
        Variant({**changes, BATCH: size}, _with_batch(each, size))
        for changes, each in found
        for size in global_batches
    ]


def searched(variants: Sequence[Variant], top: int, settings: dict[str, Any]) -> PlanSearch:
    """One ranking of all variants; ``settings`` are those of :func:`search_plans`."""
    found = [(each.changes, search_plans(each.job, top=top, **settings)) for each in variants]
    return found[0][1] if len(found) == 1 and not found[0][0] else merged_searches(found, top)


def at_other_risks(
    variants: Sequence[Variant], risks: Sequence[float], settings: dict[str, Any]
) -> dict[float, PlanSearch]:
    """The fastest plan at other risks than the one that is asked."""
    found = [(each.changes, search_risks(each.job, risks, **settings)) for each in variants]
    return {
        risk: merged_searches([(changes, each[risk]) for changes, each in found], 1)
        for risk in risks
    }


def with_gpus(job: Job, gpus: int) -> Job:
    """The job on another number of GPUs, whether or not its own plan divides them.

    Raises:
        InputError: No job runs on that many.
    """
    return searchable_job(lambda changes: job.replace({"cluster.gpus": gpus, **changes}))


def _with_batch(job: Job, size: int) -> Job:
    """The job with another global batch, whether or not its own plan divides it."""
    batch = job.batch.model_copy(update={"global_batch": size})
    return job.model_copy(update={"batch": batch})
