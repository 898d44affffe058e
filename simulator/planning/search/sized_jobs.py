"""What is the fastest plan of a job with other global batches or numbers of GPUs?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulator.described.job import Job
from simulator.planning.search.best_plans import BATCH, GPUS, merged_searches
from simulator.planning.search.search import PlanSearch, PlanSearches
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


class SizedSearches:
    """Searches for the plans of all variants of a job; arguments are those of PlanSearches."""

    def __init__(
        self, variants: Sequence[Variant], risks: Sequence[float], **settings: Any
    ) -> None:
        self._searches = [
            (each.changes, PlanSearches(each.job, risks, **settings)) for each in variants
        ]

    def fastest(self, risk: float, top: int = 1) -> PlanSearch:
        """One ranking of all variants at one of the risks."""
        found = [(changes, each.fastest(risk, top)) for changes, each in self._searches]
        return found[0][1] if len(found) == 1 and not found[0][0] else merged_searches(found, top)


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
