"""What does a training run take: days, GPU-hours, electricity and money?

Tokens give steps, the simulated step gives the time without any failure, and goodput gives
the time on the calendar. Goodput is what the user gives, or what an ensemble of simulated
campaigns says where failures are given, or unknown: then the days are those of a cluster on
which nothing ever fails, and say so.

When a run may end is what failures make of the predicted steps, times a factor that nobody knows
beforehand: measured over predicted step time, whose logarithm follows a skewed t
(:mod:`simulator.results.step_error`). Both are taken as independent, so the share of runs that end
by a time is the mean, over simulated campaigns, of the share of factors that let each end by then.
Ignores that a slower run meets more failures, and that pauses last as long whatever the step. No
run on pools of several kinds of GPU is published: their error is that of the kind with the largest
one, an assumption.

Each GPU draws one power while it computes and another while it waits (for communication that
nothing hides, a bubble, a checkpoint or a restart); nodes draw theirs all the time; the building
multiplies all of it. A power or price that nobody gave leaves the sum open. GPUs are paid
**on demand** by their time, **reserved** for whole terms, whether they work or not, or **owned**:
the annuity that pays price and interest back over the lifetime, upkeep and electricity; years in
which the GPUs stand idle are paid by those in which they work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from simulator.described.campaign import Owned, Power, System
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.planning.campaign.checkpoints import Spent
from simulator.planning.campaign.goodput import Goodput, goodput
from simulator.program.ir import Category
from simulator.results.step import StepResult
from simulator.results.step_error import COVERAGE, job_error, job_exposure
from simulator.results.students_t import skewed_t_quantile, skewed_t_share
from simulator.units import DAY_S

_PARTS = 20
"""Equal parts of the simulated campaigns, each taken at its median."""
_BISECTIONS = 40


@dataclass(frozen=True)
class EndTimes:
    """How long a training run takes, as a distribution.

    Attributes:
        walls_s: Times of equally likely campaigns under the predicted step [s].
        scale: Of the logarithm of measured over predicted step time.
        freedom: Degrees of freedom of its Student's t.
        skew: Of that.
    """

    walls_s: tuple[float, ...]
    scale: float
    freedom: float
    skew: float = 1.0

    def late_probability(self, limit_s: float) -> float:
        """Probability that the run takes longer than a time, 0 to 1."""
        if limit_s <= 0:
            return 1.0
        ends = (
            skewed_t_share(math.log(limit_s / wall_s) / self.scale, self.freedom, self.skew)
            for wall_s in self.walls_s
        )
        return 1 - math.fsum(ends) / len(self.walls_s)

    def quantile_s(self, probability: float) -> float:
        """The time within which a share of such runs ends [s]."""
        factor = math.exp(self.scale * skewed_t_quantile(probability, self.freedom, self.skew))
        low_s, high_s = factor * min(self.walls_s), factor * max(self.walls_s)
        for _ in range(_BISECTIONS):
            middle_s = (low_s + high_s) / 2
            is_below = 1 - self.late_probability(middle_s) < probability
            low_s, high_s = (middle_s, high_s) if is_below else (low_s, middle_s)
        return high_s

    @property
    def interval_s(self) -> tuple[float, float]:
        """Between which times eight of ten such runs end [s]."""
        return self.quantile_s((1 - COVERAGE) / 2), self.quantile_s((1 + COVERAGE) / 2)


def end_times(job: Job, step: StepResult, wall_s: float, found: Goodput | None) -> EndTimes:
    """The distribution of a campaign's time.

    Args:
        job: The job.
        step: One of its steps.
        wall_s: The campaign under the predicted step [s].
        found: Its simulated failures; without them all campaigns take that time.
    """
    exposed = job_exposure(job, step.step_time_s, step.breakdown_s)
    kinds = [kind.profile for kind in job.cluster.kinds]
    error = max((job_error(job, kind) for kind in kinds), key=lambda each: each.variance(exposed))
    walls_s: tuple[float, ...] = (wall_s,)
    if found is not None:
        middles = (np.arange(_PARTS) + 0.5) / _PARTS
        walls_s = tuple(np.quantile(found.walls_s, middles).tolist())
    return EndTimes(walls_s, error.scale(exposed), error.freedom, error.skew)


_BUSY = (Category.FORWARD, Category.BACKWARD, Category.RECOMPUTE, Category.OPTIMIZER)
_TRAINING = (Spent.PRODUCTIVE, Spent.MISSING_RANKS, Spent.INTERFERENCE, Spent.LOST_WORK)


@dataclass(frozen=True)
class CampaignTime:
    """The time of a training run, factor by factor.

    Attributes:
        step_time_s: One of them [s].
        pauses_s: What training stands for at regular steps, by name [s].
        busy_share: Share of a step in which the mean GPU computes.
        goodput_share: Share of the time that goes into steps that count; None where unknown.
        goodput: The ensemble behind it; None where it was given or is unknown.
        wall_s: All steps with what goodput leaves, or where it is unknown with pauses alone [s].
        ends: When the run may end, with the error of the step and with failures.
    """

    tokens: int
    tokens_per_step: int
    steps: int
    step_time_s: float
    pauses_s: Mapping[str, float]
    busy_share: float
    goodput_share: float | None
    goodput: Goodput | None
    wall_s: float
    ends: EndTimes
    gpus: int

    @property
    def work_s(self) -> float:
        """All steps, if nothing fails [s]."""
        return self.steps * self.step_time_s

    @property
    def gpu_s(self) -> float:
        """GPU time that is taken [s]."""
        return self.wall_s * self.gpus

    @property
    def training_s(self) -> float:
        """Time in which steps run, whether they count or are lost [s].

        Only an ensemble knows of lost steps; otherwise the steps that count.
        """
        if self.goodput is None:
            return self.work_s
        return math.fsum(self.goodput.spent_s.get(spent, 0.0) for spent in _TRAINING)


def tokens_of(job: Job) -> int:
    """Tokens of a job's campaign.

    Raises:
        InputError: They are missing.
    """
    if job.campaign.tokens is None:
        hint = "add it, or give --tokens 15T"
        raise InputError.single("campaign.tokens", "is missing", hint=hint)
    return job.campaign.tokens


def campaign_time(
    job: Job,
    step: StepResult,
    *,
    members: int,
    seed: int = 0,
    on_member: Callable[[], None] | None = None,
) -> CampaignTime:
    """The time of a job's campaign.

    Raises:
        InputError: The tokens are missing, or goodput cannot be simulated.
    """
    campaign, tokens = job.campaign, tokens_of(job)
    steps = -(-tokens // job.batch.tokens)
    work_s, ensemble = steps * step.step_time_s, None
    pauses_s = {
        name: steps // pause.every_steps * pause.duration_s
        for name, pause in campaign.pauses.items()
    }
    all_pauses_s = math.fsum(pauses_s.values())
    if campaign.failures is not None:
        ensemble = goodput(
            job, work_s, pauses_s=all_pauses_s, members=members, seed=seed, on_member=on_member
        )
    share = ensemble.share if ensemble else campaign.goodput
    wall_s = work_s + all_pauses_s if share is None else work_s / share
    busy_s = math.fsum(step.breakdown_s.get(category, 0.0) for category in _BUSY)
    return CampaignTime(
        tokens=tokens,
        tokens_per_step=job.batch.tokens,
        steps=steps,
        step_time_s=step.step_time_s,
        pauses_s=pauses_s,
        busy_share=busy_s / step.step_time_s,
        goodput_share=share,
        goodput=ensemble,
        wall_s=wall_s,
        ends=end_times(job, step, wall_s, ensemble),
        gpus=job.cluster.gpus,
    )


@dataclass(frozen=True)
class Energy:
    """Electricity of a campaign; None stands for what a missing factor leaves open.

    Attributes:
        gpu_busy_j: GPUs that compute [J].
        gpu_waiting_j: GPUs that wait [J].
        host_j: Nodes without GPUs [J].
        network_j: Switches and storage [J].
        building_j: What the building takes in addition [J].
    """

    gpu_busy_j: float
    gpu_waiting_j: float | None
    host_j: float | None
    network_j: float | None
    building_j: float | None
    total_j: float | None
    co2_kg: float | None


def energy(job: Job, time: CampaignTime) -> Energy:
    """The electricity of a job's campaign.

    Ignores that GPUs of several kinds compute for different shares of a step: each has the mean's.
    """
    site, busy_s = job.campaign.site, time.training_s * time.busy_share
    waiting_s = time.wall_s - busy_s
    kinds = [(kind, _power_of(job, kind.profile)) for kind in job.cluster.kinds]
    gpu_busy_j = math.fsum(
        (kind.profile.device.allowed_power_w if power.gpu_busy_w is None else power.gpu_busy_w)
        * busy_s
        * kind.gpus
        for kind, power in kinds
    )
    gpu_waiting_j = _sum(*(_times(p.gpu_waiting_w, waiting_s * kind.gpus) for kind, p in kinds))
    host_j = _sum(*(_times(p.host_w, time.wall_s * kind.nodes) for kind, p in kinds))
    network_j = _sum(*(_times(p.network_w, time.wall_s * kind.nodes) for kind, p in kinds))
    computers_j = _sum(gpu_busy_j, gpu_waiting_j, host_j, network_j)
    building_j = None
    if computers_j is not None and site.pue is not None:
        building_j = computers_j * (site.pue - 1)
    total_j = _sum(computers_j, building_j)
    return Energy(
        gpu_busy_j=gpu_busy_j,
        gpu_waiting_j=gpu_waiting_j,
        host_j=host_j,
        network_j=network_j,
        building_j=building_j,
        total_j=total_j,
        co2_kg=None if total_j is None else _times(site.grid_kg_per_j, total_j),
    )


def system_of(job: Job) -> System:
    """What the campaign says about the job's hardware profile; empty if nothing."""
    return job.campaign.systems.get(job.cluster.profile.name, System())


def _power_of(job: Job, profile: HardwareProfile) -> Power:
    return job.campaign.systems.get(profile.name, System()).power


def _times(factor: float | None, amount: float) -> float | None:
    return None if factor is None else factor * amount


def _sum(*terms: float | None) -> float | None:
    known = [term for term in terms if term is not None]
    return math.fsum(known) if len(known) == len(terms) else None


def gpu_usd_per_s(job: Job) -> float | None:
    """Price of the mean GPU by the cheapest way that the campaign has a price for [USD/s].

    None where a kind of GPU has none. Ignores terms that a reserved GPU idles through, and the
    electricity of owned ones.
    """
    systems = [job.campaign.systems.get(k.profile.name, System()) for k in job.cluster.kinds]
    prices = [_least_usd_per_s(system) for system in systems]
    paid = [_times(price, kind.gpus) for price, kind in zip(prices, job.cluster.kinds, strict=True)]
    return _times(_sum(*paid), 1 / job.cluster.gpus)


def _least_usd_per_s(system: System) -> float | None:
    ways = [] if system.on_demand_usd_per_s is None else [system.on_demand_usd_per_s]
    ways += [] if system.reserved is None else [system.reserved.gpu_usd_per_s]
    ways += [] if system.owned is None else [_owned_usd_per_s(system.owned)]
    return min(ways, default=None)


_YEAR_S = 365.25 * DAY_S
"""A year [s]."""


@dataclass(frozen=True)
class Money:
    """What a campaign costs, by way of paying; None where a price is missing.

    Attributes:
        on_demand_usd: Rented while it runs [USD].
        reserved_usd: Rented for whole terms [USD].
        reserved_idle_share: Share of those terms in which the campaign does not run.
        depreciation_usd: Its part of owned GPUs, without electricity [USD].
        electricity_usd: Its electricity, where GPUs are owned [USD].
        owned_usd: Both [USD].
    """

    on_demand_usd: float | None
    reserved_usd: float | None
    reserved_idle_share: float | None
    depreciation_usd: float | None
    electricity_usd: float | None
    owned_usd: float | None

    @property
    def cheapest(self) -> tuple[str, float] | None:
        """The cheapest way of paying whose prices are known, and its sum [USD]."""
        ways = {
            "on demand": self.on_demand_usd,
            "reserved": self.reserved_usd,
            "owned": self.owned_usd,
        }
        known = [(usd, way) for way, usd in ways.items() if usd is not None]
        return (min(known)[1], min(known)[0]) if known else None


def money(job: Job, time: CampaignTime, energy: Energy) -> Money:
    """What a job's campaign costs."""
    system, price = system_of(job), job.campaign.site.electricity_usd_per_j
    on_demand_usd = reserved_usd = idle_share = depreciation_usd = None
    if system.on_demand_usd_per_s is not None:
        on_demand_usd = time.gpu_s * system.on_demand_usd_per_s
    if system.reserved is not None:
        paid_s = ceil(time.wall_s / system.reserved.term_s) * system.reserved.term_s
        reserved_usd = paid_s * time.gpus * system.reserved.gpu_usd_per_s
        idle_share = 1 - time.wall_s / paid_s
    if system.owned is not None:
        depreciation_usd = time.gpu_s * _owned_usd_per_s(system.owned)
    electricity_usd = owned_usd = None
    if energy.total_j is not None and price is not None:
        electricity_usd = energy.total_j * price
    if depreciation_usd is not None and electricity_usd is not None:
        owned_usd = depreciation_usd + electricity_usd
    return Money(
        on_demand_usd=on_demand_usd,
        reserved_usd=reserved_usd,
        reserved_idle_share=idle_share,
        depreciation_usd=depreciation_usd,
        electricity_usd=electricity_usd,
        owned_usd=owned_usd,
    )


def annuity(price: float, interest: float, years: float) -> float:
    """Yearly payment that pays a price and its interest back over some years.

    With interest 0 equal parts. Source: present value of an annuity, any textbook of finance.
    """
    if interest == 0:
        return price / years
    present: float = (1 - (1 + interest) ** -years) / interest
    return price / present


def _owned_usd_per_s(owned: Owned) -> float:
    """What one owned GPU costs while it is used, without electricity [USD/s]."""
    yearly = annuity(owned.gpu_usd, owned.interest, owned.lifetime_s / _YEAR_S)
    return (yearly + owned.upkeep * owned.gpu_usd) / _YEAR_S / owned.use
