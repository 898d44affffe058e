"""When may a training run end, if the step is not quite as predicted and things fail?

Its time is what failures make of the predicted steps, times a factor that nobody knows beforehand:
measured over predicted step time, whose logarithm follows Student's t
(:mod:`simulator.results.step_error`). Both are taken as independent, so the share of runs that end
by a time is the mean, over simulated campaigns, of the share of factors that let each end by then.

Ignores that a slower run meets more failures, and that pauses last as long whatever the step:
a campaign's losses are taken in proportion. No run
on pools of several kinds of GPU is published: their error is that of the kind with the largest one,
an assumption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulator.described.job import Job
from simulator.planning.campaign.goodput import Goodput
from simulator.results.step import StepResult
from simulator.results.step_error import COVERAGE, job_error, job_exposure
from simulator.results.students_t import students_t_quantile, students_t_share

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
    """

    walls_s: tuple[float, ...]
    scale: float
    freedom: float

    def late_probability(self, limit_s: float) -> float:
        """Probability that the run takes longer than a time, 0 to 1."""
        if limit_s <= 0:
            return 1.0
        ends = (
            students_t_share(math.log(limit_s / wall_s) / self.scale, self.freedom)
            for wall_s in self.walls_s
        )
        return 1 - math.fsum(ends) / len(self.walls_s)

    def quantile_s(self, probability: float) -> float:
        """The time within which a share of such runs ends [s]."""
        factor = math.exp(self.scale * students_t_quantile(probability, self.freedom))
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
    return EndTimes(walls_s, error.scale(exposed), error.freedom)
