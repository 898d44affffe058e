"""Do predictions put the layouts of a sweep in the right order?

A sweep is what one source measured of one model on one cluster with one framework. Who plans a run
needs the order of the layouts more than their seconds, and what the layout predicted as fastest
loses against the truly fastest. Runs of one and the same job, on other days or with another
release, are one layout, of their mean time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reports.make.accuracy.band_coverage import Banded
from simulator.validate.published.published_runs import row_source

if TYPE_CHECKING:
    import pandas as pd

FEWEST_LAYOUTS = 4
"""Layouts that a group needs to count as a sweep."""

TOP = 3
"""The truly fastest layout should be among so many predicted as fastest."""


@dataclass(frozen=True, slots=True)
class SweepRanking:
    """How well one sweep is ranked, by time per token.

    Attributes:
        name: Source, model and cluster.
        layouts: Different layouts in the sweep.
        spearman: Rank correlation of predicted and measured.
        finds_fastest: Whether the truly fastest is among the :data:`TOP` predicted fastest.
        loss: How much longer the layout predicted as fastest takes than the truly fastest, as a
            share.
    """

    name: str
    layouts: int
    spearman: float
    finds_fastest: bool
    loss: float


def sweep_rankings(
    runs: Sequence[Banded], documents: Mapping[str, Mapping[str, Any]]
) -> list[SweepRanking]:
    """The ranking of every sweep of at least :data:`FEWEST_LAYOUTS` layouts.

    Args:
        runs: Measured and predicted.
        documents: The job of each run, by id.
    """
    sweeps: dict[tuple[str, ...], list[Banded]] = {}
    for run in runs:
        document = documents[run.id]
        same = (document["model"], document["cluster"], run.framework)
        sweep = (row_source(run.id), *map(_text, same))
        sweeps.setdefault(sweep, []).append(run)
    rankings = (_ranking(sweep, documents) for sweep in sweeps.values())
    return [ranking for ranking in rankings if ranking.layouts >= FEWEST_LAYOUTS]


def _ranking(sweep: Sequence[Banded], documents: Mapping[str, Mapping[str, Any]]) -> SweepRanking:
    document = documents[sweep[0].id]
    layouts = _layouts(sweep, documents)
    fastest, picked = layouts["measured"].idxmin(), layouts["predicted"].argmin()
    ranks = layouts.rank()
    return SweepRanking(
        name=f"{row_source(sweep[0].id)}, {document['model']['name']}, "
        f"{document['cluster']['gpus']} x {document['cluster']['profile']}",
        layouts=len(layouts),
        spearman=float(ranks["measured"].corr(ranks["predicted"])),
        finds_fastest=bool(fastest in layouts["predicted"].nsmallest(TOP).index),
        loss=float(layouts["measured"].iloc[picked] / layouts["measured"].min() - 1.0),
    )


def _layouts(sweep: Sequence[Banded], documents: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Columns measured and predicted: seconds per token, mean over the runs of each layout."""
    import pandas as pd

    runs = [
        {
            "job": _text({part: document[part] for part in ("batch", "plan")}),
            "measured": run.measured_step_s / tokens,
            "predicted": run.predicted_step_s / tokens,
        }
        for run in sweep
        for document in [documents[run.id]]
        for tokens in [document["batch"]["global"] * document["batch"]["seq_len"]]
    ]
    return pd.DataFrame(runs).groupby("job").mean()


def _text(node: object) -> str:
    return json.dumps(node, sort_keys=True)
