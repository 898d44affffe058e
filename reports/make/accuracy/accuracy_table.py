"""How is the accuracy of groups of predictions written as a Markdown table?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simulator.validate.accuracy import Accuracy

COLUMNS = ("predicted", "skipped", "mean %", "median %", "worst %", "bias %", "close %")
"""After the column with the names of the groups."""


def accuracy_table(header: Sequence[str], groups: Iterable[tuple[str, Accuracy]]) -> str:
    """One row per group."""
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    lines += [f"| {name} | {' | '.join(_cells(accuracy))} |" for name, accuracy in groups]
    return "\n".join(lines) + "\n"


def _cells(accuracy: Accuracy) -> Iterator[str]:
    yield str(accuracy.n)
    yield str(accuracy.skipped)
    figures = (accuracy.mape, accuracy.median_ape, accuracy.worst_ape)
    yield from ("" if figure is None else f"{figure:.1f}" for figure in figures)
    yield "" if accuracy.bias is None else f"{accuracy.bias:+.1f}"
    yield "" if accuracy.close_share is None else f"{100 * accuracy.close_share:.0f}"
