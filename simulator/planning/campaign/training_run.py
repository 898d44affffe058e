"""How many steps, days and GPU-hours does a training run take?

Tokens give steps, the simulated step gives the time without any failure, and goodput gives
the time on the calendar. Goodput is what the user gives, or what an ensemble of simulated
campaigns says where failures are given, or unknown: then the days are those of a cluster on
which nothing ever fails, and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.planning.campaign.goodput import Goodput, goodput
from simulator.planning.campaign.restart_interval import Spent
from simulator.program.ir import Category
from simulator.results.step import StepResult

_BUSY = (Category.FORWARD, Category.BACKWARD, Category.RECOMPUTE, Category.OPTIMIZER)
_TRAINING = (Spent.PRODUCTIVE, Spent.MISSING_RANKS, Spent.INTERFERENCE, Spent.LOST_WORK)


@dataclass(frozen=True)
class CampaignTime:
    """The time of a training run, factor by factor.

    Attributes:
        tokens: Trained on.
        tokens_per_step: Of the global batch.
        steps: Optimizer steps.
        step_time_s: One of them [s].
        busy_share: Share of a step in which the mean GPU computes.
        goodput_share: Share of the time that goes into steps that count; None where unknown.
        goodput: The ensemble behind it; None where it was given or is unknown.
        gpus: Of the job.
    """

    tokens: int
    tokens_per_step: int
    steps: int
    step_time_s: float
    busy_share: float
    goodput_share: float | None
    goodput: Goodput | None
    gpus: int

    @property
    def work_s(self) -> float:
        """All steps, if nothing fails [s]."""
        return self.steps * self.step_time_s

    @property
    def wall_s(self) -> float:
        """The same with what goodput leaves; without failures where it is unknown [s]."""
        return self.work_s / (self.goodput_share or 1.0)

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
        return sum(self.goodput.spent_s.get(spent, 0.0) for spent in _TRAINING)


def campaign_time(
    job: Job,
    step: StepResult,
    *,
    members: int = 200,
    seed: int = 0,
    on_member: Callable[[], None] | None = None,
) -> CampaignTime:
    """The time of a job's campaign.

    Args:
        job: Its campaign says how many tokens.
        step: The job's simulated step.
        members: Simulated campaigns, where failures are given.
        seed: Of their failures.
        on_member: Called after each of them, for progress.

    Raises:
        InputError: The tokens are missing, or goodput cannot be simulated.
    """
    campaign = job.campaign
    if campaign.tokens is None:
        hint = "add it, or take the option --tokens 15T"
        raise InputError.single("campaign.tokens", "is missing", hint=hint)
    steps = -(-campaign.tokens // job.batch.tokens)
    ensemble = None
    if campaign.failures is not None:
        work_s = steps * step.step_time_s
        ensemble = goodput(job, work_s, members=members, seed=seed, on_member=on_member)
    busy_s = sum(step.breakdown_s.get(category, 0.0) for category in _BUSY)
    return CampaignTime(
        tokens=campaign.tokens,
        tokens_per_step=job.batch.tokens,
        steps=steps,
        step_time_s=step.step_time_s,
        busy_share=busy_s / step.step_time_s,
        goodput_share=ensemble.share if ensemble else campaign.goodput,
        goodput=ensemble,
        gpus=job.cluster.gpus,
    )
