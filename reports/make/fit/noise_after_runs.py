"""How far do runs spread about what the first runs of their source tell?

The first run, or the first three, of each source are learnt from as ``clustersim calibrate runs``
does; the others are held against the bands that are left. They are more often of other layouts than
the model of errors knows, so what is of a single run is taken so much wider that eight of ten lie
inside, sources and both numbers of first runs counting the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from reports.make.accuracy.own_runs_section import LearntRun
from simulator.results.own_runs import OwnRun, lesson
from simulator.results.step_error import COVERAGE, ErrorModel
from simulator.validate.published.published_runs import row_source

if TYPE_CHECKING:
    from reports.make.fit.fit_step_errors import SeenRun

_FIRST_RUNS = (1, 3)
_WIDEST = 4.0
_STEP = 0.1


def noise_after_runs(runs: Sequence[SeenRun], model: ErrorModel) -> float:
    """The least factor of the noise with which bands hold as many runs as they promise."""
    for factor in np.arange(1.0, _WIDEST, _STEP).tolist():
        if covered_share(runs, replace(model, noise_after_runs=factor)) >= COVERAGE:
            return float(round(factor, 1))
    return _WIDEST


def covered_share(runs: Sequence[SeenRun], model: ErrorModel) -> float:
    """Least share of later runs inside their bands, sources or runs counting the same."""
    shares = []
    for first in _FIRST_RUNS:
        by_source: dict[str, list[bool]] = defaultdict(list)
        for run in _after_first(runs, first, model):
            by_source[row_source(run.id)].append(run.is_inside)
        shares.append(float(np.mean([np.mean(inside) for inside in by_source.values()])))
        shares.append(float(np.mean([one for inside in by_source.values() for one in inside])))
    return min(shares)


def learnt_runs(runs: Sequence[SeenRun], model: ErrorModel) -> Iterator[LearntRun]:
    """The runs after the first one, and after the first three, with what these tell."""
    for first in _FIRST_RUNS:
        yield from _after_first(runs, first, model)


def _after_first(runs: Sequence[SeenRun], first: int, model: ErrorModel) -> Iterator[LearntRun]:
    systems: dict[tuple[str, str, str], list[SeenRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.id):
        systems[run.source, run.profile, run.framework].append(run)
    for own in systems.values():
        if len(own) > first:
            yield from _learnt(own[:first], own[first:], model)


def _learnt(
    first: Sequence[SeenRun], later: Sequence[SeenRun], model: ErrorModel
) -> Iterator[LearntRun]:
    """Later runs with what the first ones tell."""
    prior = model.learning(model.error_of(first[0].numbers, first[0].framework))
    own = [OwnRun(run.id, run.measured_s, run.predicted_s, run.teaching) for run in first]
    told = lesson(own, prior)
    for run in later:
        learnt_s = run.predicted_s * math.exp(told.log_slowness(run.teaching))
        ends = told.error.band(run.exposed)
        yield LearntRun(run.id, len(first), run.measured_s, run.predicted_s, learnt_s, *ends)
