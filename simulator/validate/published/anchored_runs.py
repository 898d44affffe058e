"""How much nearer are predictions once a few runs of a source are known?

Of each source the first runs, in order of their names, calibrate its systems as ``clustersim
calibrate runs`` does; the others are predicted with the systems so calibrated. Systems that none of
the first runs is on stay as they are shipped. Who calibrates knows what ran, so runs that state it
(grades A and A-) come before others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from simulator.cells import Row
from simulator.described.job import Job
from simulator.results.fit_probability import job_spread
from simulator.results.own_runs import OwnRun, changes_of, lesson
from simulator.results.step_error import framework_of, job_error, job_teaching_exposure, traits_of
from simulator.validate.published.published_runs import (
    PublishedReport,
    PublishedResult,
    Simulated,
    read_rows,
    row_source,
    simulated,
)

_GIB = 2.0**30
_STATED = ("A", "A-")
"""Grades of runs that state all that decides their step."""


def validate_anchored(
    csv_path: str | Path,
    anchors: int,
    *,
    executor: Executor | None = None,
    on_row: Callable[[PublishedResult], None] | None = None,
) -> PublishedReport:
    """Predictions for a table of training runs whose first runs of each source are known.

    Args:
        csv_path: Table with the columns described in ``reports/data/README.md``.
        anchors: Runs of each source that calibrate; those that state no step time, or one that no
            error of a prediction explains, do not count.
        executor: Where sources are simulated; in this process if None.
        on_row: Called with each finished row, for progress.

    Raises:
        InputError: The table cannot be read or lacks a column.
    """
    rows = read_rows(Path(csv_path))
    sources: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["grade"] not in _STATED, row["id"])):
        sources[row_source(row["id"])].append(row)
    longest_first = sorted(sources.values(), key=len, reverse=True)
    predict = executor.map if executor else map
    found: dict[str, PublishedResult] = {}
    for result in chain.from_iterable(predict(partial(_predicted_source, anchors), longest_first)):
        found[result.id] = result
        if on_row:
            on_row(result)
    return PublishedReport([found[row["id"]] for row in rows])


def _predicted_source(anchors: int, rows: Sequence[Row]) -> list[PublishedResult]:
    """The rows of one source, the first of them as they are, the others with what those tell."""
    known: list[Simulated] = []
    results = []
    changes: Mapping[str, Mapping[str, Any]] = {}
    for row in rows:
        found = simulated(row, adjusted=partial(_calibrated, changes))
        run = own_run(found)
        is_anchor = len(known) < anchors and run is not None and run.is_plausible
        results.append(replace(found.result, anchor=is_anchor))
        if is_anchor:
            known.append(found)
            changes = _lessons(known) if len(known) == anchors else changes
    return results


def own_run(found: Simulated) -> OwnRun | None:
    """A simulated row as one of somebody's own runs; None without a measured step."""
    result, job, step = found
    if job is None or step is None or result.measured_step_s is None:
        return None
    has_memory = result.measured_mem_gib is not None and result.predicted_mem_gib is not None
    return OwnRun(
        result.id,
        result.measured_step_s,
        step.step_time_s,
        job_teaching_exposure(job, step.step_time_s, step.breakdown_s),
        traits_of(job),
        _GIB * (result.measured_mem_gib or 0.0) if has_memory else None,
        _GIB * (result.predicted_mem_gib or 0.0) if has_memory else None,
    )


def _lessons(known: Sequence[Simulated]) -> Mapping[str, Mapping[str, Any]]:
    """What runs tell, as changes of jobs on each of their systems, by its name.

    Where they are of several frameworks, the one with most of them speaks for the system.
    """
    groups: dict[tuple[str, str], list[tuple[Job, OwnRun]]] = defaultdict(list)
    for found in known:
        run = own_run(found)
        if run is not None and found.job is not None and not found.job.cluster.pools:
            key = found.job.cluster.profile.name, framework_of(found.job)
            groups[key].append((found.job, run))
    lessons = {}
    for (system, framework), runs in sorted(groups.items(), key=lambda item: len(item[1])):
        job = runs[0][0]
        told = lesson([run for _, run in runs], job_error(job), job_spread(job))
        lessons[system] = changes_of(told.fields(job.cluster.profile, framework, len(runs)))
    return lessons


def _calibrated(changes: Mapping[str, Mapping[str, Any]], job: Job) -> Job:
    """The job on its system as it was calibrated, if it was."""
    own = changes.get(job.cluster.profile.name)
    return job if own is None or job.cluster.pools else job.replace(own)
