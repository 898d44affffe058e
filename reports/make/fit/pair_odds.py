"""How likely is one run of a source faster than another, by what all other sources tell?

Only sources count that nobody had seen when they were predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from reports.make.accuracy.what_if_odds import PairOdds
from simulator.results.ratio_error import Compared, gain_error
from simulator.results.step_error import ErrorModel

if TYPE_CHECKING:
    from reports.make.fit.fit_step_errors import SeenRun


def pair_odds(left_out: Iterable[tuple[Sequence[SeenRun], ErrorModel]]) -> list[PairOdds]:
    """The odds of every pair of runs of one source.

    Args:
        left_out: The runs of each source, and the model of errors fitted to all others.
    """
    return [
        odds
        for own, others in left_out
        for odds in _of_source([run for run in own if not run.in_view], others)
    ]


def _of_source(runs: Sequence[SeenRun], model: ErrorModel) -> Iterator[PairOdds]:
    steps = [_compared(run, model) for run in runs]
    for (run, step), (other_run, other) in combinations(zip(runs, steps, strict=True), 2):
        tokens = other_run.tokens_per_gpu / run.tokens_per_gpu
        gain = tokens * run.predicted_s / other_run.predicted_s - 1
        error = gain_error(step, other, gain, model)
        log_measured = math.log(tokens * run.measured_s / other_run.measured_s)
        low, high = error.interval
        if not error.log_gain or not log_measured:
            continue
        odds, is_faster = error.faster_probability, log_measured > 0
        yield PairOdds(
            run.source,
            max(odds, 1 - odds),
            is_faster if odds >= 0.5 else not is_faster,
            low <= math.expm1(log_measured) <= high,
        )


def _compared(run: SeenRun, model: ErrorModel) -> Compared:
    return Compared(
        run.profile,
        run.framework,
        run.has_experts,
        run.error(model),
        np.minimum(run.exposed, 1.0),
        run.traits,
    )
