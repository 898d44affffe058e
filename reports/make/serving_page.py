"""Writes ``reports/serving.md``: predicted runs of serving against measured ones, with a picture.

Run as ``python -m reports.make.serving_page reports/serving.md``; predicts every run of grade A of
``reports/data/serving_open.csv.gz``, and every eighth also without what runs of its own source
told. Takes some minutes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from simulator.planning.executors import worker_pool
from simulator.validate.serving import predicted, predicted_elsewhere
from simulator.validate.serving_rows import read_serving_rows

_TABLE = Path("reports/data/serving_open.csv.gz")
_EVERY = 8
"""Of so many runs, one is also predicted without its own source."""
Row = Mapping[str, Any]
_MEASURES = ("throughput", "tpot", "ttft")
_SHARES = (10, 25, 50, 75, 90)
_GOALS = "Goals: throughput mean 15 %, median 10 %; TPOT median 12 %; TTFT median 25 %."


def main(arguments: Sequence[str]) -> int:
    """Writes the page and its picture."""
    page = Path(arguments[0])
    rows = [row for row in read_serving_rows(_TABLE) if row.grade == "A"]
    with worker_pool(None) as (executor, _):
        run = executor.map if executor else map
        in_sample = [asdict(result) for result in run(predicted, rows)]
        left_out = [asdict(result) for result in run(predicted_elsewhere, rows[::_EVERY])]
    picture = page.with_suffix(".png")
    _draw(in_sample, picture)
    page.write_text(_page(in_sample, left_out, picture.name) + "\n", encoding="utf-8")
    return 0


def _page(rows: Sequence[Row], left_out: Sequence[Row], picture: str) -> str:
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


def _table(rows: Sequence[Row], by: Sequence[str]) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row)
    heads = [*by, "runs", *(f"{name}: {what}" for name in _MEASURES for what in ("median", "mean"))]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join('---' for _ in heads)}|"
    for names, own in sorted(groups.items()):
        yield _line(names, own)
    yield _line(("**all**", *("" for _ in by[1:])), rows)


def _line(names: Sequence[str], rows: Sequence[Row]) -> str:
    cells = [*names, str(len(rows))]
    for name in _MEASURES:
        errors = _errors(rows, name)
        cells += [f"{median(errors):.1f} %", f"{mean(errors):.1f} %"] if errors else ["", ""]
    return f"| {' | '.join(cells)} |"


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
    import matplotlib as mpl
    import numpy as np

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
    groups = sorted({_group(row) for row in rows if not row["skipped"]})
    for axis, name in zip(axes, _MEASURES, strict=True):
        for place, group in enumerate(groups):
            own = [row[f"{name}_error_pct"] for row in rows if _group(row) == group]
            values = [value for value in own if value is not None]
            if not values:
                continue
            low, first, middle, third, high = np.percentile(values, _SHARES)
            axis.hlines(place, low, high, color="0.6", linewidth=1.5)
            axis.hlines(place, first, third, color="C0", linewidth=7)
            axis.plot(middle, place, marker="o", color="white", markeredgecolor="C0")
        axis.axvline(0.0, color="0.6", linewidth=0.8)
        axis.set_xlim(-100, 100)
        axis.set_ylim(-0.6, len(groups) - 0.4)
        axis.set_xlabel(f"{name if name == 'throughput' else name.upper()}: error [%]")
        axis.set_yticks(range(len(groups)), [f"{engine}: {source}" for source, engine in groups])
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
