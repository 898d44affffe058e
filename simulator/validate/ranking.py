"""Do predictions put the layouts of a sweep in the right order?

A sweep is what one source measured of one model on one cluster. Who plans a run needs the
order of the layouts more than their seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.validate.published import PublishedResult, row_source
from simulator.validate.published_rows import Row

FEWEST_LAYOUTS = 8
"""Runs that a group needs to count as a sweep."""

TOP = 3
"""The truly fastest layout should be among so many predicted as fastest."""

_SWEEP_COLUMNS = ("layers", "hidden", "ffn_hidden", "profile", "gpus")


@dataclass(frozen=True, slots=True)
class SweepRanking:
    """How well one sweep is ranked, by time per token.

    Attributes:
        name: Source, model and cluster.
        layouts: Runs in the sweep.
        spearman: Rank correlation of predicted and measured.
        finds_fastest: Whether the truly fastest is among the :data:`TOP` predicted fastest.
    """

    name: str
    layouts: int
    spearman: float
    finds_fastest: bool


def sweep_rankings(results: Sequence[PublishedResult], rows: dict[str, Row]) -> list[SweepRanking]:
    """The ranking of every sweep of at least :data:`FEWEST_LAYOUTS` predicted runs."""
    sweeps: dict[tuple[str, ...], list[PublishedResult]] = {}
    for result in results:
        if result.measured_step_s is not None and result.predicted_step_s is not None:
            row = rows[result.id]
            key = (row_source(result.id), *(row[column] for column in _SWEEP_COLUMNS))
            sweeps.setdefault(key, []).append(result)
    return [_ranking(sweep, rows) for sweep in sweeps.values() if len(sweep) >= FEWEST_LAYOUTS]


def _ranking(sweep: Sequence[PublishedResult], rows: dict[str, Row]) -> SweepRanking:
    import pandas as pd

    first = rows[sweep[0].id]
    tokens = [float(rows[r.id]["global_batch"]) * float(rows[r.id]["seq_len"]) for r in sweep]
    frame = pd.DataFrame(
        {
            "measured": [
                (r.measured_step_s or 0.0) / t for r, t in zip(sweep, tokens, strict=True)
            ],
            "predicted": [
                (r.predicted_step_s or 0.0) / t for r, t in zip(sweep, tokens, strict=True)
            ],
        }
    )
    fastest = frame["measured"].idxmin()
    ranks = frame.rank()
    return SweepRanking(
        name=f"{row_source(sweep[0].id)}, {first['layers']} layers of {first['hidden']}, "
        f"{first['gpus']} x {first['profile']}",
        layouts=len(sweep),
        spearman=float(ranks["measured"].corr(ranks["predicted"])),
        finds_fastest=bool(fastest in frame["predicted"].nsmallest(TOP).index),
    )
