"""clustersim calibrate: which profile do your own measurements make?"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simulator.cli.completion import complete_profile
from simulator.cli.console import (
    counting,
    note,
    number_columns,
    print_answer_table,
    print_json,
    print_table,
    progress,
    text_columns,
    working,
    write_picture,
)
from simulator.cli.options import AsJson, Changes, Picture, file_to_write, option, quantity
from simulator.errors import InputError
from simulator.extras import require
from simulator.files import write_whole
from simulator.units import (
    counted,
    format_bytes,
    format_seconds,
    parse_quantity,
    percent,
    signed_percent,
)

if TYPE_CHECKING:
    from simulator.calibrate.network.measured_network import Calibration
    from simulator.calibrate.own_system import OwnSystem
    from simulator.importers.nccl_tests.nccl_tests_run import Excerpt, Excluded

_PLACES_SHOWN = 4

_MOST_RANKS = 2**20

MeasuredBackend = Literal["nccl", "gloo"]

_LARGEST = {"nccl": "512 MiB", "gloo": "16 MiB"}


def collectives(  # noqa: PLR0917 - typer's way of declaring options
    profile: Annotated[
        str,
        option(
            "The measured system: a shipped name or a .yaml file.",
            "NAME|FILE",
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
        Path | None, option("File to write the fitted profile to.", "FILE.yaml", name="--out")
    ] = None,
    as_json: AsJson = False,
    plot: Picture = None,
    partial: Annotated[
        bool, option("Also use the rows of interrupted runs.", name="--partial")
    ] = False,
    collective: Annotated[
        str | None,
        option("What a pasted table measured, where it does not say: all_reduce.", "NAME"),
    ] = None,
    ranks: Annotated[
        int | None, option("On how many GPUs it ran.", "NUMBER", min=2, max=_MOST_RANKS)
    ] = None,
    nodes: Annotated[int, option("On how many hosts it ran.", "NUMBER", min=1)] = 1,
    measure: Annotated[
        Path | None,
        option(
            "Measure first, with the ranks that torchrun started, and save the rows to this file.",
            "TABLE.csv",
            name="--measure",
        ),
    ] = None,
    backend: Annotated[
        MeasuredBackend | None,
        option("Library to measure; by default nccl if every rank has a GPU."),
    ] = None,
    largest: Annotated[
        str | None,
        option(
            "Largest message to measure; by default 512 MiB with nccl, 16 MiB with gloo.", "BYTES"
        ),
    ] = None,
    resume: Annotated[
        bool, option("Continue the table of an earlier --measure.", name="--resume")
    ] = False,
) -> None:
    """Fit a profile's links to measured collectives.

    Out-of-place times are used. Numbers that the rows do not determine stay as in the profile.
    Measure with  torchrun --nproc-per-node 8 --no-python clustersim calibrate collectives
    --profile h100-sxm-80gb --measure table.csv --out ours.yaml

    Example:  clustersim calibrate collectives *.txt --profile h100-sxm-80gb --out ours.yaml
    """
    from simulator.calibrate.network.measured_network import (
        calibrate_collectives,
        read_measured,
        to_dict,
    )
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
    excerpt = _excerpt(collective, ranks, nodes)
    read = [read_measured(file, partial=partial, excerpt=excerpt) for file in given]
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
        from simulator.plots.bus_bandwidth import build_collective_fit_figure

        title = f"collectives of {base.name}"
        write_picture(build_collective_fit_figure(calibration.points, title), plot)


def _excerpt(collective: str | None, ranks: int | None, nodes: int) -> Excerpt | None:
    """What ran, of a table without the lines that say so."""
    from simulator.importers.nccl_tests.nccl_tests_run import SAY, Excerpt

    if collective is None and ranks is None and nodes == 1:
        return None
    if collective is None:
        raise InputError.single("--collective", "is needed to read a pasted table", hint=SAY)
    return Excerpt(collective, ranks, nodes)


def _print_parameters(calibration: Calibration) -> None:
    from simulator.calibrate.network.measured_network import parameters, value_text

    rows = [
        (
            row["field"],
            "" if row["base"] is None else value_text(row["name"], row["base"]),
            value_text(row["name"], row["fitted"]),
            "unknown" if row["spread"] is None else percent(row["spread"], 0),
        )
        for row in parameters(calibration)
    ]
    columns = text_columns("parameter") + number_columns(
        calibration.base.name, "fitted", "known to"
    )
    print_table("parameters", columns, rows)


def _print_residuals(calibration: Calibration) -> None:
    from simulator.calibrate.network.measured_network import median_error, residuals

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
    columns = text_columns("collective", "GPUs on nodes", "sizes") + number_columns(
        "rows", "median error before", "after", "spread"
    )
    before, after = median_error(calibration.points)
    title = (
        f"errors of {len(calibration.points)} rows, positive if predicted too slow: "
        f"median size {percent(before)} before, {percent(after)} after"
    )
    print_table(title, columns, rows)


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def _note_what_is_left(calibration: Calibration) -> None:
    for sentence in calibration.notes:
        note(sentence)
    reasons: dict[str, list[Excluded]] = {}
    for lost in calibration.excluded:
        reasons.setdefault(lost.reason, []).append(lost)
    for reason, lost_rows in reasons.items():
        count = sum(lost.rows for lost in lost_rows)
        rows = counted(count, "row")
        note(f"left out {rows}: {reason} ({_places(lost_rows)})")


def _places(lost_rows: Sequence[Excluded]) -> str:
    shown = [lost.place for lost in lost_rows[:_PLACES_SHOWN]]
    more = len(lost_rows) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown)


def measured(
    table: Path, backend: MeasuredBackend | None, largest: str | None, *, resume: bool
) -> bool:
    """Measures with all ranks; whether this rank continues to fit.

    Args:
        table: Where the rows are kept.
        backend: Library of the collectives; by default that of the device.
        largest: Largest message, with its unit; by default what the backend is used for.
        resume: Whether to continue an existing table.

    Raises:
        InputError: There are no ranks, their library is not there, or the table or a size is wrong.
    """
    require("torch", "runs what is measured")
    from simulator.calibrate.network.measure_collectives import (
        collective_cases,
        launched_world,
        measure_collectives,
    )
    from simulator.ranks.world import joined

    largest_bytes = None if largest is None else quantity(largest, "--largest", "bytes")
    world = launched_world(backend or "auto")
    if largest_bytes is None:
        largest_bytes = quantity(_LARGEST[world.backend], "--largest", "bytes")
    is_first = world.rank == 0
    with joined(world):
        cases = collective_cases(world, largest_bytes)
        if is_first:
            groups = ", ".join(str(ranks) for ranks in world.groups)
            note(
                f"measuring {world.library} with groups of {groups} ranks, "
                f"messages up to {format_bytes(largest_bytes)}"
            )
        bar = progress("collectives", len(cases)) if is_first else contextlib.nullcontext(_nothing)
        with bar as count:
            measure_collectives(world, table, largest_bytes, resume=resume, on_case=count)
    return is_first


def _nothing() -> None:
    """Count nothing: only the first rank shows progress."""


def runs(
    table: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUNS.csv",
            help="Measured runs of the system: job, measured_step_s, and columns such as plan.tp "
            "for fields that differ; or the columns of reports/data/runs_open.csv.",
        ),
    ] = None,
    *,
    job_file: Annotated[
        Path | None,
        option("The job of a single run, in place of a table.", "JOB.yaml", name="--job"),
    ] = None,
    step: Annotated[
        str | None,
        option(
            'With --job: its measured step time, such as 15.9s, or "8200 tokens/s/GPU".', "TIME"
        ),
    ] = None,
    memory: Annotated[
        str | None, option("With --job: its measured device memory, such as 61GiB.", "BYTES")
    ] = None,
    changes: Changes = None,
    profile: Annotated[
        str | None,
        option(
            "The system: a shipped name or a .yaml file; by default that of the job or jobs.",
            "NAME|FILE",
            autocompletion=complete_profile,
        ),
    ] = None,
    out: Annotated[
        Path | None, file_to_write("File to write the calibrated profile to.", ".yaml", ".yml")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a profile to a few measured steps.

    Each number changes only as far as the runs support it. One run changes mostly the overall
    speed; several runs separate kernels, hosts, collectives and the fabric.
    Every command accepts the new profile. Runs near their predictions narrow its prediction
    intervals; runs far from them widen them.

    Example:  clustersim calibrate runs ours.csv --profile h100-sxm-80gb --out ours.yaml

    Example:  clustersim calibrate runs --job job.yaml --step 15.9s --memory 61GiB --out ours.yaml
    """
    from simulator.api import CalibrateAnswer

    if (table is None) == (job_file is None):
        hint = "name a table, or one run with --job JOB.yaml --step TIME"
        raise InputError.single("RUNS.csv", "give either a table or --job", hint=hint)
    if table is not None:
        _refuse_for_table(step, memory, changes)
        found = _of_table(table, profile)
    else:
        assert job_file is not None, "give a table or a job, not both"
        found = _of_job(job_file, changes, profile, step, memory)
    if as_json:
        print_json(CalibrateAnswer(found).to_dict())
    else:
        _print_numbers(found)
        _print_runs(found)
    for name, reason in found.skipped.items():
        note(f"left out {name}: {reason}")
    for learnt in found.runs:
        if learnt.contradicts:
            note(f"{learnt.run.name} contradicts the other runs, so it has little weight: check it")
    if out is not None:
        write_whole(out, found.text(f"{table or job_file}: {len(found.runs)} measured runs"))
        note(f"wrote {out}")


def _refuse_for_table(step: str | None, memory: str | None, changes: list[str] | None) -> None:
    for name, given in (("--step", step), ("--memory", memory), ("--set", changes)):
        if given:
            rule, hint = "is for a single run, and a table is given", "give --job, or remove it"
            raise InputError.single(name, rule, hint=hint)


def _of_table(table: Path, profile: str | None) -> OwnSystem:
    from simulator.calibrate.own_system import own_system
    from simulator.calibrate.own_table import system_of_jobs, table_runs

    profile = profile or system_of_jobs(table)
    if profile is None:
        hint = "name the system that the runs were measured on: --profile h100-sxm-80gb"
        raise InputError.single("--profile", "is missing", hint=hint)
    with counting("runs") as count:
        return own_system(profile, *table_runs(table, profile, count))


def _of_job(
    path: Path,
    changes: list[str] | None,
    profile: str | None,
    step: str | None,
    memory: str | None,
) -> OwnSystem:
    from simulator.calibrate.own_system import own_system
    from simulator.calibrate.own_table import job_run, on_system
    from simulator.cli.options import measured_step_s, read_job
    from simulator.results.simulation import run_step

    if step is None:
        hint = "give the measured step time: --step 15.9s"
        raise InputError.single("--step", "is missing", hint=hint)
    measured_bytes = None if memory is None else quantity(memory, "--memory", "bytes")
    job = read_job(path, changes)
    name = profile or str(job.document["cluster"]["profile"])
    job = on_system(job, name)
    run = job_run(job, run_step(job), measured_step_s(step, job), measured_bytes)
    return own_system(name, [(job, run)])


def _print_numbers(found: OwnSystem) -> None:
    rows = [
        (path, _number_text(found.before[path]), _number_text(after))
        for path, after in found.fields.items()
        if path != "own_runs" and after != found.before[path]
    ]
    columns = text_columns("number") + number_columns("before", "after")
    print_table(f"learned from {counted(len(found.runs), 'run')}", columns, rows)


def _number_text(value: object) -> str:
    """A number of a profile for people: files write times in whichever unit is exact."""
    if isinstance(value, float):
        return f"{value:.4g}"
    for dimension, text in (("s", format_seconds), ("bytes", format_bytes)):
        with contextlib.suppress(ValueError):
            return text(parse_quantity(str(value), dimension))
    return str(value)


def _print_runs(found: OwnSystem) -> None:
    from simulator.api.measured_answers import runs_table

    print_answer_table(f"runs of {found.framework} on {found.profile}", runs_table(found))
    if found.lesson.memory is not None:
        share = signed_percent(math.expm1(found.lesson.memory.spread.centre))
        typer.echo(f"GPUs most likely hold {share} against predictions: odds of fitting know it")
