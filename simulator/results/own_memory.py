"""What does the memory of own runs say of other jobs on their system?

What GPUs hold beyond the prediction is a part that all jobs hold, beside their tensors, and a share
of what is predicted. One run cannot tell them apart: what is larger than contexts are is most
likely a share, and grows with the job. Runs narrow how far predictions are off for their framework,
and the odds of fitting with it.

Source: Bayes' rule for a linear model with Gaussian prior, its scale that of the multivariate t;
``simulator/facts/own_memory.yaml``. Ignores that the two parts are not told apart once known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.facts import shipped_facts
from simulator.results.fit_probability import MemorySpread
from simulator.units import parse_quantity

_LEAST_OPEN = 0.01
"""Least part of a spread that the system is behind, as a standard deviation (assumption)."""


class MeasuredMemory(NamedTuple):
    """Memory of the fullest GPU of a run, predicted and measured, of the same kind [B]."""

    measured_bytes: float
    predicted_bytes: float


class MemoryLesson(NamedTuple):
    """What memory of runs tells.

    Attributes:
        context_bytes: What every GPU holds beyond what is predicted [B].
        spread: How far predictions are off beside that.
        runs: How many runs told it.
    """

    context_bytes: float
    spread: MemorySpread
    runs: int


def memory_lesson(runs: Sequence[MeasuredMemory], prior: MemorySpread) -> MemoryLesson:
    """What the memory of runs tells, of at least one.

    Args:
        runs: Of one system and framework.
        prior: What was known of predictions for it before.
    """
    facts = shipped_facts("own_memory")
    noise, context_bytes = facts["noise"], parse_quantity(facts["context"]["value"], "bytes")
    share_open = math.sqrt(max(prior.scale**2 - noise**2, _LEAST_OPEN**2))
    measured, predicted = np.array(runs).T
    slopes = np.stack([np.full(len(runs), context_bytes), predicted], axis=1)
    expected = np.array([0.0, math.expm1(prior.centre)])
    common = np.diag([1.0, share_open**2])
    own = np.diag((noise * predicted) ** 2)
    covariance = slopes @ common @ slopes.T + own
    apart = measured - predicted - slopes @ expected
    gain = np.linalg.solve(covariance, slopes @ common).T
    contexts, share = (expected + gain @ apart).tolist()
    left = float((common - gain @ slopes @ common)[1, 1])
    distance = float(apart @ np.linalg.solve(covariance, apart))
    freedom = prior.freedom + len(runs)
    scale = math.sqrt((prior.freedom + distance) / freedom * (left / (1 + share) ** 2 + noise**2))
    spread = MemorySpread(scale, freedom, math.log1p(max(share, -0.5)))
    return MemoryLesson(contexts * context_bytes, spread, len(runs))
