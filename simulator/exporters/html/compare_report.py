"""What does the page of two or more steps say?

What changed in the jobs, why each step differs from the first (causes that sum to the
difference), the timelines one under the other on one axis, and how to get the same again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from simulator.described.job import Job, changed_fields
from simulator.exporters.html.page import render, write_page
from simulator.exporters.html.run_report import headline, timeline_legend
from simulator.exporters.html.timeline_data import MOST_ROWS, source_blocks, timeline_data
from simulator.plots.comparison import falls
from simulator.results.difference import Difference, difference
from simulator.results.step import StepResult
from simulator.units import signed_seconds

SCRIPTS = ("lanes.js", "axis.js", "details.js", "timeline.js", "tools.js", "compare.js")


class Run(NamedTuple):
    """One of the steps that are compared."""

    name: str
    result: StepResult
    job: Job


def write_compare_report(
    runs: Sequence[Run], path: str | Path, *, prices: Sequence[str] = ()
) -> None:
    """Write the page of several steps; each is compared with the first.

    ``prices`` are what a billion tokens cost in each of them, as text [USD].
    """
    context, data = _content(runs)
    if prices:
        context["headlines"].append(("USD per billion tokens", list(prices)))
    write_page(path, "compare.html", context, scripts=SCRIPTS, data=data)


def compare_page(runs: Sequence[Run]) -> str:
    """The text of the page."""
    context, data = _content(runs)
    return render("compare.html", context, scripts=SCRIPTS, data=data)


def _content(runs: Sequence[Run]) -> tuple[dict[str, Any], dict[str, Any]]:
    first, *others = runs
    most_rows = MOST_ROWS // len(runs)
    blocks = [source_blocks(run.job) for run in runs]
    legend = {entry["name"]: entry for run in runs for entry in timeline_legend(run.result)}
    context = {
        "title": f"{first.name} against {', '.join(run.name for run in others)}",
        "names": [run.name for run in runs],
        "titles": [run.result.title for run in runs],
        "headlines": _headlines(runs),
        "comparisons": [_comparison(first, other) for other in others],
        "timeline_legend": list(legend.values()),
        "jobs": [
            (run.name, yaml.safe_dump(dict(run.job.document), sort_keys=False, allow_unicode=True))
            for run in runs
        ],
    }
    data = {
        "runs": [
            {
                "timeline": timeline_data(run.result, sources, most_rows=most_rows),
                "sources": sources,
            }
            for run, sources in zip(runs, blocks, strict=True)
        ]
    }
    return context, data


def _headlines(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    columns = [dict(headline(run.result)) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name, "-") for column in columns]) for name in names]


def _comparison(first: Run, other: Run) -> dict[str, Any]:
    found = difference(first.result, other.result)
    fields = changed_fields(first.job, other.job)
    return {
        "name": other.name,
        "difference": found,
        "bars": list(_bars(found)),
        "bars_begin_s": _room(found)[0],
        "fields": [(path, _shown(a), _shown(b)) for path, (a, b) in fields.items()],
    }


def _shown(value: object) -> str:
    return "default" if value is None else str(value)


def _bars(found: Difference) -> Iterator[dict[str, Any]]:
    """Bars of the waterfall as shares of its room, which leaves out what is common to all."""
    begin_s, end_s = _room(found)
    done_s, width_s = found.first_s, end_s - begin_s
    for name, seconds in falls(found):
        yield {
            "name": name,
            "amount": signed_seconds(seconds),
            "share_of_step": seconds / found.first_s,
            "is_longer": seconds > 0,
            "from": (min(done_s, done_s + seconds) - begin_s) / width_s,
            "share": abs(seconds) / width_s,
        }
        done_s += seconds


def _room(found: Difference) -> tuple[float, float]:
    """Where the axis of a waterfall begins and ends [s]."""
    edges = list(accumulate((seconds for _, seconds in falls(found)), initial=found.first_s))
    edges.append(found.second_s)
    room_s = max(max(edges) - min(edges), 1e-3 * max(edges))
    return max(0.0, min(edges) - 0.3 * room_s), max(edges)
