"""What was measured of a run, and what does a simulation say of the same?

A quantity is anything both know: the step, the peak of memory, the seconds of one kind of work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.described.faults import nearest_hint
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.ir import Category
from simulator.results.step import StepResult
from simulator.results.views.rank_classes import classes_of
from simulator.validate.measured_trace.account import (
    IDLE,
    PHASES,
    Account,
    account,
    predicted_spans,
)
from simulator.validate.measured_trace.kernel_names import Wait
from simulator.validate.measured_trace.trace_comparison import compare_trace

MemoryKind = Literal["allocated", "reserved", "device"]

Seconds = Mapping[str, float]


@dataclass(frozen=True)
class StepNumbers:
    """What of a simulated step may be measured; its timeline, which is large, is left behind.

    Attributes:
        step_time_s: The step [s].
        breakdown_s: Where the step of the mean rank goes [s].
        peak_allocated_bytes, peak_reserved_bytes, peak_device_bytes: Of the fullest rank [B].
        account_s: The account of one rank, by phase and kind [s]; empty where none was asked for.
    """

    step_time_s: float
    breakdown_s: Mapping[Category, float]
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    peak_device_bytes: float
    account_s: Seconds

    @classmethod
    def of(cls, job: Job, result: StepResult, trace: TraceTimes | None = None) -> StepNumbers:
        """Those of one step, with the account of the rank that was traced, if one was."""
        return cls(
            result.step_time_s,
            result.breakdown_s,
            result.peak_allocated_bytes,
            result.peak_reserved_bytes,
            result.peak_device_bytes,
            trace.predicted_s(job, result) if trace else {},
        )


Simulated = StepResult | StepNumbers
"""A simulated step, or what is left of it."""


class TimeView(Protocol):
    """Where the time of a run went, and of a simulated one."""

    @property
    def measured_s(self) -> Seconds:
        """Seconds by name [s]."""

    def predicted_s(self, job: Job, result: Simulated) -> Seconds:
        """The same of a simulated step, by the same names [s]."""


@dataclass(frozen=True)
class PhaseTimes:
    """Seconds of some categories of a step's breakdown, as frameworks log them.

    A backward beside which no recomputation is logged holds it.

    Attributes:
        measured_s: Seconds by category, such as ``forward`` [s].
    """

    measured_s: Seconds

    def predicted_s(self, job: Job, result: Simulated) -> Seconds:
        """The breakdown of a mean GPU [s]."""
        found = {name: result.breakdown_s.get(Category(name), 0.0) for name in self.measured_s}
        if Category.BACKWARD in found and Category.RECOMPUTE not in found:
            found[Category.BACKWARD] += result.breakdown_s.get(Category.RECOMPUTE, 0.0)
        return found


@dataclass(frozen=True)
class TraceTimes:
    """The account of one rank's trace.

    Attributes:
        measured_s: Seconds by phase and kind [s].
        rank: Which rank.
    """

    measured_s: Seconds
    rank: int

    @classmethod
    def read(cls, path: Path, job: Job) -> TraceTimes:
        """The median step of a trace of torch's profiler.

        Raises:
            InputError: It is none, is damaged, or is of another number of ranks.
        """
        found = compare_trace(path, job)
        measured, _ = found.accounts
        return cls(_by_name(measured), found.rank)

    def predicted_s(self, job: Job, result: Simulated) -> Seconds:
        """The account of the same rank's simulated step [s]."""
        if isinstance(result, StepNumbers):
            return result.account_s
        [rank_class] = classes_of([self.rank], job, result.timeline.program.classes)
        return _by_name(account(predicted_spans(job, result, rank_class), result.step_time_s))


def _by_name(found: Account) -> Seconds:
    """Idle time as one: a prediction cannot say as finely as a trace what it waits for."""
    busy = {
        f"{phase} {kind}": seconds
        for (phase, kind), seconds in found.by_phase_s.items()
        if kind not in {*Wait, IDLE}
    }
    return busy | {f"{phase} {IDLE}": idle_s for phase in PHASES if (idle_s := found.idle_s(phase))}


@dataclass(frozen=True)
class PredictionErrors:
    """How far predictions are off where nothing is hidden: standard deviations of a ratio.

    Attributes:
        common: Of what all times of a run share: its software, clocks, hosts.
        each: Of the step, or of one part of it, beside that.
        memory: Of the peak of memory.
        smallest_share: Error of a part that is next to nothing, as a share of the step.
        memory_centre: Half of all runs hold no more than the predicted memory times e to this.
    """

    common: float
    each: float
    memory: float
    smallest_share: float = 0.002
    memory_centre: float = 0.0

    def covariance(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of the misses of parts that weigh so much in a step, shape (parts, parts)."""
        own = np.hypot(self.each * shares, self.smallest_share)
        return np.asarray(np.diag(own**2) + self.common**2 * np.outer(shares, shares))


@dataclass(frozen=True)
class Observation:
    """What was measured of a run.

    Attributes:
        step_s: The step [s].
        memory_bytes: Peak of the fullest GPU [B]; None where nobody looked.
        memory_kind: Which of its three meanings that has.
        times: Where the step's time went; None where nobody looked.
    """

    step_s: float
    memory_bytes: float | None = None
    memory_kind: MemoryKind = "reserved"
    times: TimeView | None = field(default=None)

    @property
    def num_quantities(self) -> int:
        """How many numbers were measured."""
        parts = len(self.times.measured_s) if self.times else 0
        return 1 + parts + (self.memory_bytes is not None)

    def surprise(self, job: Job, result: Simulated, errors: PredictionErrors) -> float:
        """What a simulated step leaves unexplained: a sum of squares, in standard deviations.

        Errors are Gaussian in logarithms of predicted over measured values: of times, one factor
        that all share, and one of each its own, of which small parts have at least
        ``smallest_share`` (assumptions).
        """
        shares, misses = self.missed_shares(job, result, errors.smallest_share)
        found = float(misses @ np.linalg.solve(errors.covariance(shares), misses))
        if self.memory_bytes is not None:
            found += (self.memory_miss(result, errors) / errors.memory) ** 2
        return found

    def memory_miss(self, result: Simulated, errors: PredictionErrors) -> float:
        """Logarithm of predicted over measured memory, from the middle of its usual errors."""
        assert self.memory_bytes is not None
        return math.log(self.held_bytes(result) / self.memory_bytes) + errors.memory_centre

    def missed_shares(
        self, job: Job, result: Simulated, smallest: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What each part weighs in the step, and by how much of the step it is missed.

        Weights are logarithmic means of measured and predicted time, over that of the step, so a
        miss over its weight is the logarithm of predicted over measured; shape (parts,).
        """
        measured, predicted = self._times(job, result)
        step_s = _logarithmic_mean(self.step_s, result.step_time_s)
        pairs = np.maximum(np.stack([measured, predicted]), smallest * step_s)
        shares = np.array([_logarithmic_mean(*pair) for pair in pairs.T.tolist()]) / step_s
        return shares, (predicted - measured) / step_s

    def _times(
        self, job: Job, result: Simulated
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Measured and predicted seconds, by part and in the same order, shape (parts,) [s].

        The parts of a step and what is left of it; the step alone where no part is known.
        """
        measured = dict(self.times.measured_s) if self.times else {}
        predicted = dict(self.times.predicted_s(job, result)) if self.times else {}
        names = sorted(measured.keys() | predicted.keys())
        pairs = [(measured.get(name, 0.0), predicted.get(name, 0.0)) for name in names]
        left = [total - math.fsum(part) for total, part in zip(
            (self.step_s, result.step_time_s), zip(*pairs, strict=True) if pairs else ((), ()),
            strict=True,
        )]  # fmt: skip
        columns = np.array([*pairs, left])
        return columns[:, 0], columns[:, 1]

    def held_bytes(self, result: Simulated) -> float:
        """The peak of a simulated step, in the meaning that was measured [B]."""
        return {
            "allocated": result.peak_allocated_bytes,
            "reserved": result.peak_reserved_bytes,
            "device": result.peak_device_bytes,
        }[self.memory_kind]


def _logarithmic_mean(one: float, other: float) -> float:
    """Their difference over that of their logarithms: what makes a difference a ratio."""
    if math.isclose(one, other, rel_tol=1e-6):
        return (one + other) / 2
    return (one - other) / math.log(one / other)


def phase_times(seconds: Seconds, step_s: float) -> PhaseTimes:
    """Parts of a step that somebody measured.

    Raises:
        InputError: A name is no category of a breakdown, or the parts are longer than the step.
    """
    known = [category.value for category in Category]
    for name in seconds:
        if name not in known:
            hint = nearest_hint(name, known)
            raise InputError.single("--phase", "must name a category of the breakdown", name, hint)
    if math.fsum(seconds.values()) > step_s:
        raise InputError.single("--phase", "parts must not be longer than the step", f"{step_s} s")
    return PhaseTimes(seconds)
