"""How many runs lie in the bands that all other sources give them?"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from reports.make.accuracy.source_means import source_means
from reports.make.tables import write_table
from simulator.cells import read_table
from simulator.results.step_error import COVERAGE
from simulator.validate.published.published_runs import row_source

COLUMNS = ("id", "framework", "measured_step_s", "predicted_step_s", "fastest", "slowest")
"""Of the file of bands; times in seconds, ends as ratios of measured to predicted time."""

_FEWEST = 20
"""Runs that a framework needs for a line of its own."""

_NINE_IN_TEN = 1.645
"""Standard deviations, on both sides, within which nine in ten of normal draws lie."""


class Banded(NamedTuple):
    """A run, what was predicted of it without its source, and the band of the other sources."""

    id: str
    framework: str
    measured_step_s: float
    predicted_step_s: float
    fastest: float
    slowest: float

    @property
    def side(self) -> int:
        """Where the run lies: slower than its band (1), quicker (-1) or in it (0)."""
        ratio = self.measured_step_s / self.predicted_step_s
        return int(ratio > self.slowest) - int(ratio < self.fastest)

    @property
    def is_inside(self) -> bool:
        """Whether the run lies in its band."""
        return self.side == 0


def read_bands(path: Path) -> list[Banded]:
    """The runs of a file of bands."""
    return [
        Banded(row["id"], row["framework"], *(float(row[name]) for name in COLUMNS[2:]))
        for row in read_table(path, COLUMNS)
    ]


def write_bands(bands: Sequence[Banded], path: Path) -> None:
    """Every run and its band, for the reports."""
    write_table(path, COLUMNS, sorted(bands))


def covered_share(bands: Sequence[Banded]) -> float:
    """Share of the runs inside their bands."""
    return sum(band.is_inside for band in bands) / len(bands)


def likeness(bands: Sequence[Banded]) -> float:
    """Correlation, between two runs of one source, of lying in the band; sources count the same.

    Source: the intraclass correlation, from products of pairs (Donner, 1986), for a mean that is
    known. Zero if no source has two runs.
    """
    missed: dict[str, list[float]] = defaultdict(list)
    for band in bands:
        missed[row_source(band.id)].append(band.is_inside - COVERAGE)
    products = [
        (sum(own) ** 2 - sum(miss**2 for miss in own)) / (len(own) * (len(own) - 1))
        for own in missed.values()
        if len(own) > 1
    ]
    return max(0.0, fmean(products) / (COVERAGE * (1 - COVERAGE))) if products else 0.0


def chance_range(bands: Sequence[Banded], correlation: float) -> tuple[float, float]:
    """Shares of these runs inside, between which nine in ten draws of bands without fault lie.

    Args:
        bands: The runs.
        correlation: Of two runs of one source, 0 to 1.

    Source: the variance of a mean of clusters (Kish, 1965); the normal approximation.
    """
    sizes = Counter(row_source(band.id) for band in bands).values()
    pairs = sum(size * (1 + (size - 1) * correlation) for size in sizes)
    away = _NINE_IN_TEN * math.sqrt(COVERAGE * (1 - COVERAGE) * pairs) / len(bands)
    return max(0.0, COVERAGE - away), min(1.0, COVERAGE + away)


def coverage_section(bands: Sequence[Banded], first_seen: Collection[str]) -> str:
    """The coverage of bands in Markdown.

    Args:
        bands: The runs.
        first_seen: Ids of those whose prediction is that of first sight.
    """
    correlation = likeness(bands)
    lines = [
        "## Error bands\n",
        f"A prediction carries the band in which {100 * COVERAGE:.0f} % of the runs of a source "
        "that nothing was tuned to would lie, sources counting the same. Its width is that of a "
        "model of errors (`simulator/facts/step_errors.yaml`, fitted by `make bands`): what a "
        "source has in common and what is of the run, for the whole step and for the shares of "
        "it that launches, exchanges inside layers and exchanges of the fabric take, what runs "
        "share that are alike, what models with experts add, what the numbers of the "
        "hardware profile leave open, and how far other "
        "sources of the framework were off. Each run is held against the band that all *other* "
        "sources give, around what was predicted at first sight or without its source. The second "
        "are nearer, because what the simulator knows was looked for with their sources in view: "
        "their bands are narrower by a fitted factor (`in_view`), which no run of a user has.\n",
        "*By chance* is the range in which nine in ten such shares would lie if each band held "
        f"{100 * COVERAGE:.0f} %: runs of one source are off together (their correlation is "
        f"{correlation:.2f}), so few sources say little.\n",
        "| runs of grade A and A- | runs | sources | in the band % | by chance % "
        "| sources counting the same: in the band % | slower % | quicker % | median half width % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    groups = _groups(bands, first_seen).items()
    lines += [_line(name, group, correlation) for name, group in groups if group]
    return "\n".join(lines) + "\n"


def _groups(bands: Sequence[Banded], first_seen: Collection[str]) -> dict[str, list[Banded]]:
    by_framework: dict[str, list[Banded]] = defaultdict(list)
    for band in bands:
        by_framework[band.framework].append(band)
    return {
        "all": list(bands),
        "predicted at first sight": [band for band in bands if band.id in first_seen],
        "predicted without their source": [band for band in bands if band.id not in first_seen],
        **{name: own for name, own in sorted(by_framework.items()) if len(own) >= _FEWEST},
    }


def _line(name: str, bands: Sequence[Banded], correlation: float) -> str:
    inside, slower, quicker = (
        fmean(source_means((band.id, float(band.side == side)) for band in bands))
        for side in (0, 1, -1)
    )
    sources = len({row_source(band.id) for band in bands})
    half_width = median((band.slowest - band.fastest) / 2 for band in bands)
    low, high = (f"{100 * end:.0f}" for end in chance_range(bands, correlation))
    shares = (covered_share(bands), inside, slower, quicker, half_width)
    covered, *rest = (f"{100 * share:.0f}" for share in shares)
    cells = (name, str(len(bands)), str(sources), covered, f"{low} to {high}", *rest)
    return f"| {' | '.join(cells)} |"
