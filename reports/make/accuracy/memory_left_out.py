"""How far is predicted memory off where a source has told nothing of its own?

Each run is predicted without the facts that were found with errors of its own source in view:
those of a framework (``found_with``) and those of rows (``residuals``). Nothing else of memory is
fitted to runs, but the share that allocators leave unused at least, which is known from *titan*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from reports.make.accuracy.accuracy_table import mean_text
from reports.make.fit.residual_facts import Bare
from reports.make.tables import markdown_table
from simulator.cells import Row
from simulator.validate.published.published_rows import memory_kind
from simulator.validate.published.published_runs import PublishedResult, row_source

_HEAD = """## Without its own source

Each run without the facts about its framework or its row that were found with errors of its own
source in view (`residuals`); all others have documentation or measurements of their own, or are
assumed. Nothing else of memory is fitted to runs, but the share that allocators leave unused at
least, which is known from *titan*. Mean errors in percent.
"""


class LeftOutRun(NamedTuple):
    """A run that states its memory, predicted with and without what its source told.

    Attributes:
        row: As the table has it.
        known, bare: Predicted with all facts, and without those of its source.
        taken: Names of the facts that were taken away.
    """

    row: Row
    known: PublishedResult
    bare: PublishedResult
    taken: tuple[str, ...]


def rows_to_predict_again(bare: Iterable[Bare]) -> list[Row]:
    """Rows that state their memory and lose a fact."""
    return [each.row for each in bare if each.taken and each.row.get("measured_mem_gib")]


def left_out_runs(
    known: Sequence[tuple[Row, PublishedResult]],
    bare: Sequence[Bare],
    again: Mapping[str, PublishedResult],
) -> list[LeftOutRun]:
    """All runs that state their memory.

    Args:
        known: Rows and predictions with all that is known.
        bare: The same rows without what their sources told, in the same order.
        again: Predictions of those that lose a fact, by id.
    """
    return [
        LeftOutRun(row, result, again.get(result.id, result), each.taken)
        for (row, result), each in zip(known, bare, strict=True)
        if result.mem_error_pct is not None
    ]


def left_out_section(runs: Sequence[LeftOutRun]) -> str:
    """Errors in Markdown: of all, by kind of memory, and where a fact was taken away."""
    groups: dict[tuple[str, str], list[LeftOutRun]] = {("", "all"): list(runs)}
    for run in runs:
        groups.setdefault(("", memory_kind(run.row) or "unstated"), []).append(run)
    for run in runs:
        if run.taken:
            groups.setdefault((", ".join(run.taken), row_source(run.known.id)), []).append(run)
    heads = ("facts taken away", "runs of", "runs", "in-sample", "without its facts")
    rows = (
        (
            facts or "those below",
            name,
            str(len(own)),
            mean_text(run.known.mem_error_pct for run in own),
            mean_text(run.bare.mem_error_pct for run in own),
        )
        for (facts, name), own in groups.items()
    )
    return "\n".join([_HEAD, *markdown_table(heads, rows, "llrrr")]) + "\n"
