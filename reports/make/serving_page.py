"""Writes ``reports/serving.md``: predicted runs of serving against measured ones, with a picture.

Run as ``python -m reports.make.serving_page reports/serving.md``; predicts every run of grade A of
``reports/data/serving_open.csv.gz``, and every eighth also without what runs of its own source
told. Gathered runs have a section of their own. Takes some minutes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from reports.make.gathered_serving import KEPT, TABLE, gathered_section
from reports.make.tables import markdown_table
from simulator.planning.executors import worker_pool
from simulator.plots import style
from simulator.validate.serving import predicted, predicted_elsewhere
from simulator.validate.serving_first_sight import read_serving_first_sight
from simulator.validate.serving_rows import read_serving_rows

_TABLE = Path("reports/data/serving_open.csv.gz")
_EVERY = 8
"""Of so many runs, one is also predicted without its own source."""
Row = Mapping[str, Any]
_MEASURES = ("throughput", "tpot", "ttft")
_SHARES = (10, 25, 50, 75, 90)
_LEFT_IN, _TOP_IN, _BOTTOM_IN, _ROW_IN, _PANEL_IN, _GAP_IN = 2.3, 0.3, 0.5, 0.4, 2.2, 0.42
_GOALS = "Goals: throughput mean 15 %, median 10 %; TPOT median 12 %; TTFT median 25 %."


def main(arguments: Sequence[str]) -> int:
    """Writes the page and its picture."""
    page = Path(arguments[0])
    rows = [row for row in read_serving_rows(_TABLE) if row.grade == "A"]
    with worker_pool(None) as (executor, _):
        run = executor.map if executor else map
        in_sample = [asdict(result) for result in run(predicted, rows)]
        left_out = [asdict(result) for result in run(predicted_elsewhere, rows[::_EVERY])]
        gathered = read_serving_rows(Path(TABLE))
        now, elsewhere = (
            [asdict(result) for result in run(predict, gathered)]
            for predict in (predicted, predicted_elsewhere)
        )
    section = gathered_section(read_serving_first_sight(Path(KEPT)), now, elsewhere)
    picture = page.with_suffix(".png")
    _draw(in_sample, picture)
    text = _page(in_sample, left_out, section, picture.name)
    page.write_text(text + "\n", encoding="utf-8")
    return 0


def _page(rows: Sequence[Row], left_out: Sequence[Row], gathered: str, picture: str) -> str:
    skipped = [row for row in rows if row["skipped"]]
    lines = [
        "# Serving: predicted against measured runs",
        "",
        f"`clustersim validate serving reports/data/serving_open.csv.gz --grade A`: {len(rows)} "
        f"runs, {len(skipped)} of them skipped ({len(skipped) / len(rows):.1%}). Errors are "
        "predicted over measured, less one; medians and means are of their amounts.",
        "",
        _GOALS,
        "",
        f"![Errors by source and engine]({picture})",
        "",
        "Bars hold the middle half of the runs, lines 80 % of them, points are medians.",
        "",
        "## By source",
        "",
        *_table(rows, ("source",)),
        "",
        "Without what runs of the row's own source told (factors of kernels in running engines, "
        "acceptance of drafts), every eighth run:",
        "",
        *_table(left_out, ("source",)),
        "",
        gathered,
        "",
        "## By engine and GPU",
        "",
        *_table(rows, ("engine", "gpu")),
        "",
        "## By model",
        "",
        *_table(rows, ("model",)),
        "",
        "## Skipped",
        "",
        *_skipped(skipped),
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Row], by: Sequence[str]) -> list[str]:
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row)
    heads = [*by, "runs", *(f"{name}: {what}" for name in _MEASURES for what in ("median", "mean"))]
    everything = ("**all**", *("" for _ in by[1:]))
    lines = (_cells(names, own) for names, own in [*sorted(groups.items()), (everything, rows)])
    return markdown_table(heads, lines, "l" * len(heads))


def _cells(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    cells = [*names, str(len(rows))]
    for name in _MEASURES:
        errors = _errors(rows, name)
        cells += [f"{median(errors):.1f} %", f"{mean(errors):.1f} %"] if errors else ["", ""]
    return cells


def _errors(rows: Sequence[Row], name: str) -> list[float]:
    values = (row[f"{name}_error_pct"] for row in rows)
    return [abs(value) for value in values if value is not None]


def _skipped(rows: Sequence[Row]) -> Iterator[str]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        reasons[row["skipped"]].append(row["id"])
    for reason, ids in sorted(reasons.items()):
        yield f"- {reason}: {', '.join(ids)}"


def _group(row: Row) -> tuple[str, str]:
    return row["source"].split(" (")[0], row["engine"]


def _draw(rows: Sequence[Row], path: Path) -> None:
    """Errors of each engine and source: a bar for the middle half, a line for 80 % of the runs."""
    groups = sorted({_group(row) for row in rows if not row["skipped"]})
    height_in = _ROW_IN * len(groups)
    figure = style.new_figure(_TOP_IN + height_in + _BOTTOM_IN)
    for panel, name in enumerate(_MEASURES):
        left_in = _LEFT_IN + panel * (_PANEL_IN + _GAP_IN)
        axes = style.add_axes_in(
            figure, left=left_in, top=_TOP_IN, width=_PANEL_IN, height=height_in
        )
        style.add_heading(axes, name if name == "throughput" else name.upper())
        axes.axvline(0.0, color=style.PALE_INK, lw=0.8)
        axes.grid(axis="x", color=style.GRID, lw=0.6)
        for place, group in enumerate(groups):
            values = [
                row[f"{name}_error_pct"]
                for row in rows
                if _group(row) == group and row[f"{name}_error_pct"] is not None
            ]
            if values:
                _draw_spread(axes, place + 0.5, [style.error_at_edge(v) for v in values])
        axes.set_xlim(-100, 100)
        axes.set_ylim(len(groups), 0)
        axes.set_xlabel("error [%]", fontsize=style.SMALL_PT, color=style.INK)
        names = [f"{engine}: {source}" for source, engine in groups]
        style.name_rows(axes, names if panel == 0 else [""] * len(groups), _ROW_IN * 72)
    style.save(figure, path)


def _draw_spread(axes: Axes, height: float, values: Sequence[float]) -> None:
    low, first, middle, third, high = np.percentile(values, _SHARES)
    axes.hlines(height, low, high, color=style.PALE_INK, lw=1.2)
    axes.hlines(height, first, third, color=style.BLUE, lw=7)
    axes.plot(middle, height, ls="", marker="o", ms=5.5, mfc="white", mec=style.BLUE)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
