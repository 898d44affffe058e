"""How far is the predicted effect of a change from the measured one?

Two runs of one source tell what a change did. What the source has in common (its software, its
clocks, its hosts) is in both steps and leaves their ratio alone, as it does when a user asks what
a change of a run of his own would gain. All steps are predicted without their source.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from reports.make.accuracy.band_coverage import Banded
from simulator.described.job import dotted_fields
from simulator.validate.published.published_runs import row_source

PLAN_AND_BATCH = "plan and batch only, any number of changes"
"""Pairs of one model on one cluster: what a search of plans chooses from."""

_BATCH = frozenset({"microbatch", "global batch"})
_SCALE = frozenset({"number of GPUs", "global batch"})

_CHANGES = {
    "model": "model",
    "cluster.gpus": "number of GPUs",
    "cluster": "GPU or network",
    "batch.micro": "microbatch",
    "batch.global": "global batch",
    "batch": "sequence length",
    "plan.tp": "tensor parallelism",
    "plan.sequence_parallel": "tensor parallelism",
    "plan.pp": "pipeline",
    "plan.vpp": "pipeline",
    "plan.schedule": "pipeline",
    "plan.cp": "context parallelism",
    "plan.ep": "expert parallelism",
    "plan.etp": "expert parallelism",
    "plan.zero": "ZeRO stage",
    "plan.zero_group": "ZeRO stage",
    "plan.recompute": "recompute",
    "plan.recompute_modules": "recompute",
    "plan.recompute_layers": "recompute",
    "plan.precision": "precision",
    "plan.grad_reduce_precision": "precision",
    "plan.stack": "software",
    "plan": "another word of the plan",
}
"""What a change of a field is called, by the longest beginning of its path that is named."""

_ELSEWHERE = frozenset({"model", "GPU or network", "number of GPUs", "software"})


class Pair(NamedTuple):
    """Two runs of one source.

    Attributes:
        first, second: Ids.
        change: What differs, if it is one thing; empty if it is more.
        is_plan_only: Whether model, cluster and software are the same.
        measured, predicted: Time of a token of the second run, in those of the first.
    """

    first: str
    second: str
    change: str
    is_plan_only: bool
    measured: float
    predicted: float

    @property
    def error_pct(self) -> float:
        """How far the predicted ratio is off; the same whichever run comes first [%]."""
        return 100.0 * math.expm1(abs(math.log(self.predicted / self.measured)))


class RatioErrors(NamedTuple):
    """How far ratios are off, of some pairs.

    Attributes:
        pairs, sources: Their numbers.
        median_pct, p90_pct: Over pairs.
        by_source_median_pct: Median over sources of the median of each.
    """

    pairs: int
    sources: int
    median_pct: float
    p90_pct: float
    by_source_median_pct: float

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> RatioErrors:
        """Of at least one pair."""
        by_source: dict[str, list[float]] = defaultdict(list)
        for pair in pairs:
            by_source[row_source(pair.first)].append(pair.error_pct)
        errors = [pair.error_pct for pair in pairs]
        return cls(
            len(pairs),
            len(by_source),
            float(np.median(errors)),
            float(np.quantile(errors, 0.9)),
            float(np.median([np.median(own) for own in by_source.values()])),
        )


def run_pairs(runs: Sequence[Banded], documents: Mapping[str, Mapping[str, Any]]) -> list[Pair]:
    """All pairs of different jobs within each source.

    Args:
        runs: Runs, predicted without their source.
        documents: The job of each run, by id.
    """
    by_source: dict[str, list[Banded]] = defaultdict(list)
    for run in runs:
        by_source[row_source(run.id)].append(run)
    fields = {run.id: _telling_fields(documents[run.id]) for run in runs}
    tokens = {run.id: _tokens(documents[run.id]) for run in runs}
    return [
        _pair(first, second, changes, tokens[second.id] / tokens[first.id])
        for own in by_source.values()
        for first, second in combinations(own, 2)
        if (changes := _changes(fields[first.id], fields[second.id]))
    ]


def _pair(first: Banded, second: Banded, changes: frozenset[str], tokens: float) -> Pair:
    return Pair(
        first.id,
        second.id,
        _one_change(changes),
        not changes & _ELSEWHERE,
        second.measured_step_s / first.measured_step_s / tokens,
        second.predicted_step_s / first.predicted_step_s / tokens,
    )


def _tokens(document: Mapping[str, Any]) -> float:
    """Of one step."""
    return float(document["batch"]["global"] * document["batch"]["seq_len"])


def _one_change(changes: frozenset[str]) -> str:
    """The one change, where a batch that grows with the GPUs or the microbatch belongs to them."""
    if len(changes) > 1 and changes in (_BATCH, _SCALE):
        changes = changes - {"global batch"}
    return next(iter(changes)) if len(changes) == 1 else ""


def _changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> frozenset[str]:
    paths = (path for path in {**first, **second} if first.get(path) != second.get(path))
    return frozenset(_name(path) for path in paths)


def _name(path: str) -> str:
    while path not in _CHANGES:
        path = path.rpartition(".")[0]
    return _CHANGES[path]


def _telling_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a job by dotted path, without the name of its model, which changes nothing."""
    return {path: value for path, value in dotted_fields(document) if path != "model.name"}
