"""How far were runs of each framework off at first sight, as every run of a user's is told?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.make.fit.fit_step_errors import SeenRun


def first_sight_errors(runs: Iterable[SeenRun]) -> Mapping[str, Mapping[str, float]]:
    """Of each framework: runs that nobody had seen, their sources, and the median error."""
    unseen: dict[str, list[SeenRun]] = defaultdict(list)
    for run in runs:
        if not run.in_view:
            unseen[run.framework].append(run)
    return {
        name: {
            "runs": len(of),
            "sources": len({run.source for run in of}),
            "median_error": median(abs(run.predicted_s / run.measured_s - 1) for run in of),
        }
        for name, of in sorted(unseen.items())
    }
