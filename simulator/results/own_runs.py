"""What do own runs say of a system, and what do they leave open?

Each regime of a step has an unknown slowness, with the spread of :mod:`.step_error` about what is
predicted; runs narrow it. One run moves mostly what all regimes have in common, because its error
may be of any; runs of different regimes tell them apart. Runs of one network, number of GPUs,
layout, format or microbatch may be off for what they have in common there and other jobs have not,
so three runs that are alike tell less than three that are not. A run that contradicts the others
counts little, so it does not spoil what they agree on.

Source: Bayes' rule for a linear model with Gaussian prior, made linear anew at each estimate
(Gauss-Newton), with contradicting runs reweighted (P. Huber, Robust Statistics, 1981, section 7.8);
what is left is the covariance of the estimate (Joseph's form), its scale that of the multivariate
t (Lange, Little and Taylor, J. Am. Stat. Assoc. 84, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.described.cluster.hardware import HardwareProfile
from simulator.errors import Fault
from simulator.program.price.host_pace import eager_layer_s
from simulator.results.fit_probability import MemorySpread
from simulator.results.own_memory import MeasuredMemory, MemoryLesson, memory_lesson
from simulator.results.step_error import Floats, StepError, alike_covariance
from simulator.units import format_quantity, format_seconds

_MILLI = 1e-3
_ROUNDS = 50
_LEAST, _MOST = (-math.inf, 0.0, -0.8, -0.8), (math.inf, math.inf, 0.5, 0.25)
"""Between which what is common, launches, exchanges and fabric are found. A host is not known to
wait less than nothing. Exchanges that weigh little in the known runs, and much in later ones, would
else be taken to be several times as slow; those of the fabric mostly hide behind computing, and
slower ones show more than their share. Of no bound, 2, 1, 0.5 and 0.25, the later runs of published
sources are nearest with the last two."""

CONTRADICTS = 3.0
"""Standard deviations beyond which a run contradicts the others; it counts less from there on. Of
rules that count runs less sooner, none brings the later runs of published sources nearer."""

_MOST_FACTOR = 8.0
"""Farthest that a prediction is off, either way (assumption). Of 1,044 published runs the farthest
took 6.0 times as long as was predicted (``reports/data/step_bands.csv``)."""


@dataclass(frozen=True)
class OwnRun:
    """A step that was measured, and what is predicted of it.

    Attributes:
        name: What people call it.
        measured_s, predicted_s: The step [s].
        exposed: How much each regime weighs in what it tells, shape (regimes,); from
            :func:`.step_error.teaching_exposure`.
        traits: What others share with it if they are alike, from
            :func:`.step_error.traits_of`; none is like it if empty.
        measured_bytes, predicted_bytes: Memory of the fullest GPU, of the same kind [B]; None
            where it was not measured.
    """

    name: str
    measured_s: float
    predicted_s: float
    exposed: Floats
    traits: tuple[Hashable, ...] = ()
    measured_bytes: float | None = None
    predicted_bytes: float | None = None

    @property
    def log_ratio(self) -> float:
        """Logarithm of the measured over the predicted step."""
        return math.log(self.measured_s / self.predicted_s)

    @property
    def is_plausible(self) -> bool:
        """Whether an error of a prediction may be as large."""
        return _is_plausible(self.measured_s, self.predicted_s)


def implausible_step(name: str, measured_s: float, predicted_s: float) -> Fault | None:
    """What is wrong with a measured step that no error of a prediction explains.

    Args:
        name: What people call the run, or the option that says its step.
        measured_s: The step [s].
        predicted_s: What is predicted of it [s].
    """
    if _is_plausible(measured_s, predicted_s):
        return None
    measured, predicted = format_seconds(measured_s), format_seconds(predicted_s)
    rule = f"took {measured} and is predicted to take {predicted}: no prediction is so far off"
    if _is_plausible(_MILLI * measured_s, predicted_s):
        return Fault(name, rule, hint="is it milliseconds? write seconds")
    hint = "check its unit, and its model, batch and GPUs"
    return Fault(name, rule, hint=hint)


def _is_plausible(measured_s: float, predicted_s: float) -> bool:
    return abs(math.log(measured_s / predicted_s)) <= math.log(_MOST_FACTOR)


@dataclass(frozen=True)
class Lesson:
    """What runs have told.

    Attributes:
        common: Logarithm of how much slower everything is than predicted.
        launches: What the device waits for its host beyond, per layer forward and backward that
            hides none of it, in units of what a host that launches its kernels one by one takes.
        exchanges, fabric: Share by which they are slower than everything.
        error: What is left open.
        misfits: How far each run is from what was learnt, in standard deviations of one run.
        memory: The same of memory; None where no run states its own.
    """

    common: float
    launches: float
    exchanges: float
    fabric: float
    error: StepError
    misfits: tuple[float, ...]
    memory: MemoryLesson | None = None

    def log_slowness(self, exposed: Floats) -> float:
        """Logarithm of how much slower a step is than predicted, with those weights of regimes."""
        found = np.array((self.common, self.launches, self.exchanges, self.fabric))
        return float(_logarithm(exposed[None], found)[0][0])

    def fields(self, profile: HardwareProfile, framework: str, runs: int) -> dict[str, Any]:
        """The numbers of a profile that say so, by path, as files write them.

        Args:
            profile: The system that the runs were predicted with.
            framework: Whose runs they were.
            runs: How many.
        """
        slower = float(np.exp(self.common))
        up, fabric = profile.network.scale_up, profile.network.fabric
        wait_s = slower * (profile.host.layer_wait_s + self.launches * eager_layer_s())
        known = 0 if profile.own_runs is None else profile.own_runs.runs
        beyond_bytes = 0.0 if self.memory is None else self.memory.context_bytes
        context_bytes = max(0.0, profile.device.context_bytes + beyond_bytes)
        return {
            "kernels.slowness": _rounded(profile.kernels.slowness * slower),
            "kernels.launch": _time(profile.kernels.launch_s * slower),
            "network.scale_up.slowness": _rounded(up.slowness * slower * (1 + self.exchanges)),
            "network.fabric.slowness": _rounded(fabric.slowness * slower * (1 + self.fabric)),
            "host.layer_wait": _time(wait_s),
            "device.context": f"{_rounded(context_bytes / 2**20):g} MiB",
            "own_runs": {
                "framework": framework,
                "runs": known + runs,
                "freedom": _rounded(self.error.freedom),
                "covariance": [[_rounded(x) for x in row] for row in self.error.covariance],
                "noise": [_rounded(x) for x in self.error.noise],
                "alike": [_rounded(x) for x in self.error.alike],
                **self._memory_fields(profile, framework),
            },
        }

    def _memory_fields(self, profile: HardwareProfile, framework: str) -> dict[str, Any]:
        """What is known of memory now; what was known before stays where runs say no more."""
        own = profile.own_runs
        before = own.memory if own is not None and own.framework == framework else None
        if self.memory is None:
            return {} if before is None else {"memory": before.model_dump(mode="json")}
        spread = self.memory.spread
        return {
            "memory": {
                "runs": self.memory.runs + (0 if before is None else before.runs),
                "scale": _rounded(spread.scale),
                "freedom": spread.freedom,
                "centre": _rounded(spread.centre),
            }
        }


def _rounded(value: float) -> float:
    """To four digits, which is more than runs can tell."""
    return float(f"{value:.4g}")


def _time(seconds: float) -> str:
    """The same with its unit."""
    return format_quantity(_rounded(seconds), "s")


def lesson(
    runs: Sequence[OwnRun], prior: StepError, memory_spread: MemorySpread | None = None
) -> Lesson:
    """What runs of one system and framework tell; at least one.

    Args:
        runs: The runs.
        prior: What was known before.
        memory_spread: What was known of their memory; None tells nothing of it.
    """
    exposed = np.array([run.exposed for run in runs])
    measured = np.array([run.log_ratio for run in runs])
    noise = np.minimum(exposed, 1.0) ** 2 @ prior.noise
    alike = alike_covariance([run.traits for run in runs], prior.alike)
    apart_s = np.sqrt(noise + np.diag(alike))
    weights = _weights((measured - np.median(measured)) / apart_s)
    found = np.zeros(exposed.shape[1])
    is_held = np.zeros(exposed.shape[1], dtype=bool)
    for _ in range(_ROUNDS):
        said, slopes = _logarithm(exposed, found)
        open_now = np.where(is_held | is_held[:, None], 0.0, prior.covariance)
        own = (np.diag(noise) + alike) / np.sqrt(np.outer(weights, weights))
        covariance = slopes @ open_now @ slopes.T + own
        gain = np.linalg.solve(covariance, slopes @ open_now).T
        apart = measured - said + slopes @ np.where(is_held, 0.0, found)
        found = np.where(is_held, found, gain @ apart)
        is_held |= (found < _LEAST) | (found > _MOST)
        found = np.clip(found, _LEAST, _MOST)
        misfits = (measured - _logarithm(exposed, found)[0]) / apart_s
        weights = _weights(misfits)
    distance = float(apart @ np.linalg.solve(covariance, apart))
    freedom = prior.freedom + len(runs)
    scale = (prior.freedom + distance) / freedom
    kept = np.eye(len(found)) - gain @ slopes
    left = kept @ prior.covariance @ kept.T + gain @ own @ gain.T
    error = StepError(scale * left, scale * prior.noise, freedom, scale * prior.alike)
    common, launches, exchanges, fabric = found.tolist()
    return Lesson(
        common,
        launches,
        exchanges,
        fabric,
        error=error,
        misfits=tuple(misfits.tolist()),
        memory=_memory_told(runs, memory_spread),
    )


def _weights(misfits: Floats) -> Floats:
    """How much each run counts: less where it contradicts what most say, shape (runs,).

    One that stands alone counts in full: it may be the system that is not as predicted. So do all
    where most contradict one another.
    """
    squares = misfits**2
    limit = CONTRADICTS**2 * max(1.0, float(np.median(squares)))
    return limit / np.maximum(squares, limit)


def _logarithm(exposed: Floats, found: Floats) -> tuple[Floats, Floats]:
    """Logarithm of how much slower steps are, shape (runs,), and its slopes, (runs, regimes)."""
    slower = 1 + exposed[:, 1:] @ found[1:]
    slopes = np.hstack([exposed[:, :1], exposed[:, 1:] / slower[:, None]])
    return found[0] + np.log(slower), slopes


def _memory_told(runs: Sequence[OwnRun], prior: MemorySpread | None) -> MemoryLesson | None:
    stated = [
        MeasuredMemory(run.measured_bytes, run.predicted_bytes)
        for run in runs
        if run.measured_bytes is not None and run.predicted_bytes is not None
    ]
    return memory_lesson(stated, prior) if stated and prior is not None else None


def changes_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same as changes of a job."""
    return {f"cluster.{path}": value for path, value in fields.items()}
