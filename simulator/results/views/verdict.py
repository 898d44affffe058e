"""What is a step bound by, in one sentence?

A step is limited by the *capacity* of memory where a simulated change would be faster than
anything that fits, but does not fit. Otherwise it is bound by what takes the most time of the mean
rank: computing passes, the optimizer, exposed communication, the pipeline bubble, or the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.program.ir import Category
from simulator.results.fit_probability import misfit_text
from simulator.results.step import StepResult
from simulator.units import format_bytes, percent

LEAST_SHARE = 0.0005
"""A smaller share of a step reads as 0.0 %: a change that gains it is no advice."""


@dataclass(frozen=True)
class WhatIf:
    """One change of a job and its simulated result.

    Attributes:
        words: The change in words, such as ``raising microbatches from 8 to 16``.
        changes: New values by dotted path, ready for :meth:`Job.replace`.
        gain: Relative gain in tokens per second; negative if slower.
        step_time_s: Step time of the changed job [s].
        peak_device_bytes: Device memory of its fullest GPU [B].
        fits_probability: Probability that it fits, 0 to 1.
        fits: Whether that probability is high enough to recommend the change.
    """

    words: str
    changes: Mapping[str, object]
    gain: float
    step_time_s: float
    peak_device_bytes: float
    fits_probability: float
    fits: bool


@dataclass(frozen=True)
class Influence:
    """How much one number of the hardware profile decides.

    Attributes:
        path: The number, as the profile's file writes it.
        slower_share: How much longer the step is where the number is a tenth worse.
        kind: Where the number comes from, such as ``fitted``.
        reference: Document, table or measurement.
    """

    path: str
    slower_share: float
    kind: str
    reference: str


@dataclass(frozen=True)
class Advice:
    """Verdict and recommended changes for a step.

    Attributes:
        verdict: One sentence: what limits the step, where time is lost, what would help.
        misfit: Why the job does not fit and what would fit; empty if it fits.
        what_ifs: Single changes with an effect, largest gain first.
        influences: Numbers of the profile with the largest effect on the step, largest first.
    """

    verdict: str
    misfit: str = ""
    what_ifs: tuple[WhatIf, ...] = ()
    influences: tuple[Influence, ...] = ()


_WORTH = 0.005
"""Gains below this share are within the noise of any prediction. Assumption."""
_WORTH_MENTIONING = 0.03
_COMPUTING = (Category.FORWARD, Category.BACKWARD, Category.RECOMPUTE)
_NEARLY_FULL = 0.9


def verdict(result: StepResult, what_ifs: Sequence[WhatIf] = ()) -> str:
    """A sentence: what binds the step, what it loses, and which change gains most."""
    parts = [_bound_by(result, what_ifs), *_losses(result), *_fullness(result)]
    best = max((w for w in what_ifs if w.fits), key=lambda w: w.gain, default=None)
    if result.fits and best is not None and best.gain >= _WORTH:
        parts.append(f"{best.words} gains {_percent(best.gain)}")
    elif result.fits and what_ifs:
        parts.append(f"none of the {len(what_ifs)} simulated single changes is faster")
    return "; ".join(parts) + "."


def _bound_by(result: StepResult, what_ifs: Sequence[WhatIf]) -> str:
    fullest = result.fullest
    need, capacity = fullest.peak_device_bytes, fullest.capacity_bytes
    if not result.fits:
        begin = f"{misfit_text(result.fits_probability)}:"
        if need > capacity:
            excess = format_bytes(need - capacity)
            return f"{begin} {_holder(result)} needs {excess} more than its capacity"
        if result.host is None or result.host.fits:
            return f"{begin} {_holder(result)} needs {format_bytes(need)} of its capacity"
        return f"{begin} a node needs more host memory or drive space than it has"
    within = max((w.gain for w in what_ifs if w.fits), default=0.0)
    beyond = max((w for w in what_ifs if not w.fits), key=lambda w: w.gain, default=None)
    if beyond is not None and beyond.gain >= max(within, 0.0) + _WORTH:
        return (
            f"Limited by memory capacity{_on_stage(result)}: {beyond.words} would gain "
            f"{_percent(beyond.gain)} but needs {format_bytes(beyond.peak_device_bytes)} "
            f"of {format_bytes(capacity)}, which fits with a probability of "
            f"{percent(beyond.fits_probability, 0)}"
        )
    shares = _shares(result)
    name = max(shares, key=lambda name: shares[name])
    return f"{name.capitalize()}-bound: {_percent(shares[name])} of the step"


def _shares(result: StepResult) -> dict[str, float]:
    spent = result.breakdown_s
    seconds = {
        "compute": math.fsum(spent.get(category, 0.0) for category in _COMPUTING),
        "optimizer": spent.get(Category.OPTIMIZER, 0.0),
        "communication": math.fsum(result.exposed_comm_s.values()),
        "bubble": spent.get(Category.BUBBLE, 0.0),
        "host": spent.get(Category.HOST, 0.0),
    }
    return {name: value / result.step_time_s for name, value in seconds.items()}


def _losses(result: StepResult) -> list[str]:
    """What keeps the GPUs from computing, where it is worth a word."""
    step_s, exposed = result.step_time_s, result.exposed_comm_s
    said = []
    if result.bubble_fraction >= _WORTH:
        said.append(f"{_percent(result.bubble_fraction)} bubble")
    share = math.fsum(exposed.values()) / step_s
    if share >= _WORTH:
        largest = max(exposed, key=lambda category: exposed[category])
        name = largest.value.replace("_", "-")
        said.append(f"{_percent(share)} exposed communication, most of it {name}")
    for category, words in (
        (Category.RECOMPUTE, "recomputation"),
        (Category.OPTIMIZER, "optimizer"),
    ):
        share = result.breakdown_s.get(category, 0.0) / step_s
        if share >= _WORTH_MENTIONING:
            said.append(f"{_percent(share)} {words}")
    return said


def _fullness(result: StepResult) -> list[str]:
    share = result.fullest.filled_share
    if _NEARLY_FULL <= share <= 1:
        return [f"{_holder(result)} fills {_percent(share)} of its memory"]
    return []


def _holder(result: StepResult) -> str:
    return f"stage {result.fullest.stage}" if _has_stages(result) else "a GPU"


def _on_stage(result: StepResult) -> str:
    return f" on stage {result.fullest.stage}" if _has_stages(result) else ""


def _has_stages(result: StepResult) -> bool:
    return any(memory.stage > 0 for memory in result.memory)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
