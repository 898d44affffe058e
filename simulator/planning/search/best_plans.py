"""What is the fastest plan of each of several jobs, searched side by side?

One search takes seconds to minutes, and nothing of it depends on another, so the jobs are dealt to
processes. Jobs that differ only in their campaign (prices, failures, tokens) share one search.

On one kind of GPU the plan is proven to be the fastest. On pools of several kinds there is no lower
bound of a step, so plans that are fastest where all GPUs are of one of the kinds are simulated on
the pools, and the fastest of those that fit is taken; another may be faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.planning.search.search import PlanChoice, PlanSearch, Pruned, search_plans
from simulator.planning.search.space import searchable_job
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.results.simulation import run_step
from simulator.units import format_bytes, percent

BATCH, GPUS = "batch.global", "cluster.gpus"


def merged_searches(
    searches: Sequence[tuple[Mapping[str, Any], PlanSearch]], top: int
) -> PlanSearch:
    """One ranking of searches that differ in their global batch, their number of GPUs, or both.

    Args:
        searches: Each with what it changes of the job: ``{"batch.global": 256}``.
        top: Plans of each number of GPUs.

    Returns:
        The plans with the least time per sequence, first; their changes name batch and GPUs.
    """
    ranked = sorted(
        (
            (
                choice.step_time_s / changes.get(BATCH, 1),
                replace(choice, changes={**changes, **choice.changes}),
            )
            for changes, search in searches
            for choice in search.choices
        ),
        key=lambda pair: pair[0],
    )
    kept: list[PlanChoice] = []
    taken: Counter[Any] = Counter()
    for _, choice in ranked:
        gpus = choice.changes.get(GPUS)
        if taken[gpus] < top:
            kept.append(choice)
        taken[gpus] += 1
    parts = [search for _, search in searches]
    smallest = next(
        ({**changes, **s.smallest} for changes, s in searches if s.smallest is not None), None
    )
    return PlanSearch(
        choices=tuple(kept),
        plans=sum(part.plans for part in parts),
        replayed=sum(part.replayed for part in parts),
        simulated=sum(part.simulated for part in parts),
        pruned=_sum([part.pruned for part in parts]),
        smallest=None if ranked else smallest,
        gap_share=max((part.gap_share for part in parts), default=0.0),
    )


def _sum(parts: list[Pruned]) -> Pruned:
    refused = sum((Counter(part.refused) for part in parts), Counter())
    counts = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(Pruned)
        if field.name != "refused"
    }
    return Pruned(refused=dict(refused.most_common()), **counts)


_PLANS_OF_A_KIND = 4
"""Plans of each kind of GPU that are simulated on pools."""


@dataclass(frozen=True)
class Replanned:
    """A job under the fastest plan that fits.

    Attributes:
        job: With that plan; None where none fits.
        reason: Why there is none; empty where there is one.
        changes: What gives the job this plan, ready for :meth:`Job.replace`.
    """

    job: Job | None
    reason: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


def replanned(
    jobs: Sequence[Job], *, risk: float = DEFAULT_RISK, workers: int = 1
) -> Iterator[tuple[int, Replanned]]:
    """Each job by its number with its fastest plan, in the order in which searches end.

    Args:
        jobs: What to plan; their own plans say only what is not searched.
        risk: Largest accepted probability of running out of memory.
        workers: Processes of this machine that search; with 1 everything happens in this one.
    """
    alike: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        alike.setdefault(_step_key(job), []).append(number)
    groups = list(alike.values())
    for position, found in _searches([jobs[group[0]] for group in groups], risk, workers):
        if isinstance(found, Exception):
            raise found
        for number in groups[position]:
            planned = None if found.job is None else jobs[number].replace(found.changes)
            yield number, Replanned(planned, found.reason, found.changes)


def _step_key(job: Job) -> str:
    """A text that is the same for jobs whose steps are."""
    return job.stack_name + job.model_dump_json(exclude={"campaign"})


def _searches(
    jobs: Sequence[Job], risk: float, workers: int
) -> Iterator[tuple[int, Replanned | Exception]]:
    search = partial(_fastest, risk=risk)
    if workers == 1 or len(jobs) == 1:
        yield from ((number, search(job)) for number, job in enumerate(jobs))
        return
    from simulator.planning.executors import run_on_processes

    yield from run_on_processes(search, jobs, workers)


def _fastest(job: Job, risk: float) -> Replanned:
    if job.cluster.pools:
        return _fastest_on_pools(job, risk)
    found = search_plans(job, risk=risk)
    if not found.choices:
        return Replanned(None, _why_none(job, found, risk))
    changes = found.choices[0].changes
    return Replanned(job.replace(changes), changes=changes)


def _why_none(job: Job, found: PlanSearch, risk: float) -> str:
    if found.smallest is None:
        fields = ", ".join(list(found.pruned.refused)[:2])
        return f"no combination is a valid plan (rules of {fields})"
    memory = format_bytes(job.cluster.profile.device.memory_bytes)
    odds = run_step(job.replace(found.smallest), "replay").fits_probability
    return (
        f"none of {found.plans} plans is {percent(1 - risk, 0)} likely to fit into {memory}; the "
        f"smallest is {percent(odds, 0)}"
    )


def _fastest_on_pools(job: Job, risk: float) -> Replanned:
    """The fastest that fits of the plans that are fastest on each kind of GPU alone."""
    fastest, fastest_s, tried = Replanned(None), float("inf"), 0
    for changes in _plans_of_kinds(job, risk):
        tried += 1
        with suppress(InputError):  # what one kind can run, pools of several may not
            changed = job.replace(changes)
            step = run_step(changed)
            has_room = step.host is None or step.host.fits
            fits = has_room and step.fits_probability >= 1 - risk
            if fits and step.step_time_s < fastest_s:
                fastest, fastest_s = Replanned(changed, changes=changes), step.step_time_s
    if fastest.job is not None:
        return fastest
    reason = f"none of {tried} plans, the fastest of each kind of GPU alone, runs and fits on all"
    return Replanned(None, reason if tried else "no plan fits on any of the kinds alone")


def _plans_of_kinds(job: Job, risk: float) -> list[Mapping[str, Any]]:
    """The fastest plans where all GPUs are of one of the kinds, each once."""
    found: list[Mapping[str, Any]] = []
    for pool in job.document["cluster"]["pools"]:
        alone = {"cluster": {**pool, "gpus": job.cluster.gpus}}
        same = searchable_job(lambda changes, alone=alone: job.replace({**alone, **changes}))  # type: ignore[misc]
        choices = search_plans(same, top=_PLANS_OF_A_KIND, risk=risk).choices
        found += [each.changes for each in choices if each.changes not in found]
    return found
