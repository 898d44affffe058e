"""clustersim validate: how far are predictions from reality?"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from simulator.cli.completion import complete_profile
from simulator.cli.console import (
    Column,
    counting,
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
)
from simulator.cli.options import AsJson, option
from simulator.cli.planning.sweep import Workers
from simulator.errors import InputError
from simulator.files import whole_file

if TYPE_CHECKING:
    from simulator.validate.first_sight import Kept

Table = Annotated[Path, typer.Argument(metavar="FILE.csv", help="What was measured.")]
Out = Annotated[Path | None, option("Also write the rows to this file.", "FILE.csv", name="--out")]
MaxMape = Annotated[
    float | None,
    option("Exit with 1 if the mean error in percent is higher.", "PERCENT", name="--max-mape"),
]

FirstSight = Annotated[
    bool,
    option(
        "Keep these predictions as the first ones: runs that --kept does not have are "
        "appended to it, runs that it has stay as they are.",
        name="--first-sight",
    ),
]


class Report(Protocol):
    """What every kind of validation returns."""

    def to_dict(self) -> Mapping[str, Any]:
        """The report as JSON writes it: ``rows``, ``summary`` and more tables."""


def published(
    table: Table,
    as_json: AsJson = False,
    out: Out = None,
    max_mape: MaxMape = None,
    workers: Workers = None,
    *,
    first_sight: FirstSight = False,
    kept: Annotated[Path, option("Where --first-sight keeps predictions.", "FILE.csv")] = Path(
        "reports/first_sight.csv"
    ),
    anchor: Annotated[
        int,
        option(
            "Calibrate the systems of each source with its first N runs, in order of id, grades A "
            "and A- first, as clustersim calibrate runs does; errors are those of the other runs.",
            "N",
            min=0,
        ),
    ] = 0,
    ratios: Annotated[
        bool,
        option(
            "Also say how far ratios between layouts of a source are off, and what picking "
            "the layout that is predicted to be the fastest would have cost in each sweep.",
            name="--ratios",
        ),
    ] = False,
) -> None:
    """Compare predictions with published training runs.

    Example:  clustersim validate published runs.csv --out errors.csv

    Example:  clustersim validate published runs.csv --anchor 3

    Example:  clustersim validate published runs.csv --ratios
    """
    from simulator.planning.executors import worker_pool
    from simulator.validate.published.anchored_runs import validate_anchored
    from simulator.validate.published.published_runs import read_rows, validate_published
    from simulator.validate.published.row_facts import facts_file_of

    _note_facts(facts_file_of(table))
    if first_sight and anchor:
        rule = "keeps predictions for runs of which nothing was known"
        raise InputError.single("--first-sight", rule, hint="leave --anchor out")
    with worker_pool(workers) as (executor, _), counting("rows") as count:
        if anchor:
            report = validate_anchored(table, anchor, executor=executor, on_row=lambda _: count())
        else:
            report = validate_published(table, executor=executor, on_row=lambda _: count())
    if first_sight:
        from simulator.validate.first_sight import keep_first_sight

        _note_kept(kept, keep_first_sight(report.rows, read_rows(table), kept))
    more: Mapping[str, Any] = {}
    if ratios:
        from simulator.validate.published.what_if_errors import what_if_errors

        more = what_if_errors(report.rows, read_rows(table))
    _show(report, more, as_json=as_json, out=out, max_mape=max_mape)


def collectives(
    table: Table,
    as_json: AsJson = False,
    out: Out = None,
    max_mape: MaxMape = None,
    plot: Annotated[
        Path | None, option("Draw the bus bandwidth of each system into this folder.", "DIR")
    ] = None,
) -> None:
    """Compare predictions with measured collectives.

    FILE is a table; the output of nccl-tests is read by clustersim calibrate collectives.

    Example:  clustersim validate collectives nccl.csv --plot pictures
    """
    from simulator.validate.collective_errors import validate_collectives

    report = validate_collectives(table)
    if plot is not None:
        from simulator.validate.measured_bandwidths import draw_bus_bandwidths

        for path in draw_bus_bandwidths(table, plot):
            note(f"wrote {path}")
    _show(report, as_json=as_json, out=out, max_mape=max_mape)


def kernels(
    table: Table,
    as_json: AsJson = False,
    out: Out = None,
    max_mape: MaxMape = None,
    profile: Annotated[
        str | None,
        option(
            "Predict every row with this profile, a shipped name or a .yaml file; "
            "by default, each with that of its GPU.",
            "NAME|FILE",
            autocompletion=complete_profile,
        ),
    ] = None,
) -> None:
    """Compare predictions with measured kernels.

    Example:  clustersim validate kernels kernels.csv --max-mape 20
    """
    from simulator.described.load import load_profile
    from simulator.validate.kernel_errors import validate_kernels

    own = None if profile is None else load_profile(profile)
    _show(validate_kernels(table, profile=own), as_json=as_json, out=out, max_mape=max_mape)


def serving(
    table: Table,
    as_json: AsJson = False,
    out: Out = None,
    max_mape: MaxMape = None,
    grade: Annotated[
        list[str] | None, option("Only rows of this grade; may be repeated.", "A|B|C")
    ] = None,
    workers: Workers = None,
    *,
    leave_one_source_out: Annotated[
        bool,
        option(
            "Predict each row without what runs of its own source told.",
            name="--leave-one-source-out",
        ),
    ] = False,
    first_sight: FirstSight = False,
    kept: Annotated[Path, option("Where --first-sight keeps predictions.", "FILE.csv")] = Path(
        "reports/serving_first_sight.csv"
    ),
) -> None:
    """Compare predictions with measured serving runs.

    Example:  clustersim validate serving serving.csv.gz --grade A
    """
    from simulator.planning.executors import worker_pool
    from simulator.validate.serving import validate_serving
    from simulator.validate.serving_commands import facts_file_of

    _note_facts(facts_file_of(table))
    with worker_pool(workers) as (executor, _), counting("rows") as count:
        report = validate_serving(
            table,
            grades=grade or (),
            executor=executor,
            on_row=lambda _: count(),
            leave_one_source_out=leave_one_source_out,
        )
    if first_sight:
        from simulator.validate.serving_first_sight import keep_serving_first_sight

        _note_kept(kept, keep_serving_first_sight(report.results, kept))
    _show(report, as_json=as_json, out=out, max_mape=max_mape)


def _note_kept(path: Path, added: Kept) -> None:
    note(f"{path}: {added.new} runs added, {added.known} already present")


def _note_facts(file: Path | None) -> None:
    if file is not None:
        note(f"facts about its runs are read from {file}")


def _show(
    report: Report,
    more: Mapping[str, Any] = MappingProxyType({}),
    *,
    as_json: bool,
    out: Path | None,
    max_mape: float | None,
) -> None:
    """Print a report with ``more`` tables, and write its rows where asked."""
    document = {**report.to_dict(), **more}
    if as_json:
        print_json(document)
    else:
        _print_report(document)
    if out is not None:
        _write_rows(document["rows"], out)
        note(f"wrote {out}")
    mape = document["summary"]["mape"]
    if max_mape is not None and (mape is None or mape > max_mape):
        found = "there is no prediction" if mape is None else f"the mean error is {mape:.1f} %"
        note(f"{found}; wanted: at most {max_mape:g} %")
        raise typer.Exit(1)


def _print_report(document: Mapping[str, Any]) -> None:
    from simulator.api.measured_answers import cell_text

    totals = {name: table for name, table in document.items() if _is_row(table)}
    for name, table in document.items():
        if name in totals:
            continue
        rows = (
            [{name.rpartition("by_")[2]: key, **row} for key, row in table.items()]
            if isinstance(table, Mapping)
            else table
        )
        if rows:
            _print_rows(name.replace("_", " "), rows)
    for name in sorted(totals, key=lambda name: name == "summary"):
        cells = [(key, cell_text(value)) for key, value in totals[name].items()]
        print_table(name, text_columns("") + number_columns(""), cells)


def _is_row(table: object) -> bool:
    """Whether it is one row of values, not a row for each name."""
    values = list(table.values()) if isinstance(table, Mapping) else []
    return bool(values) and not any(isinstance(value, Mapping) for value in values)


def _print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from simulator.api.measured_answers import cell_text

    names = list(rows[0])
    columns = [
        Column(name, is_number=any(isinstance(row[name], (int, float)) for row in rows))
        for name in names
    ]
    print_table(title, columns, [[cell_text(row[name]) for name in names] for row in rows])


def _write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    with whole_file(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0] if rows else [])
        writer.writeheader()
        writer.writerows(rows)
