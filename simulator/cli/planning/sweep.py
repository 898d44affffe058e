"""clustersim sweep: what does each combination of a grid of changes give?"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    need_one_that_fits,
    note,
    number_columns,
    print_json,
    print_table,
    progress,
    text_columns,
    write_picture,
)
from simulator.cli.options import (
    AsJson,
    Changes,
    JobFile,
    PageFile,
    file_to_write,
    option,
    read_job,
    write_page_of,
)
from simulator.errors import InputError
from simulator.extras import require
from simulator.files import PICTURES, whole_file
from simulator.units import chance

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd


Workers = Annotated[
    int | None,
    option("Number of worker processes; by default one per core.", "N", name="--workers", min=1),
]

Dask = Annotated[
    str | None, option("Simulate on the Dask cluster with this scheduler address.", "ADDRESS")
]
DaskSecurity = Annotated[
    Path | None,
    option(
        "Files of TLS for --dask tls://HOST:PORT: ca_file, client_cert, client_key.", "FILE.yaml"
    ),
]

_CSV, _PARQUET = ".csv", ".parquet"


def cluster_asked(
    dask: str | None, security: Path | None, workers: int | None
) -> AbstractContextManager[Executor | None]:
    """The executor of the Dask cluster that is asked for; None where none is.

    Raises:
        InputError: The options contradict each other.
    """
    from simulator.planning.dask_cluster import dask_executor

    if workers is not None and dask is not None:
        raise InputError.single("--dask", "has its own workers", dask, "remove --workers")
    if security is not None and dask is None:
        raise InputError.single("--dask-security", "is for --dask", hint="give its scheduler")
    return contextlib.nullcontext() if dask is None else dask_executor(dask, security)


def sweep(
    context: typer.Context,
    job_file: JobFile,
    *,
    grid: Annotated[
        list[str] | None,
        option(
            "Values of a field to try, for example plan.tp=1,2,4,8; may be repeated. "
            "To change fields together: plan.tp,plan.pp=[1,8],[8,1].",
            "FIELD=VALUE,VALUE,…",
        ),
    ] = None,
    changes: Changes = None,
    out: Annotated[
        Path | None,
        option(
            "Write the table to this file. The rows stay in a .journal beside it, from which the "
            "same command continues, or draws, without simulating them again.",
            "FILE.csv|.parquet",
        ),
    ] = None,
    fresh: Annotated[
        bool, option("Overwrite the table of an earlier sweep at --out.", name="--fresh")
    ] = False,
    workers: Workers = None,
    dask: Dask = None,
    dask_security: DaskSecurity = None,
    plot: Annotated[
        Path | None,
        file_to_write("Draw a heat map, and throughput against memory.", *PICTURES),
    ] = None,
    html: PageFile = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a job under every combination of some changes.

    The table has one row per combination, with the reason if it cannot run. "fits" is the
    probability of not running out of memory.

    Exits with 1 if no combination fits.

    Example:  clustersim sweep job.yaml --grid plan.tp=1,2,4,8 --grid plan.zero=1,3 --out tp.csv

    Example:  clustersim sweep job.yaml --grid plan.tp=1,2,4,8 --grid plan.pp=1,2,4 --plot tp.png

    Example:  clustersim sweep job.yaml --grid plan.tp=1,2,4 --grid plan.pp=1,2 --html grid.html
    """
    from simulator.planning.sweep import grid_points, sweep, varied_fields
    from simulator.processor import core_count

    if not grid:
        hint = "--grid plan.tp=1,2,4; --set changes every combination alike"
        raise InputError.single("--grid", "needs at least one value to try", hint=hint)
    job, axes = read_job(job_file, changes), parse_grid(grid)
    count = len(grid_points(axes))
    cluster = cluster_asked(dask, dask_security, workers)
    if out is not None:
        _check_table(out, fresh=fresh)
    with progress("combinations", count) as counted, cluster as executor, _kept(out):
        table = sweep(
            job,
            axes,
            executor,
            workers=min(workers or core_count(), count),
            table=out,
            on_row=lambda row: counted(),
        )
    if out is not None:
        _write_table(table, out)
        note(f"wrote {out}: {_summary(table)}")
        note(kept_text(out))
    if plot is not None:
        from simulator.plots.sweep import build_sweep_figure

        write_picture(build_sweep_figure(table, varied_fields(table), job.title), plot)
    if html is not None:
        from simulator.api.grid_page import sweep_page

        write_page_of(sweep_page(table, job), html, context)
    if as_json:
        print_json({"rows": json.loads(table.to_json(orient="records"))})
    elif out is None and plot is None and html is None:
        _print_table(table, f"{job.title}, but for {', '.join(axes)}")
    _need_one_that_can_run(list(table["error"]))
    need_one_that_fits(table["fits"] == True, "combination")  # noqa: E712


def _need_one_that_can_run(errors: Sequence[str]) -> None:
    if all(errors):
        rule, *others = dict.fromkeys(errors)
        hint = f"and {len(others)} more, in the column error" if others else ""
        raise InputError.single("--grid", f"no combination can run: {rule}", hint=hint)


def parse_grid(texts: Sequence[str], option: str = "--grid") -> dict[str, list[Any]]:
    """Values by path of ``FIELD=VALUE,VALUE`` texts; each value is read as YAML does.

    Args:
        texts: What the user wrote.
        option: Where, for error messages.

    Raises:
        InputError: A text has no field, no ``=``, or no list of values, or two texts set the
            same field.
    """
    from simulator.described.documents import parse_yaml

    grid: dict[str, list[Any]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not field:
            hint = f"for example {option} plan.tp=1,2,4"
            raise InputError.single(option, "must be FIELD=VALUE,VALUE", text, hint)
        if field in grid:
            raise InputError.single(option, f"sets {field} twice", text)
        if ".." in values or re.fullmatch(r"\d+-\d+", values):
            hint = f"write every value, for example {option} {field}=1,2,4"
            raise InputError.single(option, "does not know ranges", text, hint)
        grid[field] = parse_yaml(f"[{values}]", f"{option} {text}")
    return grid


def _check_table(out: Path, *, fresh: bool) -> None:
    """Refuse, before anything is simulated, what could not be written at the end."""
    from simulator.planning.sweep import Journal, journal_path

    if out.suffix not in (_CSV, _PARQUET):
        raise InputError.single("--out", "must end in .csv or .parquet", str(out))
    if out.suffix == _PARQUET:
        require("pyarrow", "writes .parquet (.csv needs no extra)")
    journal = journal_path(out)
    if fresh:
        Journal.clear(journal)
    elif out.exists() and not journal.exists():
        rule = "exists, and no journal beside it names the sweep that it belongs to"
        raise InputError.single("--out", rule, str(out), "choose another name, or add --fresh")


def kept_text(out: Path) -> str:
    """Why a journal stays beside a finished table."""
    from simulator.planning.sweep import journal_path

    name = journal_path(out).name
    return f"{name} keeps the rows: the same command, also with --plot or --html, reads them there"


@contextlib.contextmanager
def _kept(out: Path | None) -> Iterator[None]:
    """Say, where somebody interrupts, that finished rows are not lost."""
    from simulator.planning.sweep import journal_path

    try:
        yield
    except KeyboardInterrupt:
        if out is not None and journal_path(out).exists():
            note(
                f"\n{journal_path(out)} keeps the finished rows; the same command continues from "
                "there"
            )
        raise


def _write_table(table: pd.DataFrame, out: Path) -> None:
    with whole_file(out) as draft:
        if out.suffix == _CSV:
            table.to_csv(draft, index=False)
        else:
            _of_one_type(table).to_parquet(draft, index=False)


def _of_one_type(table: pd.DataFrame) -> pd.DataFrame:
    """The table with columns that mix types (a number here, a text there) as text."""
    mixed = {
        name: table[name].map(json.dumps)
        for name in table.columns
        if len({type(value) for value in table[name].dropna()}) > 1
    }
    return table.assign(**mixed)


def _summary(table: pd.DataFrame) -> str:
    failed = int((table["error"] != "").sum())
    misfits = int((table["fits"] == False).sum())  # noqa: E712
    return f"{len(table)} rows, {misfits} do not fit, {failed} cannot run (see column error)"


def _print_table(table: pd.DataFrame, title: str) -> None:
    """What a person compares; everything else is in the file and in --json."""
    from simulator.planning.sweep import varied_fields
    from simulator.units import format_bytes, format_seconds

    paths = varied_fields(table)
    rows = []
    for row in table.to_dict("records"):
        given = [str(row[path]) for path in paths]
        if row["error"]:
            rows.append([*given, "", "", "", "", row["error"]])
            continue
        rows.append(
            [
                *given,
                format_seconds(row["step_time_s"]),
                f"{row['tokens_per_s_per_gpu']:,.1f}",
                format_bytes(row["peak_device_bytes"]),
                chance(row["fits_probability"]),
                "",
            ]
        )
    columns = (
        text_columns(*paths)
        + number_columns("step time", "tokens/s per GPU", "fullest GPU", "fits")
        + text_columns("error")
    )
    print_table(title, columns, rows)
