"""Why are errors larger where a source is left out: its numbers, or its facts?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.make.accuracy.accuracy_table import mean_text
from reports.make.fit.fit_training import LeftOut
from simulator.validate.accuracy import error_pct
from simulator.validate.published.published_runs import PublishedResult, row_source

_GRADES = ("A", "A-")


def gap_section(results: Sequence[PublishedResult], left_out: Mapping[str, LeftOut]) -> str:
    """The way from in-sample errors to cross-validated ones in Markdown.

    Args:
        results: Every run, predicted with everything that is known.
        left_out: Each run predicted without its own source, by id.
    """
    stated = [
        result
        for result in results
        if result.grade in _GRADES and result.id in left_out and result.error_pct is not None
    ]
    taken: dict[tuple[str, str], list[PublishedResult]] = {}
    for result in stated:
        facts = left_out[result.id].taken
        if facts:
            taken.setdefault((facts, row_source(result.id)), []).append(result)
    lines = [
        "## From in-sample to cross-validated\n",
        "Mean errors in percent, of grade A and A-. *Numbers of others*: clocks are those "
        "that other sources alone give. *Without its facts*: facts about a framework or "
        "about rows that were found with errors of the same source in view (`residuals`) are "
        "taken away, too; all other facts have documentation or measurements of their own, or "
        "are assumed.\n",
        "| facts taken away | source | runs | in-sample | numbers of others | without its facts |",
        "|---|---|---:|---:|---:|---:|",
        _line("those below, each where it was found", "all", stated, left_out),
    ]
    lines += [_line(*names, own, left_out) for names, own in sorted(taken.items())]
    return "\n".join(lines) + "\n"


def _line(
    facts: str, source: str, results: Sequence[PublishedResult], left_out: Mapping[str, LeftOut]
) -> str:
    others = [left_out[result.id] for result in results]
    measured = [result.measured_step_s for result in results]
    steps = list(zip(others, measured, strict=True))
    means = (
        mean_text(result.error_pct for result in results),
        mean_text(error_pct(other.with_facts_s, seconds) for other, seconds in steps),
        mean_text(error_pct(other.predicted_step_s, seconds) for other, seconds in steps),
    )
    return f"| {facts} | {source} | {len(results)} | {' | '.join(means)} |"
