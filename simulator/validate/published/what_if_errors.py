"""How far are predicted ratios from measured ones, and what does picking by prediction cost?

A what-if asks how much one change of a job is worth; what all runs of a source have in common
(clocks, software, hosts) cancels out. Two runs of one source, of the same network on the same kind
of GPU, are one what-if: predicted slower by so much, measured slower by so much. A sweep is the
runs between which a person could choose: the same cluster, batch, length and precision.

Runs of one and the same job, on other days or with another release, are one layout, of their mean
time. Runs whose notes place them on the first and on the second cluster of a source have as little
in common as those of two sources. Only runs whose source states all that matters count (grades A
and A-).
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from simulator.cells import Row
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import PublishedResult, row_source

_GRADES = ("A", "A-")
_SAME_NETWORK = (
    "model", "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "experts", "top_k",
    "profile",
)  # fmt: skip
_SAME_CHOICE = ("gpus", "global_batch", "seq_len", "precision")
_CLUSTER = re.compile(r"\b(first|second|third) cluster\b")


@dataclass(frozen=True, slots=True)
class Layout:
    """One job that a source measured.

    Attributes:
        measured_s, predicted_s: Its step, mean over its runs [s].
    """

    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class RatioErrors:
    """Errors of predicted ratios.

    Attributes:
        pairs: Pairs of layouts.
        median_pct, p90_pct: Median and ninetieth percentile of their errors [%]; None without
            pairs.
    """

    pairs: int
    median_pct: float | None
    p90_pct: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Layouts that a person could choose between.

    Attributes:
        source, model: Whose runs of what.
        gpus, profile: On which cluster.
        layouts: How many.
        regret_pct: How much longer the layout takes that is predicted to be the fastest than the
            one that is [%].
    """

    source: str
    model: str
    gpus: str
    profile: str
    layouts: int
    regret_pct: float


def what_if_errors(results: Sequence[PublishedResult], rows: Iterable[Row]) -> dict[str, Any]:
    """Tables for JSON: ``ratios``, of all sources; ``ratios_by_source``; ``sweeps``, dearest first.

    Args:
        results: Runs, predicted; anchors do not count.
        rows: The table that they are from.
    """
    by_id = {row["id"]: row for row in rows}
    groups = _layouts(results, by_id, _SAME_NETWORK)
    errors: dict[str, list[float]] = defaultdict(list)
    for (source, *_), layouts in groups.items():
        errors[source] += ratio_errors_pct(layouts)
    everything = [error for of_source in errors.values() for error in of_source]
    found = sorted(_sweeps(results, by_id), key=lambda sweep: -sweep.regret_pct)
    regrets = [sweep.regret_pct for sweep in found]
    return {
        "ratios": {
            **asdict(_summary(everything)),
            "sweeps": len(regrets),
            "mean_regret_pct": statistics.fmean(regrets) if regrets else None,
            "worst_regret_pct": max(regrets, default=None),
        },
        "ratios_by_source": {
            source: asdict(_summary(of_source)) for source, of_source in sorted(errors.items())
        },
        "sweeps": [asdict(sweep) for sweep in found],
    }


def ratio_errors_pct(layouts: Sequence[Layout]) -> list[float]:
    """Error of the predicted ratio of every pair of layouts [%].

    The larger of predicted over measured ratio and its inverse, less one, so that it does not
    matter which layout of a pair is the first.
    """
    slower = [math.log(layout.predicted_s / layout.measured_s) for layout in layouts]
    return [100.0 * math.expm1(abs(one - other)) for one, other in combinations(slower, 2)]


def regret_pct(layouts: Sequence[Layout]) -> float:
    """How much longer the layout predicted to be the fastest takes than the fastest [%]."""
    chosen = min(layouts, key=lambda layout: layout.predicted_s)
    return 100.0 * (chosen.measured_s / min(layout.measured_s for layout in layouts) - 1.0)


def _sweeps(results: Sequence[PublishedResult], rows: Mapping[str, Row]) -> list[Sweep]:
    columns = _SAME_NETWORK + _SAME_CHOICE
    return [
        Sweep(
            source=key[0],
            model=key[1 + columns.index("model")],
            gpus=key[1 + columns.index("gpus")],
            profile=key[1 + columns.index("profile")],
            layouts=len(layouts),
            regret_pct=regret_pct(layouts),
        )
        for key, layouts in _layouts(results, rows, columns).items()
        if len(layouts) > 1
    ]


def _layouts(
    results: Sequence[PublishedResult], rows: Mapping[str, Row], same: Sequence[str]
) -> dict[tuple[str, ...], list[Layout]]:
    """Layouts by source and what they have in common."""
    groups: dict[tuple[str, ...], dict[str, list[PublishedResult]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for result in results:
        if result.measured_step_s and result.predicted_step_s and _counts(result):
            row = rows[result.id]
            common = (row.get(column) or "" for column in same)
            key = row_source(result.id), *common, _cluster(row)
            groups[key][json.dumps(job_document(row), sort_keys=True)].append(result)
    return {key: [_layout(runs) for runs in jobs.values()] for key, jobs in groups.items()}


def _cluster(row: Row) -> str:
    """Which of its source's clusters a run is on; empty where the row tells none apart."""
    found = _CLUSTER.search(row.get("notes") or "")
    return found[1] if found else ""


def _counts(result: PublishedResult) -> bool:
    return result.grade in _GRADES and not result.anchor


def _layout(runs: Sequence[PublishedResult]) -> Layout:
    measured_s = statistics.fmean(run.measured_step_s or 0.0 for run in runs)
    return Layout(measured_s, statistics.fmean(run.predicted_step_s or 0.0 for run in runs))


def _summary(errors_pct: Sequence[float]) -> RatioErrors:
    if len(errors_pct) < 2:  # quantiles need two
        only = errors_pct[0] if errors_pct else None
        return RatioErrors(len(errors_pct), only, only)
    ninetieth = statistics.quantiles(errors_pct, n=10, method="inclusive")[-1]
    return RatioErrors(len(errors_pct), statistics.median(errors_pct), ninetieth)
