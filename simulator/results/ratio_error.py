"""How sure is it that one job trains faster than another?

The errors of two steps of one team have much in common: its software, clocks and hosts, and the
rest that runs share where they are alike. All that leaves the ratio of the two steps alone, so it
is surer than either. What differs between them stays: the single run, what they are unlike in, and
what launches and exchanges weigh more in one than in the other.

Source: the model of :mod:`simulator.results.step_error`, with no size of its own. How often it is
right is counted in ``reports/what_if.md``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from simulator.described.job import Job
from simulator.program.ir import Category
from simulator.results.step_error import (
    COVERAGE,
    ErrorModel,
    Floats,
    StepError,
    framework_of,
    job_error,
    job_exposure,
    shipped_errors,
    traits_of,
)
from simulator.results.students_t import students_t_quantile, students_t_share


class Compared(NamedTuple):
    """A predicted step, to be held against another.

    Attributes:
        system: Name of its hardware profile.
        framework: Of :func:`~simulator.results.step_error.framework_of`.
        has_experts: Whether its model has experts.
        error: What is known of its error.
        exposed: How much each regime weighs in it, shape (regimes,).
        traits: What it has to share with a step to be alike, by aspect.
    """

    system: str
    framework: str
    has_experts: bool
    error: StepError
    exposed: Floats
    traits: tuple[Hashable, ...]


class GainError(NamedTuple):
    """What is known of a gain in tokens per second.

    Attributes:
        log_gain: Logarithm of the predicted ratio of the rates.
        scale: Of Student's t that its error follows.
        freedom: Degrees of freedom of the same.
        sure_sign: 1 where there can be no loss, -1 where there can be no gain, whatever the error;
            0 where nothing rules out either.
    """

    log_gain: float
    scale: float
    freedom: float
    sure_sign: Literal[-1, 0, 1] = 0

    @property
    def faster_probability(self) -> float:
        """How likely there is a gain at all, 0 to 1."""
        if self.sure_sign:
            return float(self.sure_sign > 0)
        return students_t_share(self.log_gain / self.scale, self.freedom)

    @property
    def interval(self) -> tuple[float, float]:
        """Gains, as shares, between which eight of ten lie, cut at 0 where a sign is ruled out."""
        reach = self.scale * students_t_quantile((1 + COVERAGE) / 2, self.freedom)
        ends = math.expm1(self.log_gain - reach), math.expm1(self.log_gain + reach)
        if not self.sure_sign:
            return ends
        side = max if self.sure_sign > 0 else min
        return side(0.0, ends[0]), side(0.0, ends[1])


def compared_step(
    job: Job, step_time_s: float, breakdown_s: Mapping[Category, float]
) -> Compared | None:
    """A job's step; None where there are several kinds of GPUs, of which no runs are published."""
    if job.cluster.pools:
        return None
    return Compared(
        job.cluster.profile.name,
        framework_of(job),
        job.model.experts is not None,
        job_error(job),
        np.minimum(job_exposure(job, step_time_s, breakdown_s), 1.0),
        traits_of(job),
    )


def gain_error(
    first: Compared, second: Compared, gain: float, model: ErrorModel | None = None
) -> GainError:
    """What is known of the gain of the second over the first.

    Args:
        first: A step.
        second: Another one of the same user.
        gain: The predicted one in tokens per second, or in those of a GPU, as a share.
        model: Sizes of errors; by default those that are shipped.
    """
    model = model or shipped_errors()
    ends = (first, second)
    alone = math.fsum(step.exposed**2 @ step.error.noise for step in ends)
    of_source = math.fsum(step.exposed @ step.error.covariance @ step.exposed for step in ends)
    in_both = float(first.exposed @ _shared(first, second, model) @ second.exposed)
    variance = alone + max(0.0, of_source - 2.0 * in_both) + _unlike(first, second)
    return GainError(
        math.log1p(gain),
        math.sqrt(variance),
        min(step.error.freedom for step in ends),
    )


def _shared(first: Compared, second: Compared, model: ErrorModel) -> Floats:
    """Covariance of what both steps have in common, by regime, shape (regimes, regimes).

    On one system that is what its numbers leave open, too. Of two frameworks nothing is counted.
    """
    if first.framework != second.framework:
        return np.zeros_like(first.error.covariance)
    if first.system == second.system:
        return np.minimum(first.error.covariance, second.error.covariance)
    of_framework = (
        model.error_of((), step.framework, has_experts=step.has_experts).covariance
        for step in (first, second)
    )
    return np.minimum(*of_framework)


def _unlike(first: Compared, second: Compared) -> float:
    """Variance of what only runs share that are alike, of aspects in which the two are not."""
    is_one_framework = first.framework == second.framework
    pairs = zip(first.traits, second.traits, strict=True)
    is_unlike = np.array([not is_one_framework or one != other for one, other in pairs])
    return float((first.error.alike + second.error.alike)[is_unlike].sum())
