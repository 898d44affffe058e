"""How likely is it that a run has enough memory?

What a run holds is what is predicted times a factor that nobody knows beforehand. Of published
runs, predicted without their own source, its logarithm is about Student's t: most predictions are
close, and some miss a cause altogether. A cause that is missed mostly holds memory, so half of all
runs hold somewhat more than is predicted. Where the middle is, and how wide it spreads, is in
``simulator/facts/memory_errors.yaml``: less where the framework and the device were held against
measured memory, more where they never were.

Ignores that errors are larger on one side where a device is nearly full, where the allocator
returns what it does not use (:attr:`~simulator.results.step.ClassMemory.least_device_bytes`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from simulator.errors import InputError
from simulator.facts import shipped_facts
from simulator.results.students_t import students_t_quantile, students_t_share
from simulator.units import percent

if TYPE_CHECKING:
    from simulator.described.job import Job

DEFAULT_RISK = 0.05
"""Probability of running out of memory that a recommended plan has at most."""
EVEN = 0.5
"""Probability from which a run is said to fit."""
_ALMOST_SURE = 0.995
"""Probability from which whole percents would say that nothing is open."""


class Fit(StrEnum):
    """Whether a run has room, as far as predictions can tell."""

    FITS = "fits"
    TIGHT = "tight"
    UNLIKELY = "probably does not fit"
    DOES_NOT_FIT = "does not fit"


def fit_of(probability: float) -> Fit:
    """The verdict: tight, or probably not, where neither is sure up to the usual risk."""
    if probability >= 1 - DEFAULT_RISK:
        return Fit.FITS
    if probability <= DEFAULT_RISK:
        return Fit.DOES_NOT_FIT
    return Fit.TIGHT if probability >= EVEN else Fit.UNLIKELY


def fit_text(probability: float) -> str:
    """The verdict and how sure it is: ``tight (62 % likely to fit)``."""
    likely = "over 99 %" if probability > _ALMOST_SURE else percent(probability, 0)
    return f"{fit_of(probability)} ({likely} likely to fit)"


def misfit_text(probability: float) -> str:
    """How a sentence about a run that lacks room begins: the same verdict, and no other."""
    is_sure = fit_of(probability) is Fit.DOES_NOT_FIT
    return "Does not fit" if is_sure else fit_text(probability).capitalize()


class MemorySpread(NamedTuple):
    """How far the memory that runs hold spreads about the predicted one.

    Attributes:
        scale: Of the logarithm of held over predicted memory.
        freedom: Degrees of freedom of its Student's t distribution.
        centre: Half of all runs hold no more than the predicted memory times e to this.
    """

    scale: float
    freedom: int
    centre: float = 0.0

    def probability(self, peak_bytes: float, capacity_bytes: float) -> float:
        """Probability that a run of that predicted peak holds no more than there is, 0 to 1."""
        if peak_bytes <= 0:
            return 1.0
        return self.share_below(math.log(capacity_bytes / peak_bytes))

    def share_below(self, log_ratio: float) -> float:
        """Share of runs whose logarithm of held over predicted memory is no more, 0 to 1."""
        return students_t_share((log_ratio - self.centre) / self.scale, self.freedom)

    def allowed_bytes(self, capacity_bytes: float, probability: float) -> float:
        """The largest predicted peak that fits with a probability [B]."""
        above = self.scale * students_t_quantile(probability, self.freedom)
        return capacity_bytes * math.exp(-self.centre - above)


def out_of_memory_probability(
    peaks_bytes: Sequence[float], capacity_bytes: float, spread: MemorySpread, steps: int
) -> float:
    """Probability that one of so many steps needs more than there is, 0 to 1.

    Peaks of steps differ independently; what their prediction is off by is the same in all of them.

    Args:
        peaks_bytes: Equally likely predicted peaks of a step [B]; none needs more than the largest.
        capacity_bytes: What there is [B].
        spread: How far predictions are off.
        steps: How many there are.
    """
    count = len(peaks_bytes)
    fit = (spread.probability(peak_bytes, capacity_bytes) for peak_bytes in sorted(peaks_bytes))
    # The largest peak of all steps is the n-th smallest of one step with this probability.
    shares = ((n / count) ** steps - ((n - 1) / count) ** steps for n in range(1, count + 1))
    return 1 - math.fsum(map(operator.mul, shares, fit))


def job_spread(job: Job) -> MemorySpread:
    """What is known of predictions for a job's framework and systems, from own runs if they say."""
    from simulator.results.step_error import framework_of

    own = job.cluster.profile.own_runs
    if own and own.memory and own.framework == framework_of(job) and not job.cluster.pools:
        return MemorySpread(own.memory.scale, own.memory.freedom, own.memory.centre)
    return memory_spread(job.stack_name, [kind.profile.name for kind in job.cluster.kinds])


def allowed_device_bytes(job: Job, risk: float) -> float:
    """The largest predicted peak of a job that runs out of memory with no more than a risk [B].

    Of clusters of one kind of GPU.

    Raises:
        InputError: The risk is no probability that a prediction can have.
    """
    if not 0 < risk < 1:
        rule, hint = "must be above 0 and below 1", f"use {DEFAULT_RISK}"
        raise InputError.single("risk", rule, risk, hint)
    return job_spread(job).allowed_bytes(job.cluster.profile.device.memory_bytes, 1 - risk)


def memory_spread(stack: str, profiles: Iterable[str]) -> MemorySpread:
    """What is known of predictions for a framework on systems of these names."""
    errors = shipped_facts("memory_errors")
    is_known = stack in errors["stacks"] and all(name in errors["profiles"] for name in profiles)
    return MemorySpread(**errors["spreads"]["known" if is_known else "unknown"])
