"""How many runs lie in the bands that all other sources give them?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from reports.make.accuracy.source_means import source_means
from simulator.cells import read_table
from simulator.results.step_error import COVERAGE

COLUMNS = ("id", "framework", "measured_step_s", "predicted_step_s", "fastest", "slowest")
"""Of the file of bands; times in seconds, ends as ratios of measured to predicted time."""

_FEWEST = 20
"""Runs that a framework needs for a line of its own."""


class Banded(NamedTuple):
    """A run, what was predicted of it without its source, and the band of the other sources."""

    id: str
    framework: str
    measured_step_s: float
    predicted_step_s: float
    fastest: float
    slowest: float

    @property
    def is_inside(self) -> bool:
        """Whether the run lies in its band."""
        return self.fastest <= self.measured_step_s / self.predicted_step_s <= self.slowest


def read_bands(path: Path) -> list[Banded]:
    """The runs of a file of bands."""
    return [
        Banded(row["id"], row["framework"], *(float(row[name]) for name in COLUMNS[2:]))
        for row in read_table(path, COLUMNS)
    ]


def covered_share(bands: Sequence[Banded]) -> float:
    """Share of the runs inside their bands."""
    return sum(band.is_inside for band in bands) / len(bands)


def coverage_section(bands: Sequence[Banded], first_seen: Collection[str]) -> str:
    """The coverage of bands in Markdown.

    Args:
        bands: The runs.
        first_seen: Ids of those whose prediction is that of first sight.
    """
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
        "| runs of grade A and A- | runs | sources | in the band % | sources counting the same % "
        "| median half width % |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [_line(name, group) for name, group in _groups(bands, first_seen).items() if group]
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


def _line(name: str, bands: Sequence[Banded]) -> str:
    sources = source_means((band.id, float(band.is_inside)) for band in bands)
    half_width = sorted(band.slowest - 1 for band in bands)[len(bands) // 2]
    shares = 100 * covered_share(bands), 100 * fmean(sources)
    inside = " | ".join(f"{share:.0f}" for share in shares)
    return f"| {name} | {len(bands)} | {len(sources)} | {inside} | {100 * half_width:.0f} |"
