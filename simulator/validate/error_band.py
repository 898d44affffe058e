"""Between which times does a step lie, as far as published runs can tell?

A band is two ratios of measured to predicted step time that eight of ten runs lie between.
Runs count as they were predicted without their own source, so that a band speaks of runs
that nobody has fitted anything to; sources count alike, however many runs they publish.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simulator.spec.hardware import ErrorBand

COVERAGE = 0.8
"""Share of the runs between the ends of a band."""

FEWEST_RUNS = 10
"""Runs that a system needs for a band of its own."""


class Residual(NamedTuple):
    """How one published run was missed.

    Attributes:
        source: Where it was published.
        profile: Its system.
        ratio: Measured over predicted step time.
    """

    source: str
    profile: str
    ratio: float


def error_band(residuals: Sequence[Residual]) -> ErrorBand:
    """The band of some runs; at least one.

    Its ends are weighted quantiles of the logarithm, between runs by interpolation.
    """
    runs_of = Counter(residual.source for residual in residuals)
    ordered = sorted(residuals, key=lambda residual: residual.ratio)
    weights = np.array([1.0 / runs_of[residual.source] for residual in ordered])
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    logs = [math.log(residual.ratio) for residual in ordered]
    outside = (1.0 - COVERAGE) / 2
    low, high = np.exp(np.interp((outside, 1.0 - outside), middles, logs))
    return ErrorBand(fastest=round(float(low), 3), slowest=round(float(high), 3))


def profile_band(profile: str, residuals: Sequence[Residual]) -> ErrorBand:
    """The band of a system: of its own runs, or of all if it has too few."""
    own = [residual for residual in residuals if residual.profile == profile]
    return error_band(own if len(own) >= FEWEST_RUNS else residuals)


def covered_share(residuals: Iterable[Residual], known: Sequence[Residual]) -> float:
    """Share of runs inside the band that all other sources give their system, 0 to 1."""
    inside = []
    for residual in residuals:
        others = [other for other in known if other.source != residual.source]
        band = profile_band(residual.profile, others)
        inside.append(band.fastest <= residual.ratio <= band.slowest)
    return sum(inside) / len(inside) if inside else math.nan
