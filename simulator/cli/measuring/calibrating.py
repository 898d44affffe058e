"""clustersim calibrate: which profile do your own measurements make?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import (
    note,
    number_column,
    percent,
    print_json,
    print_table,
    text_column,
    working,
)
from simulator.cli.measuring.calibrating_gpu import gpu
from simulator.cli.measuring.measuring_collectives import MeasuredBackend, measured
from simulator.cli.options import AsJson, complete_profile, written_as
from simulator.errors import InputError
from simulator.files import write_whole
from simulator.plots.formats import PICTURES

if TYPE_CHECKING:
    from simulator.calibrate.network.measured_network import Calibration
    from simulator.importers.nccl_tests.nccl_tests_run import Excluded

_PLACES_SHOWN = 4


def build_group() -> typer.Typer:
    """The ``calibrate`` commands."""
    group = typer.Typer(
        name="calibrate", no_args_is_help=True, help="Profiles from your own measurements."
    )
    group.command("gpu")(gpu)
    group.command("collectives")(collectives)
    return group


def collectives(  # noqa: PLR0917 - typer's way of declaring options
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="The system measured: a shipped name or a .yaml file.",
            autocompletion=complete_profile,
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Output of nccl-tests or rccl-tests (text, or JSON of -J), or tables (.csv).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.yaml", help="Write the fitted profile."),
    ] = None,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            callback=written_as(*PICTURES),
            help="Draw the fit (.png, .svg, .pdf).",
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Take the rows of runs that were cut off.")
    ] = False,
    measure: Annotated[
        Path | None,
        typer.Option(
            "--measure",
            metavar="TABLE.csv",
            help="Measure first, with the ranks that torchrun started, and keep the rows here.",
        ),
    ] = None,
    backend: Annotated[
        MeasuredBackend | None,
        typer.Option(help="What is measured; nccl where every rank has a GPU."),
    ] = None,
    largest: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="Largest message measured; 512 MiB with nccl, 16 MiB with gloo."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the table of an earlier --measure.")
    ] = False,
) -> None:
    """Fit a profile's links to measured collectives.

    Times are those out of place. What the rows cannot tell stays as the profile has it.
    Measure with  torchrun --nproc-per-node 8 --no-python clustersim calibrate collectives
    --profile h100-sxm-80gb --measure table.csv --out ours.yaml

    Example:  clustersim calibrate collectives *.txt --profile h100-sxm-80gb --out ours.yaml
    """
    from simulator.calibrate.network.fit_residuals import to_dict
    from simulator.calibrate.network.measured_network import calibrate_collectives, read_measured
    from simulator.calibrate.profile_text import with_sourced_values
    from simulator.described.load import load_profile, profile_file

    base = load_profile(profile)
    given = list(files or ())
    if measure is not None:
        if not measured(measure, backend, largest, resume=resume):
            return
        given.append(measure)
    elif not given:
        hint = "name files, or measure under torchrun with --measure TABLE.csv"
        raise InputError.single("FILE", "nothing to fit to", hint=hint)
    read = [read_measured(file, partial=partial) for file in given]
    with working(f"fitting to {sum(len(file.rows) for file in read)} rows"):
        calibration = calibrate_collectives(read, base)
    if as_json:
        print_json(to_dict(calibration))
    else:
        _print_parameters(calibration)
        _print_residuals(calibration)
    _note_what_is_left(calibration)
    if out is not None:
        file = profile_file(profile)
        text = file.read_text(encoding="utf-8")
        write_whole(out, with_sourced_values(text, calibration.sourced_values(), str(file)))
        note(f"wrote {out}")
    if plot is not None:
        from simulator.plots.measured.collective_fit import draw_collective_fit

        draw_collective_fit(calibration.points, plot, f"collectives of {base.name}")
        note(f"wrote {plot}")


def _print_parameters(calibration: Calibration) -> None:
    from simulator.calibrate.network.fit_residuals import parameters
    from simulator.calibrate.network.network_files import value_text

    rows = [
        (
            row["field"],
            "" if row["base"] is None else value_text(row["name"], row["base"]),
            value_text(row["name"], row["fitted"]),
            "not told" if row["spread"] is None else f"{row['spread']:.0%}",
        )
        for row in parameters(calibration)
    ]
    columns = [
        text_column("parameter"),
        number_column(calibration.base.name),
        number_column("fitted"),
        number_column("known to"),
    ]
    print_table("parameters", columns, rows)


def _print_residuals(calibration: Calibration) -> None:
    from simulator.calibrate.network.fit_residuals import median_error, residuals

    rows = [
        (
            residual.collective,
            f"{residual.ranks} on {residual.nodes}",
            residual.sizes,
            str(residual.rows),
            _signed(residual.base_median),
            _signed(residual.median),
            f"{_signed(residual.least)} to {_signed(residual.most)}",
        )
        for residual in residuals(calibration.points)
    ]
    columns = [
        text_column("collective"),
        text_column("GPUs on nodes"),
        text_column("sizes"),
        number_column("rows"),
        number_column("median error before"),
        number_column("after"),
        number_column("spread"),
    ]
    before, after = median_error(calibration.points)
    title = (
        f"errors of {len(calibration.points)} rows, positive where predictions are too slow: "
        f"median size {percent(before)} before, {percent(after)} after"
    )
    print_table(title, columns, rows)


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def _note_what_is_left(calibration: Calibration) -> None:
    for sentence in calibration.said:
        note(sentence)
    reasons: dict[str, list[Excluded]] = {}
    for lost in calibration.excluded:
        reasons.setdefault(lost.reason, []).append(lost)
    for reason, lost_rows in reasons.items():
        count = sum(lost.rows for lost in lost_rows)
        rows = "1 row" if count == 1 else f"{count} rows"
        note(f"left out {rows}: {reason} ({_places(lost_rows)})")


def _places(lost_rows: Sequence[Excluded]) -> str:
    shown = [lost.place for lost in lost_rows[:_PLACES_SHOWN]]
    more = len(lost_rows) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown)
