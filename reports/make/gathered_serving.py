"""The section of ``reports/serving.md`` on gathered runs: predictions at first sight, and now.

First predictions are those of ``reports/serving_first_sight.csv``, which are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

from reports.make.tables import markdown_table

Row = Mapping[str, Any]
_MEASURES = ("throughput", "tpot", "ttft")
_GRADES = {"A and A-": ("A", "A-"), "B": ("B",), "all": ("A", "A-", "B", "C")}
TABLE = "reports/data/serving_gathered.csv"
KEPT = "reports/serving_first_sight.csv"


def gathered_section(first: Sequence[Row], now: Sequence[Row], left_out: Sequence[Row]) -> str:
    """Errors by source and engine: at first sight, now, and now without the row's own source.

    Args:
        first: What was predicted of the runs first.
        now: What is predicted of them now.
        left_out: Likewise, without what runs of the row's own source told.
    """
    sources = {row["source"] for row in first}
    skipped = sum(1 for row in first if row["skipped"])
    heads = ["source", "engine", "runs"]
    heads += [head for measure in _MEASURES for head in (f"{measure}: first", "now")]
    lines = [
        "## First sight: gathered runs",
        "",
        f"`{TABLE}` holds {len(first)} runs of {len(sources)} sources that no fit had seen: blogs, "
        "threads, repositories and recipes, most of them of vLLM. They were predicted before "
        f"anything was changed for them ({skipped} were skipped), and `{KEPT}` keeps that. Cells "
        "are medians and means of the amounts of errors, the numbers of runs in brackets.",
        "",
        "A later batch shows what was learnt from those before it, as nothing was fitted to it:",
        "",
        *_table("rows of", _by_batch(first)),
        "",
        *_table("grade", _by_grade(first, now, left_out)),
        "",
        "Medians by source and engine, at first sight and now:",
        "",
        *markdown_table(heads, _by_source(first, now), "l" * len(heads)),
    ]
    return "\n".join(lines)


def _by_grade(*stages: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    names = ("first sight", "now", "now, without its own source")
    grades = {row["id"]: row["grade"] for row in stages[0]}
    for title, wanted in _GRADES.items():
        for name, rows in zip(names, stages, strict=True):
            own = [row for row in rows if grades.get(row["id"]) in wanted]
            yield title, [name, *(_cell(own, measure) for measure in _MEASURES)]


def _by_batch(first: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    for commit in dict.fromkeys(row["seen_by"] for row in first):
        own = [row for row in first if row["seen_by"] == commit]
        yield commit, ["first sight", *(_cell(own, measure) for measure in _MEASURES)]


def _table(first: str, lines: Iterable[tuple[str, list[str]]]) -> list[str]:
    rows = ((title, *cells) for title, cells in lines)
    return markdown_table((first, "predicted", *_MEASURES), rows, "lllll")


def _cell(rows: Sequence[Row], measure: str) -> str:
    errors = _errors(rows, measure)
    if not errors:
        return ""
    return f"{median(errors):.1f} %, {mean(errors):.1f} % ({len(errors)})"


def _by_source(first: Sequence[Row], now: Sequence[Row]) -> Iterator[list[str]]:
    for source, engine in sorted({(row["source"], row["engine"]) for row in first}):
        stages = [
            [row for row in rows if (row["source"], row["engine"]) == (source, engine)]
            for rows in (first, now)
        ]
        cells = [_middle(rows, measure) for measure in _MEASURES for rows in stages]
        yield [source, engine, str(len(stages[0])), *cells]


def _middle(rows: Sequence[Row], measure: str) -> str:
    errors = _errors(rows, measure)
    return f"{median(errors):.1f} %" if errors else ""


def _errors(rows: Iterable[Row], measure: str) -> list[float]:
    values = (row[f"{measure}_error_pct"] for row in rows)
    return [abs(float(value)) for value in values if value not in (None, "")]
