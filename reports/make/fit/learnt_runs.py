"""How near are later runs of a source once its first ones are known?

The first run, or the first three, of each source are learnt from as ``clustersim calibrate runs``
does; the others are held against the predictions and the bands that follow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from reports.make.accuracy.own_runs_section import LearntRun
from simulator.results.own_runs import OwnRun, lesson
from simulator.results.step_error import ErrorModel

if TYPE_CHECKING:
    from reports.make.fit.fit_step_errors import SeenRun

_FIRST_RUNS = (1, 3)


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
    own = [
        OwnRun(run.id, run.measured_s, run.predicted_s, run.teaching, run.traits) for run in first
    ]
    told = lesson(own, first[0].error(model))
    for run in later:
        learnt_s = run.predicted_s * math.exp(told.log_slowness(run.teaching))
        ends = told.error.band(run.exposed, run.computed)
        yield LearntRun(run.id, len(first), run.measured_s, run.predicted_s, learnt_s, *ends)
