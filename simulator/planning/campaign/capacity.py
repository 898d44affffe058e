"""What does a whole training run take, on one cluster or on several?

Puts the campaign's time, energy and money together, and compares clusters: the same job on
more or fewer GPUs of the same system, or on other systems, each under its own fastest plan unless
the job's own plan is to stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from simulator.described.job import Job
from simulator.described.load import load_profile
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import InputError
from simulator.planning.campaign.training_run import (
    CampaignTime,
    Energy,
    Money,
    campaign_time,
    energy,
    money,
    tokens_of,
)
from simulator.planning.search.best_plans import Replanned, replanned
from simulator.planning.search.space import searchable_job
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.units import percent


@dataclass(frozen=True)
class Capacity:
    """A campaign on one cluster."""

    job: Job
    step: StepResult
    time: CampaignTime
    energy: Energy
    money: Money

    @property
    def fits(self) -> bool:
        """Whether every GPU, and every node, is as likely as not to have room."""
        return self.step.fits


@dataclass(frozen=True)
class Refusal:
    """A cluster that the job cannot run on."""

    system: str
    gpus: int
    reason: str


def capacity(
    job: Job,
    *,
    members: int = 200,
    seed: int = 0,
    on_member: Callable[[], None] | None = None,
) -> Capacity:
    """What a job's campaign takes.

    Raises:
        InputError: The plan cannot run, or the campaign lacks a field.
    """
    refuse_pools(job, "what a training run takes")
    step = run_step(job)
    time = campaign_time(job, step, members=members, seed=seed, on_member=on_member)
    drawn = energy(job, time)
    return Capacity(job, step, time, drawn, money(job, time, drawn))


def cluster_sizes(job: Job) -> list[int]:
    """All numbers of GPUs over which the job's global batch can be spread, its plan kept."""
    width = job.choices.ranks_of_a_copy
    most_ranks = job.batch.global_batch // job.batch.micro_batch
    return [width * dp for dp in range(1, most_ranks + 1) if most_ranks % dp == 0]


def compare_clusters(
    job: Job,
    systems: Sequence[str],
    sizes: Sequence[int],
    *,
    members: int = 200,
    seed: int = 0,
    risk: float = DEFAULT_RISK,
    keep_plan: bool = False,
    workers: int = 1,
    on_cluster: Callable[[], None] | None = None,
) -> list[Capacity | Refusal]:
    """The same campaign on every system with every number of GPUs, in that order.

    Overrides of the job's own system are kept on it. Clusters on which the job runs out of memory
    with a probability above the risk are refused.

    Args:
        job: Its campaign, and what each cluster's plan starts from.
        systems: Names of hardware profiles.
        sizes: Numbers of GPUs.
        members: Number of campaigns with failures to simulate.
        seed: Random seed of the failures.
        risk: Largest accepted probability of running out of memory.
        keep_plan: Whether the job's own plan runs on every cluster, data parallelism growing and
            shrinking with the GPUs; otherwise each has the fastest plan that fits.
        workers: Processes that search for plans.
        on_cluster: Called after each cluster.

    Raises:
        InputError: There is no such system, or the campaign has no tokens.
    """
    tokens_of(job)
    for system in systems:
        if system != job.cluster.profile.name:
            load_profile(system)
    clusters = list(product(systems, sizes))
    moved = [_moved(job, *cluster, keep_plan=keep_plan) for cluster in clusters]
    plannable = [number for number, each in enumerate(moved) if isinstance(each, Job)]
    jobs = [each for each in moved if isinstance(each, Job)]
    found: dict[int, Capacity | Refusal] = {
        number: each for number, each in enumerate(moved) if isinstance(each, Refusal)
    }
    plans = (
        ((number, Replanned(each)) for number, each in enumerate(jobs))
        if keep_plan
        else replanned(jobs, risk=risk, workers=workers)
    )
    for position, plan in plans:
        number = plannable[position]
        found[number] = _on_cluster(*clusters[number], plan, members, seed, risk)
        if on_cluster is not None:
            on_cluster()
    return [found[number] for number in range(len(clusters))]


def _on_cluster(
    system: str, gpus: int, plan: Replanned, members: int, seed: int, risk: float
) -> Capacity | Refusal:
    if plan.job is None:
        return Refusal(system, gpus, plan.reason)
    try:
        found = capacity(plan.job, members=members, seed=seed)
    except InputError as error:
        return _refusal(system, gpus, error)
    probability = found.step.fits_probability
    reason = f"fits into memory with a probability of only {percent(probability, 0)}"
    return found if probability >= 1 - risk else Refusal(system, gpus, reason)


def smallest_in_time(found: Sequence[Capacity], deadline_s: float) -> Capacity | None:
    """The cluster with the fewest GPUs that is done by a deadline; of equals the fastest."""
    in_time = [each for each in found if each.time.wall_s <= deadline_s]
    return min(in_time, key=lambda each: (each.time.gpus, each.time.wall_s), default=None)


def fastest_within_budget(found: Sequence[Capacity], budget_usd: float) -> Capacity | None:
    """The cluster that is done first, of those whose cheapest way of paying is affordable.

    Raises:
        InputError: No price of any of them is known.
    """
    if found and all(each.money.cheapest is None for each in found):
        raise _no_price(found[0].job.cluster.profile.name)
    within = [
        each for each in found if each.money.cheapest and each.money.cheapest[1] <= budget_usd
    ]
    return min(within, key=lambda each: (each.time.wall_s, each.time.gpus), default=None)


def need_a_price(job: Job, systems: Sequence[str]) -> None:
    """Refuse a budget before anything takes time, where nothing is said that costs money.

    Raises:
        InputError: The job's campaign has no way to pay for any of the systems.
    """
    known = [job.campaign.systems[name] for name in systems if name in job.campaign.systems]
    if not any(each.on_demand_usd_per_s or each.reserved or each.owned for each in known):
        raise _no_price(systems[0])


def _no_price(system: str) -> InputError:
    rule = "is missing, so no cost can be compared with the budget"
    hint = f'for example --set campaign.systems.{system}.on_demand="… USD/h"'
    return InputError.single(f"campaign.systems.{system}", rule, hint=hint)


def _moved(job: Job, system: str, gpus: int, *, keep_plan: bool) -> Job | Refusal:
    cluster: dict[str, Any] = {"cluster.gpus": gpus}
    if system != job.cluster.profile.name:
        cluster = {"cluster": {"profile": system, "gpus": gpus}}
    try:
        if keep_plan:
            return job.replace(cluster)
        return searchable_job(lambda changes: job.replace({**cluster, **changes}))
    except InputError as error:
        return _refusal(system, gpus, error)


def _refusal(system: str, gpus: int, error: InputError) -> Refusal:
    fault = error.faults[0]
    return Refusal(system, gpus, f"{fault.path} {fault.rule}")
