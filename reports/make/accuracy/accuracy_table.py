"""How is the accuracy of groups of predictions written as a Markdown table?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reports.make.tables import markdown_table
from simulator.validate.accuracy import Accuracy

COLUMNS = ("predicted", "skipped", "mean %", "median %", "worst %", "bias %", "close %")
"""After the column with the names of the groups."""


def accuracy_table(header: Sequence[str], groups: Iterable[tuple[str, Accuracy]]) -> str:
    """One row per group."""
    rows = ((name, *_cells(accuracy)) for name, accuracy in groups)
    return "\n".join(markdown_table(header, rows)) + "\n"


def mean_text(errors_pct: Iterable[float | None]) -> str:
    """Mean size of errors for a cell; empty where nothing was predicted."""
    mape = Accuracy.of(errors_pct).mape
    return "" if mape is None else f"{mape:.1f}"


def _cells(accuracy: Accuracy) -> Iterator[str]:
    yield str(accuracy.n)
    yield str(accuracy.skipped)
    figures = (accuracy.mape, accuracy.median_ape, accuracy.worst_ape)
    yield from ("" if figure is None else f"{figure:.1f}" for figure in figures)
    yield "" if accuracy.bias is None else f"{accuracy.bias:+.1f}"
    yield "" if accuracy.close_share is None else f"{100 * accuracy.close_share:.0f}"
