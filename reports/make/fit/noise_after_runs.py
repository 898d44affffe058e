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
    systems: dict[tuple[str, str, str], list[SeenRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.id):
        systems[row_source(run.id), run.profile, run.framework].append(run)
    shares = []
    for first in _FIRST_RUNS:
        by_source: dict[str, list[bool]] = defaultdict(list)
        for (source, *_), own in systems.items():
            if len(own) > first:
                by_source[source] += _inside(own[:first], own[first:], model)
        shares.append(float(np.mean([np.mean(inside) for inside in by_source.values()])))
        shares.append(float(np.mean([one for inside in by_source.values() for one in inside])))
    return min(shares)


def _inside(
    first: Sequence[SeenRun], later: Sequence[SeenRun], model: ErrorModel
) -> Iterator[bool]:
    """Whether later runs lie in the band that the first ones leave."""
    prior = model.learning(model.error_of(first[0].numbers, first[0].framework))
    own = [OwnRun(run.id, run.measured_s, run.predicted_s, run.exposed) for run in first]
    told = lesson(own, prior, memory_spread=0.0)
    for run in later:
        _, slowest = told.error.band(run.exposed)
        yield abs(run.log_ratio - told.log_slowness(run.exposed)) <= math.log(slowest)
