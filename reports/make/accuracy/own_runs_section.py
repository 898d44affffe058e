"""How much nearer are runs at first sight once the first ones of their source are known?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from reports.make.accuracy.source_means import source_means
from reports.make.tables import write_table
from simulator.cells import read_table
from simulator.validate.published.published_runs import row_source

COLUMNS = (
    "id",
    "known",
    "measured_step_s",
    "predicted_step_s",
    "learnt_step_s",
    "fastest",
    "slowest",
)
"""Of the file of learnt runs; times in seconds, ends as ratios of measured to learnt time."""


_LEAST_CHANGE = 0.05
"""Percent that the error of a source must change by to count as helped, or as misled."""


class LearntRun(NamedTuple):
    """A run that nobody had seen, predicted before and after others of its source were known.

    Attributes:
        id: The run.
        known: How many runs of its source, system and framework were learnt from.
        measured_step_s: The step [s].
        predicted_step_s: The same, predicted at first sight [s].
        learnt_step_s: The same, after those runs [s].
        fastest, slowest: Ends of its band, as ratios of measured to learnt time.
    """

    id: str
    known: int
    measured_step_s: float
    predicted_step_s: float
    learnt_step_s: float
    fastest: float
    slowest: float

    @property
    def is_inside(self) -> bool:
        """Whether the run lies in its band."""
        return self.fastest <= self.measured_step_s / self.learnt_step_s <= self.slowest


def read_learnt_runs(path: Path) -> list[LearntRun]:
    """The runs of a file of learnt runs."""
    return [
        LearntRun(row["id"], int(row["known"]), *(float(row[name]) for name in COLUMNS[2:]))
        for row in read_table(path, COLUMNS)
    ]


def write_learnt_runs(runs: Sequence[LearntRun], path: Path) -> None:
    """Every run before and after, for the report."""
    write_table(path, COLUMNS, sorted(runs))


def own_runs_section(runs: Sequence[LearntRun]) -> str:
    """What runs of one's own are worth, in Markdown."""
    lines = [
        "## After runs of your own\n",
        "`clustersim calibrate runs` learns from measured steps. Here the first run of each "
        "source, in order of id, or the first three, calibrate its system, and its later runs are "
        "predicted. All were predicted at first sight before, and the model of errors that says "
        "how much a run teaches is fitted without their source. Some sources publish a hundred "
        "runs, some two: means and medians over sources, and the share in the band, count sources "
        "the same, as one team is. A source whose first runs are off for a cause of their own "
        "misleads: `dsautotune` begins with runs that its table took in another format. *At best* "
        "is the mean over sources if the one factor were known that suits all later runs of each "
        "best: what a factor cannot mend. Sources are helped, or misled, by a twentieth of a "
        "percent at least.\n",
        "| runs known | later runs | sources | mean %: before | after | median %: before | after "
        "| mean over sources %: before | after | at best | median over sources %: before | after "
        "| helped % | misled % | in the band % |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_line(known, runs) for known in sorted({run.known for run in runs})]
    return "\n".join(lines) + "\n"


def _line(known: int, runs: Sequence[LearntRun]) -> str:
    later = [run for run in runs if run.known == known]
    before, after, best = (
        [100 * abs(factor * step_s / run.measured_step_s - 1) for run, step_s, factor in of]
        for of in (
            [(run, run.predicted_step_s, 1.0) for run in later],
            [(run, run.learnt_step_s, 1.0) for run in later],
            [(run, run.predicted_step_s, factor) for run, factor in _with_best_factor(later)],
        )
    )
    ids = [run.id for run in later]
    sources_before, sources_after, sources_best = (
        source_means(zip(ids, each, strict=True)) for each in (before, after, best)
    )
    figures = (
        *(fmean(before), fmean(after), median(before), median(after)),
        *(fmean(sources_before), fmean(sources_after), fmean(sources_best)),
        *(median(sources_before), median(sources_after)),
    )
    cells = " | ".join(f"{figure:.1f}" for figure in figures)
    nearer = [was - now for was, now in zip(sources_before, sources_after, strict=True)]
    helped, misled = (100 * fmean(sign * by >= _LEAST_CHANGE for by in nearer) for sign in (1, -1))
    inside = fmean(source_means((run.id, 100 * run.is_inside) for run in later))
    shares = f"{helped:.0f} | {misled:.0f} | {inside:.0f}"
    return f"| {known} | {len(later)} | {len(nearer)} | {cells} | {shares} |"


def _with_best_factor(runs: Sequence[LearntRun]) -> list[tuple[LearntRun, float]]:
    """Each run, and the factor that brings the predictions of its source nearest, in the mean."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        ratios[row_source(run.id)].append(run.measured_step_s / run.predicted_step_s)
    best = {
        source: min(own, key=lambda factor: sum(abs(factor / ratio - 1) for ratio in own))
        for source, own in ratios.items()
    }
    return [(run, best[row_source(run.id)]) for run in runs]
