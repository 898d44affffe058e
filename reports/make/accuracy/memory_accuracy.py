"""How right is the predicted memory of published runs, and does all that ran fit?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.make.accuracy.accuracy_table import COLUMNS, accuracy_table
from simulator.cells import Row
from simulator.validate.accuracy import Accuracy
from simulator.validate.published.published_rows import memory_kind
from simulator.validate.published.published_runs import PublishedReport, PublishedResult

_KINDS = """Of the fullest GPU, by the kind of memory that the source states.
"""

_FITS = """What ran has to be predicted to fit, and what its source reports as out of memory
(`reports/data/out_of_memory.csv`) not to.
"""


def memory_section(
    report: PublishedReport, rows: Mapping[str, Row], out_of_memory: Sequence[PublishedResult] = ()
) -> str:
    """Errors by kind of memory, and the runs that are and are not predicted to fit.

    Args:
        report: Runs, predicted.
        rows: Their rows, by id.
        out_of_memory: Runs that their source reports as out of memory, predicted.
    """
    everything = PublishedReport([*report.rows, *out_of_memory])
    table = accuracy_table(("memory", *COLUMNS), _by_kind(report, rows).items())
    return f"## Memory\n\n{_KINDS}\n{table}\n{_FITS}\n{_fits_table(everything)}"


def _by_kind(report: PublishedReport, rows: Mapping[str, Row]) -> dict[str, Accuracy]:
    stated = [result for result in report.rows if result.measured_mem_gib is not None]
    kinds = sorted({memory_kind(rows[result.id]) for result in stated})
    return {
        kind: Accuracy.of(r.mem_error_pct for r in stated if memory_kind(rows[r.id]) == kind)
        for kind in kinds
    }


def _fits_table(report: PublishedReport) -> str:
    counts = report.fit_counts
    lines = [
        "| runs | predicted to fit | predicted not to fit |",
        "|---|---:|---:|",
        f"| ran | {counts.ran_and_fits} | {counts.ran_but_does_not_fit} |",
        f"| out of memory | {counts.out_of_memory_but_fits} "
        f"| {counts.out_of_memory_and_does_not_fit} |",
    ]
    wrong = [_filled(r) for r in report.rows if r.fits is not None and r.fits != r.ran]
    said = "Wrong, with the part of its memory that the fullest GPU is predicted to need"
    named = f"\n{said}: {', '.join(wrong)}.\n" if wrong else ""
    return "\n".join(lines) + "\n" + named


def _filled(result: PublishedResult) -> str:
    share = result.filled_share
    return result.id if share is None else f"{result.id} ({100 * share:.1f} %)"
