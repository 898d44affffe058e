"""How often is the run the faster one that is predicted to be?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from reports.make.tables import markdown_table, write_table
from simulator.cells import read_table
from simulator.results.step_error import COVERAGE

ODDS_FILE = "what_if_odds.csv"

COLUMNS = ("source", "odds_from", "pairs", "odds", "right_share", "inside_share")
"""Of the file: pairs of one source whose odds are alike."""

_STARTS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Odds are counted together from each of these to the next."""


class PairOdds(NamedTuple):
    """Two runs of one source.

    Attributes:
        source: Where they are published.
        odds: How likely the one that is predicted faster is, 0.5 to 1.
        is_right: Whether it is.
        is_inside: Whether the measured gain lies in its 80 % interval.
    """

    source: str
    odds: float
    is_right: bool
    is_inside: bool


class OddsGroup(NamedTuple):
    """Pairs of one source whose odds are alike.

    Attributes:
        odds_from: Least odds of the group.
        pairs: Their number.
        odds, right_share, inside_share: Means.
    """

    source: str
    odds_from: float
    pairs: int
    odds: float
    right_share: float
    inside_share: float


def write_odds(pairs: Iterable[PairOdds], path: Path) -> None:
    """Pairs by source and odds."""
    groups: dict[tuple[str, float], list[PairOdds]] = defaultdict(list)
    for pair in pairs:
        groups[pair.source, max(start for start in _STARTS if start <= pair.odds)].append(pair)
    rows = (
        (*group, len(own), *map(fmean, zip(*(pair[1:] for pair in own), strict=True)))
        for group, own in sorted(groups.items())
    )
    write_table(path, COLUMNS, rows)


def read_odds(path: Path) -> list[OddsGroup]:
    """The groups of a file."""
    return [
        OddsGroup(
            row["source"],
            float(row["odds_from"]),
            int(row["pairs"]),
            *(float(row[name]) for name in COLUMNS[3:]),
        )
        for row in read_table(path, COLUMNS)
    ]


def odds_section(groups: Sequence[OddsGroup]) -> str:
    """The section in Markdown: odds that were printed, and how often they held."""
    by_start: dict[float, list[OddsGroup]] = defaultdict(list)
    for group in groups:
        by_start[group.odds_from].append(group)
    ends = dict(zip(_STARTS, (*_STARTS[1:], 1.0), strict=True))
    inside = _share(groups, "inside_share")
    lines = [
        "## How sure is it that one is faster?\n",
        "`clustersim compare` and `clustersim plan` say how likely a job is faster than another, "
        f"and in which interval {100 * COVERAGE:.0f} % of the gains lie. Nothing is fitted for "
        "that: it follows from the model of errors behind the intervals of steps, here fitted "
        "without the source. Of pairs that were predicted at first sight, the measured gain lies "
        f"in the interval in {100 * inside[0]:.0f} %, with sources counting the same in "
        f"{100 * inside[1]:.0f} %. This often the one was faster that was predicted to be:\n",
    ]
    heads = ("odds", "pairs", "sources", "mean odds %", "right %", "sources counting the same %")
    rows = [
        (f"{100 * start:.0f} to {100 * ends[start]:.0f} %", *_figures(own))
        for start, own in sorted(by_start.items())
    ]
    return "\n".join([*lines, *markdown_table(heads, rows)]) + "\n"


def _figures(groups: Sequence[OddsGroup]) -> tuple[str, ...]:
    """Pairs, sources, and means in percent."""
    shares = (_share(groups, "odds")[0], *_share(groups, "right_share"))
    pairs = sum(group.pairs for group in groups)
    return f"{pairs}", f"{len(groups)}", *(f"{100 * share:.0f}" for share in shares)


def _share(groups: Sequence[OddsGroup], name: str) -> tuple[float, float]:
    """Mean over pairs, and over sources."""
    by_source: dict[str, list[OddsGroup]] = defaultdict(list)
    for group in groups:
        by_source[group.source].append(group)
    means = [_mean(own, name) for own in by_source.values()]
    return _mean(groups, name), fmean(means) if means else 0.0


def _mean(groups: Sequence[OddsGroup], name: str) -> float:
    pairs = sum(group.pairs for group in groups)
    return sum(group.pairs * float(getattr(group, name)) for group in groups) / max(pairs, 1)
