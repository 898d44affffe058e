"""clustersim calibrate runs: what do a few steps of your own say of your system?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import (
    counting,
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
)
from simulator.cli.options import AsJson, Changes, complete_profile, file_to_write, option, quantity
from simulator.errors import InputError
from simulator.files import write_whole
from simulator.units import format_bytes

if TYPE_CHECKING:
    from simulator.calibrate.own_system import OwnSystem


def runs(
    table: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUNS.csv",
            help="Measured runs of the system, with the columns of reports/data/runs_open.csv.",
        ),
    ] = None,
    *,
    job_file: Annotated[
        Path | None,
        option("The job of a single run, in place of a table.", "JOB.yaml", name="--job"),
    ] = None,
    step: Annotated[
        str | None, option("With --job: its measured step time, such as 15.9s.", "TIME")
    ] = None,
    memory: Annotated[
        str | None, option("With --job: its measured device memory, such as 61GiB.", "BYTES")
    ] = None,
    changes: Changes = None,
    profile: Annotated[
        str | None,
        option(
            "The system: a shipped name or a .yaml file; by default that of the job.",
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
    Every command accepts the new profile, and its prediction intervals are narrower.

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
    from simulator.calibrate.own_system import own_system, table_runs

    if profile is None:
        hint = "name the system that the runs were measured on: --profile h100-sxm-80gb"
        raise InputError.single("--profile", "is missing", hint=hint)
    with counting("runs") as count:
        return own_system(profile, table_runs(table, profile, count))


def _of_job(
    path: Path,
    changes: list[str] | None,
    profile: str | None,
    step: str | None,
    memory: str | None,
) -> OwnSystem:
    from simulator.calibrate.own_system import job_run, on_system, own_system
    from simulator.cli.options import read_job
    from simulator.results.simulation import run_step

    if step is None:
        hint = "give the measured step time: --step 15.9s"
        raise InputError.single("--step", "is missing", hint=hint)
    measured_s = quantity(step, "--step", "s")
    measured_bytes = None if memory is None else quantity(memory, "--memory", "bytes")
    job = read_job(path, changes)
    name = profile or str(job.document["cluster"]["profile"])
    job = on_system(job, name)
    run = job_run(job, run_step(job), measured_s, measured_bytes)
    return own_system(name, [(job, run)])


def _print_numbers(found: OwnSystem) -> None:
    rows = [
        (path, _number_text(found.before[path]), _number_text(after))
        for path, after in found.fields.items()
        if path != "own_runs"
    ]
    columns = text_columns("number") + number_columns("before", "after")
    count = len(found.runs)
    print_table(f"learned from {'1 run' if count == 1 else f'{count} runs'}", columns, rows)


def _number_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_runs(found: OwnSystem) -> None:
    from simulator.api.measured_answers import RUN_NUMBERS, run_rows

    columns = text_columns("run") + number_columns(*RUN_NUMBERS)
    print_table(f"runs of {found.framework} on {found.profile}", columns, run_rows(found))
    if found.lesson.memory_bytes:
        beyond = found.lesson.memory_bytes
        word = "more" if beyond > 0 else "less"
        typer.echo(f"GPUs hold {format_bytes(abs(beyond))} {word} than was predicted")
