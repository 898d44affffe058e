"""Do predictions put the layouts of a sweep in the right order?

A sweep is what one source measured of one model on one cluster. Who plans a run needs the
order of the layouts more than their seconds. Runs of one and the same job, on other days or with
another release, are one layout, of their mean time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator import cells
from simulator.cells import Row
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import PublishedResult, row_source

if TYPE_CHECKING:
    import pandas as pd

FEWEST_LAYOUTS = 8
"""Layouts that a group needs to count as a sweep."""

TOP = 3
"""The truly fastest layout should be among so many predicted as fastest."""

_SWEEP_COLUMNS = ("layers", "hidden", "ffn_hidden", "profile", "gpus")


@dataclass(frozen=True, slots=True)
class SweepRanking:
    """How well one sweep is ranked, by time per token.

    Attributes:
        name: Source, model and cluster.
        layouts: Different layouts in the sweep.
        spearman: Rank correlation of predicted and measured.
        finds_fastest: Whether the truly fastest is among the :data:`TOP` predicted fastest.
    """

    name: str
    layouts: int
    spearman: float
    finds_fastest: bool


def sweep_rankings(results: Sequence[PublishedResult], rows: dict[str, Row]) -> list[SweepRanking]:
    """The ranking of every sweep of at least :data:`FEWEST_LAYOUTS` predicted layouts."""
    sweeps: dict[tuple[str, ...], list[PublishedResult]] = {}
    for result in results:
        if result.measured_step_s is not None and result.predicted_step_s is not None:
            row = rows[result.id]
            key = (row_source(result.id), *(row[column] for column in _SWEEP_COLUMNS))
            sweeps.setdefault(key, []).append(result)
    rankings = (_ranking(sweep, rows) for sweep in sweeps.values() if len(sweep) >= FEWEST_LAYOUTS)
    return [ranking for ranking in rankings if ranking.layouts >= FEWEST_LAYOUTS]


def _ranking(sweep: Sequence[PublishedResult], rows: dict[str, Row]) -> SweepRanking:
    first = rows[sweep[0].id]
    layouts = _layouts(sweep, rows)
    fastest = layouts["measured"].idxmin()
    ranks = layouts.rank()
    return SweepRanking(
        name=f"{row_source(sweep[0].id)}, {first['layers']} layers of {first['hidden']}, "
        f"{first['gpus']} x {first['profile']}",
        layouts=len(layouts),
        spearman=float(ranks["measured"].corr(ranks["predicted"])),
        finds_fastest=bool(fastest in layouts["predicted"].nsmallest(TOP).index),
    )


def _layouts(sweep: Sequence[PublishedResult], rows: dict[str, Row]) -> pd.DataFrame:
    """Columns measured and predicted: seconds per token, mean over the runs of each layout."""
    import pandas as pd

    runs = [
        {
            "job": json.dumps(job_document(rows[run.id]), sort_keys=True),
            "measured": (run.measured_step_s or 0.0) / tokens,
            "predicted": (run.predicted_step_s or 0.0) / tokens,
        }
        for run in sweep
        for row in [rows[run.id]]
        for tokens in [cells.whole(row, "global_batch") * cells.tokens(row, "seq_len")]
    ]
    return pd.DataFrame(runs).groupby("job").mean()
