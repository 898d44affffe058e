"""How far off are predictions of runs that nobody here had seen?"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.make.accuracy.source_means import source_means
from simulator.cells import Row
from simulator.plots import style
from simulator.validate.accuracy import Accuracy
from simulator.validate.published.published_runs import row_source

STATED = ("A", "A-")
"""Grades of rows that state everything which decides the step time."""

_ROW_IN, _TOP_IN, _BOTTOM_IN, _LEFT_IN = 0.27, 0.75, 0.6, 1.55
_FURTHEST_PCT = 100.0
_COLUMNS = 2
_HEAD = """## First sight

{headline}
## First sight, by source

These predictions were made before anybody here had seen the runs. A line of
`reports/first_sight.csv` is written once, by `clustersim validate published NEW.csv --first-sight`,
and never again, however much better later versions do on the same runs. Expect errors of this size
for a run of your own.

![Error of every run at first sight, by source](first_sight.png)

| source | predicted | refused | mean % | median % | 90th percentile % | memory, mean % |
|---|---:|---:|---:|---:|---:|---:|
{sources}
"""


class Source(NamedTuple):
    """One source at first sight.

    Attributes:
        name: Its short name, the beginning of its runs' ids.
        steps: Signed errors of the step time, of the runs that state it; None for one that was
            refused [%].
        memory: Signed errors of the memory, of the runs that state it [%].
    """

    name: str
    steps: list[float | None]
    memory: list[float]


def first_sight_sources(rows: Sequence[Row]) -> list[Source]:
    """Every source, the best predicted first; those that were refused whole come last."""
    names = dict.fromkeys(row_source(row["id"]) for row in rows)
    sources = [
        _source(name, [row for row in rows if row_source(row["id"]) == name]) for name in names
    ]
    return sorted(sources, key=lambda each: Accuracy.of(each.steps).median_ape or float("inf"))


def _source(name: str, rows: Sequence[Row]) -> Source:
    memory = [float(row["mem_error_pct"]) for row in rows if row["mem_error_pct"]]
    return Source(name, [_error(row) for row in rows if row["measured_step_s"]], memory)


def _error(row: Row) -> float | None:
    return float(row["error_pct"]) if row["error_pct"] else None


def first_sight_headline(rows: Sequence[Row]) -> str:
    """The table that the README leads with; its last line is what the newest version saw first."""
    stated = [row for row in rows if row["grade"] in STATED]
    groups = {"grade A and A-": stated, "all grades": list(rows)}
    newest = max(row["seen_on"] for row in rows)
    of_today = [row for row in stated if row["seen_on"] == newest]
    if of_today and len(of_today) < len(stated):
        groups[f"grade A and A-, first seen on {newest}"] = of_today
    lines = [
        "| runs at first sight | predicted | refused | mean % | median % | 90th percentile % "
        "| memory, mean % |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_table_row(_source(name, group)) for name, group in groups.items()]
    return "\n".join(lines) + "\n"


def first_sight_section(rows: Sequence[Row]) -> str:
    """The section of the accuracy report in Markdown."""
    sources = "\n".join(map(_table_row, first_sight_sources(rows)))
    return _HEAD.format(headline=first_sight_headline(rows), sources=sources)


def by_framework_section(rows: Sequence[Row], frameworks: Mapping[str, str]) -> str:
    """Runs of grades A and A- by their framework, in Markdown.

    Args:
        rows: What was predicted at first sight.
        frameworks: By id of a run; runs without one are left out.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["grade"] in STATED and row["id"] in frameworks and row["error_pct"]:
            groups[frameworks[row["id"]]].append(row)
    lines = [
        "## First sight, by framework\n",
        "Runs of grades A and A-. *bias* is the signed mean of sources that count the same: "
        "negative where runs took longer than was predicted.\n",
        "| framework | runs | sources | mean % | median % | bias % |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [_framework_row(name, groups[name]) for name in sorted(groups)]
    return "\n".join(lines) + "\n"


def _framework_row(name: str, rows: Sequence[Row]) -> str:
    errors = Accuracy.of([_error(row) for row in rows])
    biases = source_means((row["id"], float(row["error_pct"])) for row in rows)
    counts, bias = f"{errors.n} | {len(biases)}", statistics.fmean(biases)
    return f"| {name} | {counts} | {errors.mape:.1f} | {errors.median_ape:.1f} | {bias:+.1f} |"


def _table_row(source: Source) -> str:
    errors = Accuracy.of(source.steps)
    sizes = [abs(error) for error in source.steps if error is not None]
    ninetieth = float(np.percentile(sizes, 90)) if sizes else None
    memory = statistics.fmean(map(abs, source.memory)) if source.memory else None
    figures = (errors.mape, errors.median_ape, ninetieth, memory)
    cells = ("" if figure is None else f"{figure:.1f}" for figure in figures)
    return f"| {source.name} | {errors.n} | {errors.skipped} | {' | '.join(cells)} |"


def draw_first_sight(rows: Sequence[Row], path: Path) -> None:
    """One line of dots per source: the signed error of each run, and the median.

    The better half of the sources is on the left.
    """
    sources = [each for each in first_sight_sources(rows) if Accuracy.of(each.steps).n]
    lines = math.ceil(len(sources) / _COLUMNS)
    figure = style.new_figure(_TOP_IN + _ROW_IN * lines + _BOTTOM_IN)
    for column in range(_COLUMNS):
        _draw_column(figure, column, sources[column * lines : (column + 1) * lines], lines)
    stated = [_error(row) for row in rows if row["grade"] in STATED]
    sizes = np.abs([error for error in stated if error is not None])
    subtitle = (
        f"{len(sizes)} runs of grade A and A-: mean error {sizes.mean():.1f} %, "
        f"median {np.median(sizes):.1f} %; bar: median of a source; grey: within 10 %"
    )
    style.add_title(figure, "Predicted before anybody saw the runs", subtitle, left=_LEFT_IN)
    style.save(figure, path)


def _draw_column(figure: Figure, column: int, sources: Sequence[Source], lines: int) -> None:
    width_in = style.WIDTH_IN / _COLUMNS
    axes = style.add_axes_in(
        figure, left=_LEFT_IN + column * width_in, top=_TOP_IN,
        width=width_in - _LEFT_IN - 0.2, height=_ROW_IN * lines,
    )  # fmt: skip
    for line, source in enumerate(sources):
        _draw_source(axes, line, source)
    axes.set(xlim=(-_FURTHEST_PCT, _FURTHEST_PCT), ylim=(lines - 0.5, -0.5))
    axes.axvspan(-10, 10, color=style.GRID, alpha=0.6, linewidth=0)
    axes.axvline(0, color=style.PALE_INK, linewidth=0.8)
    axes.set_yticks(range(len(sources)), [f"{s.name} ({Accuracy.of(s.steps).n})" for s in sources])
    axes.tick_params(axis="y", length=0, labelsize=style.SMALL_PT)
    axes.set_xlabel("error of the step time [%]; left: predicted too fast", fontsize=style.SMALL_PT)
    axes.grid(axis="x", color=style.GRID, linewidth=0.5)


def _draw_source(axes: Axes, line: int, source: Source) -> None:
    errors = np.array([error for error in source.steps if error is not None])
    shown = np.clip(errors, -_FURTHEST_PCT, _FURTHEST_PCT)
    # Fixed offsets, so that equal errors stay apart and the picture stays the same.
    offsets = 0.3 * np.sin(2.4 * np.arange(len(shown)))
    axes.plot(
        shown, line + offsets, linestyle="none", marker="o", markersize=3.6, color=style.BLUE,
        markeredgecolor="white", markeredgewidth=0.3, alpha=0.75, clip_on=False,
    )  # fmt: skip
    median = float(np.median(shown))
    axes.plot([median, median], [line - 0.4, line + 0.4], color=style.VERMILLION, linewidth=2.2)
