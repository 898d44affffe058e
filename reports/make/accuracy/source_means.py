"""What is the mean of each source, so that sources count the same?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from simulator.validate.published.published_runs import row_source


def source_means(figures: Iterable[tuple[str, float]]) -> list[float]:
    """The mean of each source, in the order of its first run.

    Args:
        figures: Id of a run, and a figure of it.
    """
    by_source: dict[str, list[float]] = defaultdict(list)
    for name, figure in figures:
        by_source[row_source(name)].append(figure)
    return [fmean(own) for own in by_source.values()]
