"""What does the report on memory say?

``make memory-report`` predicts all published runs, those that ran and those that ran out of
memory, and writes how far the memory is off, how often the verdict is right, and whether its
probability means what it says.

Run as ``python -m reports.make.accuracy.memory_page FIRST_SIGHT.csv OUT_OF_MEMORY.csv RUNS.csv ...
--picture FILE.png``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.make.accuracy.accuracy_table import COLUMNS, accuracy_table
from reports.make.accuracy.memory_left_out import (
    LeftOutRun,
    left_out_runs,
    left_out_section,
    rows_to_predict_again,
)
from reports.make.accuracy.memory_regimes import (
    Placed,
    regimes_section,
    share_within,
    split_scores,
)
from reports.make.fit.memory_errors import (
    MemoryResidual,
    first_residuals,
    fitted_spread,
    residual_of,
    unmeasured_spread,
)
from reports.make.fit.residual_facts import bare_rows
from reports.make.tables import markdown_table
from simulator.cells import Row
from simulator.plots import style
from simulator.processor import core_count
from simulator.results.fit_probability import EVEN
from simulator.validate.accuracy import Accuracy
from simulator.validate.published.published_rows import memory_kind
from simulator.validate.published.published_runs import (
    PublishedResult,
    predicted,
    read_rows,
    row_source,
)

_GRADES = ("A", "A-")
_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
_TOP_IN, _PANEL_IN, _BOTTOM_IN, _LEFT_IN, _RIGHT_IN = 0.5, 3.0, 0.7, 0.8, 0.2
"""Around and between the panels of the picture."""

_HEAD = """# Will it fit?

Memory of the fullest GPU, predicted and as published. Reserved and device memory are those of a
device that has room for them: they are never cut at its size. `make memory-report` writes this
page.
"""
_SPREAD = """## How sure is that?

`fits_probability` takes the logarithm of held over predicted memory as Student's t about a centre
(`simulator/facts/memory_errors.yaml`; `make memory-errors` fits it anew). Runs of grades A and A-
that state their memory, each held against the spread that all *other* sources give: what share
holds no more than is allowed at a probability, and sources counted alike.
"""


class Run(NamedTuple):
    """A published run and its prediction."""

    row: Row
    result: PublishedResult


def runs_of(rows: Sequence[Row]) -> list[Run]:
    """All rows, predicted without contention, which memory does not depend on."""
    with ProcessPoolExecutor(core_count()) as executor:
        found = executor.map(partial(predicted, engine="replay"), rows, chunksize=8)
        return [Run(row, result) for row, result in zip(rows, found, strict=True)]


def apart(tables: Mapping[str, Sequence[Run]]) -> tuple[dict[str, list[Run]], list[Run]]:
    """Runs of each table that ran, and those of all tables that ran out of memory."""
    ran = {name: [run for run in table if run.result.ran] for name, table in tables.items()}
    failed = [run for table in tables.values() for run in table if not run.result.ran]
    return ran, failed


def page(
    tables: Mapping[str, Sequence[Run]],
    misfits: Sequence[Run],
    shares: str,
    left_out: str,
    regimes: str = "",
) -> str:
    """The report.

    Args:
        tables: Runs by the name of their table.
        misfits: Runs that their sources report as out of memory.
        shares: Table of the calibration, see :func:`calibration_table`.
        left_out: Section on runs without what their own source told.
        regimes: Section on what is known of runs beforehand.
    """
    runs = [run for table in tables.values() for run in table]
    named = {f"{name}, {kind}": of for name, table in tables.items()
             for kind, of in _by(table, lambda run: memory_kind(run.row)).items()}  # fmt: skip
    by_kind = accuracy_table(("table and kind", *COLUMNS), named.items())
    by_source = accuracy_table(("source", *COLUMNS), _by(runs, _source).items())
    return "\n".join([
        _HEAD, by_kind, _verdicts(runs, misfits), _SPREAD, shares,
        "![calibration](memory.png)\n", regimes, left_out, "## By source\n", by_source,
    ])  # fmt: skip


def _source(run: Run) -> str:
    return row_source(run.row["id"])


def _by(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, Accuracy]:
    stated = [run for run in runs if run.result.measured_mem_gib is not None]
    groups: dict[str, list[float | None]] = {}
    for run in stated:
        groups.setdefault(key(run), []).append(run.result.mem_error_pct)
    return {name: Accuracy.of(groups[name]) for name in sorted(groups)}


def _verdicts(runs: Sequence[Run], misfits: Sequence[Run]) -> str:
    lines = ["| runs | predicted | probability at least 50 % | below | share right |"]
    lines += ["|---|---:|---:|---:|---:|"]
    wrong = []
    for name, group, fits in (("ran", runs, True), ("out of memory", misfits, False)):
        known = [run.result for run in group if run.result.fits_probability is not None]
        likely = sum(_likely(result) for result in known)
        right = likely if fits else len(known) - likely
        share = f"{100 * right / len(known):.1f} %" if known else ""
        lines.append(f"| {name} | {len(known)} | {likely} | {len(known) - likely} | {share} |")
        wrong += [result for result in known if _likely(result) is not fits]
    named = ", ".join(f"{each.id} ({100 * (each.filled_share or 0):.0f} %)" for each in wrong)
    said = "Wrong, with the part of its memory that the fullest GPU is predicted to need"
    return "\n".join([*lines, "", f"{said}: {named or 'none'}.", ""])


def _likely(result: PublishedResult) -> bool:
    return (result.fits_probability or 0.0) >= EVEN


def placed(known: Sequence[MemoryResidual], first: Sequence[MemoryResidual]) -> list[Placed]:
    """Each run, by the spread without its own source: the probability of holding no more."""
    found = []
    for source in sorted({each.source for each in known}):
        others = [each for each in known if each.source != source]
        stacks, profiles = ({getattr(each, n) for each in others} for n in ("stack", "profile"))
        own = [each for each in known if each.source == source]
        spread = fitted_spread(others)
        for is_known in (True, False):
            held = [
                each for each in own
                if (each.stack in stacks and each.profile in profiles) is is_known
            ]  # fmt: skip
            if held and not is_known:
                spread = unmeasured_spread([e for e in first if e.source != source], spread)
            found += [
                Placed(source, spread.share_below(each.log_ratio), each.traits) for each in held
            ]
    return found


def calibration_table(found: Sequence[Placed]) -> str:
    """What share of runs holds no more than is allowed at a probability."""
    heads = ("probability asked", "runs that hold no more", "sources counted alike")
    shares = (
        (level, fmean(each.probability <= level for each in found), share_within(found, level))
        for level in _LEVELS
    )
    rows = ((f"{level:.0%}", f"{alone:.1%}", f"{alike:.1%}") for level, alone, alike in shares)
    return "\n".join(markdown_table(heads, rows, "rrr")) + "\n"


def build_calibration_figure(
    found: Sequence[Placed], ran: Sequence[float], misfits: Sequence[float]
) -> Figure:
    """Asked against observed probability; and the verdicts of both kinds of runs."""
    figure = style.new_figure(_TOP_IN + _PANEL_IN + _BOTTOM_IN)
    width = (style.WIDTH_IN - 2 * _LEFT_IN - _RIGHT_IN) / 2
    left, right = (
        style.add_axes_in(figure, left=start, top=_TOP_IN, width=width, height=_PANEL_IN)
        for start in (_LEFT_IN, 2 * _LEFT_IN + width)
    )
    levels = [step / 100 for step in range(101)]
    left.plot([0, 1], [0, 1], color=style.INK, linewidth=0.8, linestyle=":")
    shares = [share_within(found, level) for level in levels]
    left.plot(levels, shares, color=style.BLUE)
    _name(left, "calibration", "probability asked", "share of runs that hold no more")
    bins = [step / 20 for step in range(21)]
    for name, values, color in (
        ("ran", ran, style.BLUE), ("out of memory", misfits, style.VERMILLION),
    ):  # fmt: skip
        weights = [100 / max(1, len(values))] * len(values)
        right.hist(values, bins=bins, weights=weights, color=color, alpha=0.6, label=name)
    _name(right, "verdicts", "probability that the run fits", "runs [%]")
    right.legend(frameon=False, fontsize=style.SMALL_PT, loc="upper center")
    return figure


def _name(axes: Axes, heading: str, across: str, up: str) -> None:
    style.add_heading(axes, heading)
    axes.set_xlabel(across, fontsize=style.SMALL_PT, color=style.INK)
    axes.set_ylabel(up, fontsize=style.SMALL_PT, color=style.INK)


def main() -> None:
    """Predict, write the picture, and print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first_sight", type=Path)
    parser.add_argument("out_of_memory", type=Path)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--picture", type=Path, required=True)
    given = parser.parse_args()
    told = {path.stem: runs_of(read_rows(path)) for path in given.tables}
    tables, failed = apart(told)
    misfits = [*runs_of(read_rows(given.out_of_memory)), *failed]
    runs = [run for table in tables.values() for run in table]
    graded = [run for run in runs if run.row["grade"] in _GRADES]
    known = [
        residual_of(run.row, run.result.mem_error_pct)
        for run in graded
        if run.result.mem_error_pct is not None and math.isfinite(run.result.mem_error_pct)
    ]
    found = placed(known, first_residuals([run.row for run in runs], given.first_sight))
    likely = [
        [run.result.fits_probability for run in group if run.result.fits_probability is not None]
        for group in (runs, misfits)
    ]
    style.save(build_calibration_figure(found, *likely), given.picture)
    left_out = [run for path in given.tables for run in _without_own_source(path, told[path.stem])]
    shares = calibration_table(found)
    regimes = regimes_section(found, split_scores(known))
    print(page(tables, misfits, shares, left_out_section(left_out), regimes))


def _without_own_source(path: Path, runs: Sequence[Run]) -> list[LeftOutRun]:
    bare = bare_rows(path)
    again = {run.result.id: run.result for run in runs_of(rows_to_predict_again(bare))}
    return left_out_runs(runs, bare, again)


if __name__ == "__main__":
    main()
