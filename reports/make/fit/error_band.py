"""Between which times does a step lie, as far as published runs can tell?

A band is two ratios of measured to predicted step time that eight of ten runs lie between,
runs of a source that nothing was fitted to. How far off a prediction is has two parts:
what is common to all runs of a source (its software, its cooling, how it took the time) and
how its runs differ among themselves. With few sources the first is known least, so the ends are
those of a prediction interval: the fewer the sources, the wider.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simulator.described.cluster.hardware import ErrorBand

COVERAGE = 0.8
"""Share of the runs between the ends of a band."""

FEWEST_RUNS = 10
"""Runs that a system needs for a band of its own."""

FEWEST_SOURCES = 2
"""Sources that a band needs: of one source nobody knows how another would differ."""


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
    """The band of a run of a further source; of at least two sources. Needs scipy.

    The prediction interval of a random-effects model, of the logarithms: the mean of the means
    of the k sources, plus and minus Student's t times the square root of the variance of a
    further run, ``(1 + 1/k) between + within``. ``between`` is the variance of the sources'
    means, ``within`` that of runs about the mean of their source. Sources count the same, however
    many runs they publish. Source: J. P. T. Higgins, S. G. Thompson, D. J. Spiegelhalter, "A
    re-evaluation of random-effects meta-analysis", J. R. Stat. Soc. A 172 (2009), with the
    variance of a run of the new source added to that of its mean; degrees of freedom of the sum
    of the two: F. E. Satterthwaite, Biometrics Bulletin 2 (1946). Ignores that the mean of few
    runs is itself uncertain, which makes ``between`` too large.
    """
    from scipy.stats import t as students_t  # heavy; only fits and their reports need it

    logs_of: dict[str, list[float]] = defaultdict(list)
    for residual in residuals:
        logs_of[residual.source].append(math.log(residual.ratio))
    means = np.array([np.mean(logs) for logs in logs_of.values()])
    freedom = np.array((len(means) - 1, max(1, len(residuals) - len(means))))
    squares = sum(float(np.var(logs)) * len(logs) for logs in logs_of.values())
    between = (1.0 + 1.0 / len(means)) * float(means.var(ddof=1))
    variances = np.array((between, squares / freedom[1]))
    half_width = 0.0
    if variances.any():
        joint_freedom = variances.sum() ** 2 / (variances**2 / freedom).sum()
        reach = students_t.ppf((1.0 + COVERAGE) / 2, joint_freedom)
        half_width = reach * math.sqrt(variances.sum())
    fastest, slowest = np.exp(means.mean() + np.array((-half_width, half_width)))
    return ErrorBand(fastest=round(float(fastest), 3), slowest=round(float(slowest), 3))


def has_own_band(own: Sequence[Residual]) -> bool:
    """Whether the runs of a system are enough for a band of its own."""
    sources = {residual.source for residual in own}
    return len(own) >= FEWEST_RUNS and len(sources) >= FEWEST_SOURCES


def profile_band(profile: str, residuals: Sequence[Residual]) -> ErrorBand:
    """The band of a system: of its own runs, or of all if those are too few."""
    own = [residual for residual in residuals if residual.profile == profile]
    return error_band(own if has_own_band(own) else residuals)


def covered_share(residuals: Iterable[Residual], known: Sequence[Residual]) -> float:
    """Share of runs inside the band that all other sources give their system, 0 to 1.

    Only of runs beside which there are sources enough for a band; NaN if there are none.
    """
    inside = []
    for residual in residuals:
        others = [other for other in known if other.source != residual.source]
        if len({other.source for other in others}) >= FEWEST_SOURCES:
            band = profile_band(residual.profile, others)
            inside.append(band.fastest <= residual.ratio <= band.slowest)
    return sum(inside) / len(inside) if inside else math.nan
