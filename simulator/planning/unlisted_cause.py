"""How likely is what was measured, if something is the matter that nobody has listed?

Such a cause moves parts of a step and the memory, and nobody knows which and by how much. So the
likelihood is a mean over patterns (no part, all by one factor, one part, two, or each part by its
own factor), over sizes from a tenth to a factor of twenty, and over whether memory moves with them.
All are taken to be equally common (assumption). Its tails are wide: a run that no listed change
explains is not ascribed to the one that is least wrong.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.planning.observed_run import Observation, PredictionErrors, Simulated

_SIZES = (0.1, 0.3, 1.0, 3.0)
"""Standard deviations of the logarithm by which something moves (assumption)."""

Array = NDArray[np.float64]


def unlisted_log_likelihood(
    observation: Observation, job: Job, result: Simulated, errors: PredictionErrors
) -> float:
    """Logarithm of the density of what was measured, over that of the median prediction error.

    On this scale a simulated step that leaves a ``surprise`` s has a log-likelihood of -s/2.

    Args:
        observation: What was measured of the run.
        job: What is said to have run.
        result: Its prediction.
        errors: How far predictions are off beside what the cause moves.
    """
    shares, misses = observation.missed_shares(job, result, errors.smallest_share)
    usual = errors.covariance(shares)
    usual_width = float(np.linalg.slogdet(usual)[1])
    usual_time = _log_densities(usual[None], misses, usual_width)[0]
    moved_time = _log_mean(
        [
            _log_mean(list(_log_densities(usual + size**2 * moved, misses, usual_width)))
            for size in _SIZES
            for moved in _moves(shares)
        ]
    )
    if observation.memory_bytes is None:
        return moved_time
    miss = observation.memory_miss(result, errors)
    usual_memory = -((miss / errors.memory) ** 2) / 2
    moved_memory = _log_mean([_log_density(miss, size, errors.memory) for size in _SIZES])
    return _log_mean(
        [moved_time + usual_memory, moved_time + moved_memory, usual_time + moved_memory]
    )


def _moves(shares: Array) -> list[Array]:
    """Covariances of misses where parts move by a factor of e, each of shape (ways, parts, parts).

    All parts by one factor; where there are several, any one, any two, and each by its own.
    """
    num_parts = len(shares)
    together = np.outer(shares, shares)[None]
    if num_parts == 1:
        return [together]
    alone = [_moves_alone(shares, how_many) for how_many in sorted({1, 2, num_parts})]
    return [together, *alone]


def _moves_alone(shares: Array, how_many: int) -> Array:
    """The same where so many parts move, each by its own factor; one entry for each choice."""
    chosen = list(combinations(range(len(shares)), how_many))
    moved = np.zeros((len(chosen), len(shares)))
    for row, parts in zip(moved, chosen, strict=True):
        row[list(parts)] = shares[list(parts)] ** 2
    return np.asarray(moved[:, :, None] * np.eye(len(shares)))


def _log_densities(covariances: Array, misses: Array, usual_width: float) -> Array:
    """Of misses, for each covariance, over that of no miss at the usual width; shape (ways,)."""
    _, widths = np.linalg.slogdet(covariances)
    many = np.broadcast_to(misses[:, None], (len(covariances), len(misses), 1))
    squares = (np.linalg.solve(covariances, many)[:, :, 0] * misses).sum(axis=1)
    return np.asarray((usual_width - widths - squares) / 2)


def _log_density(miss: float, moved: float, usual: float) -> float:
    """The same of one number with a standard deviation of ``moved`` beside the usual one."""
    wide = math.hypot(moved, usual)
    return math.log(usual / wide) - (miss / wide) ** 2 / 2


def _log_mean(logarithms: list[float]) -> float:
    """Logarithm of the mean of numbers that are given by their logarithms."""
    return float(np.logaddexp.reduce(logarithms)) - math.log(len(logarithms))
