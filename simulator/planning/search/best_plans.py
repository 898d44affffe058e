"""What is the fastest plan of each of several jobs, searched side by side?

One search takes seconds to minutes, and nothing of it depends on another, so the jobs are dealt to
processes. Jobs that differ only in their campaign (prices, failures, tokens) share one search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simulator.described.job import Job
from simulator.planning.search.search import PlanSearch, search_plans
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import format_bytes


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
        risk: Probability of running out of memory that a plan has at most.
        workers: Processes of this machine that search; with 1 everything happens in this one.

    Raises:
        InputError: A job has GPUs of several kinds.
    """
    alike: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        alike.setdefault(_step_key(job), []).append(number)
    groups = list(alike.values())
    for position, found in _searches([jobs[group[0]] for group in groups], risk, workers):
        if isinstance(found, Exception):
            raise found
        for number in groups[position]:
            yield number, _replanned(jobs[number], found, risk)


def _step_key(job: Job) -> str:
    """A text that is the same for jobs whose steps are."""
    return job.stack_name + job.model_dump_json(exclude={"campaign"})


def _searches(
    jobs: Sequence[Job], risk: float, workers: int
) -> Iterator[tuple[int, PlanSearch | Exception]]:
    search = partial(search_plans, risk=risk)
    if workers == 1 or len(jobs) == 1:
        yield from ((number, search(job)) for number, job in enumerate(jobs))
        return
    from simulator.planning.executors import run_on_processes

    yield from run_on_processes(search, jobs, workers)


def _replanned(job: Job, found: PlanSearch, risk: float) -> Replanned:
    if found.choices:
        changes = found.choices[0].changes
        return Replanned(job.replace(changes), changes=changes)
    if found.smallest is None:
        fields = ", ".join(list(found.pruned.refused)[:2])
        return Replanned(None, f"no combination is a valid plan (rules of {fields})")
    memory = format_bytes(job.cluster.profile.device.memory_bytes)
    reason = f"none of {found.plans} plans fits into {memory} with a probability of {1 - risk:.0%}"
    return Replanned(None, reason)
