"""clustersim schedule: in which order does a pipeline work, and what does that cost?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.completion import complete_schedule
from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
    write_picture,
)
from simulator.cli.options import AsJson, Changes, Picture, option
from simulator.cli.schedules_of_job import compare_steps, print_lines, refuse_sizes, show_step
from simulator.errors import InputError
from simulator.files import write_whole
from simulator.units import percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simulator.schedule import Phase, ScheduleInfo
    from simulator.schedule.unit_run import Comparison, UnitRun


Stages = Annotated[
    int | None,
    option("Number of pipeline stages; not for a CSV file.", "P", name="--pp"),
]
Chunks = Annotated[
    int | None,
    option("Chunks per stage; by default the fewest possible.", "V", name="--vpp"),
]
Microbatches = Annotated[
    int | None,
    option("Microbatches per step; not for a CSV file.", "M", name="--microbatches"),
]
Forward = Annotated[
    float | None,
    option(
        "Forward time of one microbatch on one rank, in any unit; default 1.",
        "TIME",
        name="--forward",
    ),
]
Backward = Annotated[
    float | None,
    option("Time of a whole backward, in the same unit; default 2.", "TIME", name="--backward"),
]
Weight = Annotated[
    float | None,
    option(
        "Time of the weight gradients within the backward; default half of it.",
        "TIME",
        name="--weight",
    ),
]
OfJob = Annotated[
    Path | None,
    option(
        "Use sizes, passes and transfers of this job and simulate its step.",
        "JOB.yaml",
        name="--job",
    ),
]

_NEVER_DRAINS = "never drains; the step time is that of as many microbatches in a full pipeline"
_ASYNCHRONOUS = f"asynchronous; the pipeline {_NEVER_DRAINS}"


def list_schedules(*, as_json: AsJson = False) -> None:
    """List the pipeline schedules.

    Example:  clustersim schedule list
    """
    from simulator.schedule import SCHEDULES

    names = ("name", "summary", "source")
    rows = [(info.name, info.summary, info.source) for info in SCHEDULES.values()]
    if as_json:
        print_json({"schedules": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    print_table("pipeline schedules", text_columns(*names), rows)


def show_schedule(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE.csv",
            autocompletion=complete_schedule,
            help="A schedule, or a CSV file in torch's format; by default the job's schedule.",
            show_default=False,
        ),
    ] = None,
    *,
    pp: Stages = None,
    microbatches: Microbatches = None,
    vpp: Chunks = None,
    forward: Forward = None,
    backward: Backward = None,
    weight: Weight = None,
    job: OfJob = None,
    changes: Changes = None,
    as_json: AsJson = False,
    plot: Picture = None,
    csv: Annotated[
        Path | None, option("Write the order as a CSV file in torch's format.", "FILE")
    ] = None,
) -> None:
    """Show the order of passes on every rank.

    Without --job, communication is free. With --job, a step is simulated, and --plot draws it.

    Orders that are searched for or decided at run time (zb-2p, varuna) follow from the given
    times, or with --job from its own passes and links.

    A CSV file has one row per rank and cells such as 2F0 (stage, one of F B I W, microbatch). An
    order that cannot run is refused with its row and column. In a job it is written as
    plan.schedule: FILE.csv

    Example:  clustersim schedule show 1f1b --pp 4 --microbatches 8 --csv 1f1b.csv

    Example:  clustersim schedule show 1f1b.csv

    Example:  clustersim schedule show zb-2p --pp 4 --microbatches 8 --weight 0.6

    Example:  clustersim schedule show zb-h1 --job job.yaml --set plan.pp=4 --plot step.png
    """
    from simulator.schedule.unit_run import run_schedule
    from simulator.schedule.written import write_order

    passes = {"forward": forward, "backward": backward, "weight": weight}
    if job is not None:
        refuse_sizes(pp=pp, microbatches=microbatches, vpp=vpp, **passes)
        show_step(job, changes, name, as_json=as_json, plot=plot, csv=csv)
        return
    _refuse_changes(changes)
    if name is None:
        hint = "name a schedule, a .csv file, or a job (--job JOB.yaml)"
        raise InputError.single("NAME|FILE.csv", "is missing", hint=hint)
    costs = _costs(passes)
    info = _named_or_written(name)
    pp, microbatches = _sizes([info], pp, microbatches)
    run = run_schedule(info, pp, microbatches, vpp, costs)
    if plot is not None:
        from simulator.plots.schedule import build_schedule_figure

        write_picture(build_schedule_figure(run), plot)
    if csv is not None:
        drains = run.info.synchronous
        order = run.order if drains else run.info.order(pp, run.chunks, microbatches)
        write_whole(csv, write_order(order))
        note(f"wrote {csv}")
    if as_json:
        print_json(run.to_dict())
    else:
        _print_run(run)


def compare_schedules(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME|FILE.csv",
            autocompletion=complete_schedule,
            help="Schedules, or CSV files in torch's format.",
        ),
    ],
    *,
    pp: Stages = None,
    microbatches: Microbatches = None,
    vpp: Annotated[
        int | None,
        option(
            "Chunks per stage, for schedules that allow a choice; by default the fewest possible.",
            "V",
            name="--vpp",
        ),
    ] = None,
    forward: Forward = None,
    backward: Backward = None,
    weight: Weight = None,
    job: OfJob = None,
    changes: Changes = None,
    as_json: AsJson = False,
    plot: Picture = None,
) -> None:
    """Compare schedules that do the same work on every rank.

    Without --job, communication is free; with --job, steps are simulated.

    Example:  clustersim schedule compare 1f1b zb-h1 dualpipe --pp 4 --microbatches 8

    Example:  clustersim schedule compare mine.csv 1f1b zb-h1

    Example:  clustersim schedule compare 1f1b zb-h1 zb-v --job job.yaml --set plan.pp=4
    """
    from simulator.schedule.terminal_text import costs_text, sizes_text
    from simulator.schedule.unit_run import compare

    passes = {"forward": forward, "backward": backward, "weight": weight}
    if job is not None:
        refuse_sizes(pp=pp, microbatches=microbatches, vpp=vpp, **passes)
        compare_steps(job, changes, names, as_json=as_json, plot=plot)
        return
    _refuse_changes(changes)
    costs = _costs(passes)
    infos = [_named_or_written(name) for name in names]
    pp, microbatches = _sizes(infos, pp, microbatches)
    comparison = compare(infos, pp, microbatches, vpp, costs)
    if plot is not None:
        from simulator.plots.schedule import build_schedule_comparison_figure

        write_picture(build_schedule_comparison_figure(comparison.runs), plot)
    if as_json:
        print_json(comparison.to_dict())
    else:
        _print_comparison(comparison, f"{sizes_text(pp, microbatches)}; {costs_text(costs)}")


def _refuse_changes(changes: Sequence[str] | None) -> None:
    if changes:
        hint = "also name the job: --job JOB.yaml"
        raise InputError.single("--set", "changes a job, and none is given", changes[0], hint)


def _costs(passes: Mapping[str, float | None]) -> Mapping[Phase, float]:
    from simulator.schedule.unit_run import phase_costs

    return phase_costs(**{name: cost for name, cost in passes.items() if cost is not None})


def _named_or_written(name: str) -> ScheduleInfo:
    """The schedule of a name, or the one that a .csv file holds."""
    from simulator.described.load import read_schedule_file
    from simulator.schedule import schedule_info
    from simulator.schedule.written import written_schedule

    if not name.endswith(".csv"):
        return schedule_info(name)
    read = read_schedule_file(Path(name), "NAME|FILE.csv")
    return written_schedule("\n".join(read.rows), read.file)


def _sizes(
    infos: Sequence[ScheduleInfo], pp: int | None, microbatches: int | None
) -> tuple[int, int]:
    """Stages and microbatches as given, else those of the first file.

    Raises:
        InputError: Neither says it.
    """
    own = next((info.sizes for info in infos if info.sizes), None)
    stages, count = (own[0], own[2]) if own else (None, None)
    return (
        _said(pp if pp is not None else stages, "--pp"),
        _said(microbatches if microbatches is not None else count, "--microbatches"),
    )


def _said(size: int | None, option: str) -> int:
    if size is None:
        hint = f"for example {option} 4; only a .csv file has sizes of its own"
        raise InputError.single(option, "is missing", hint=hint)
    return size


def _print_run(run: UnitRun) -> None:
    from simulator.schedule.terminal_text import costs_text, legend, sizes_text

    typer.echo(f"{run.info.name}: {run.info.summary}")
    sizes = sizes_text(run.stages, run.microbatches, run.chunks)
    typer.echo(f"{sizes}; {costs_text(run.costs)}\n")
    _print_picture(run)
    typer.echo(f"\n{legend(run)}\n")
    typer.echo(f"bubble {percent(run.bubble_share)} of a step of {run.step_time:g}{_where(run)}")
    typer.echo(f"training: {'synchronous' if run.info.synchronous else _ASYNCHRONOUS}")
    typer.echo(f"with blocking sends: {_buffers(run.buffers_needed)}")
    if run.info.placement.copies > 1:
        typer.echo(f"every rank holds stages of {run.info.placement.copies} copies of the model")
    typer.echo("")
    rows = [
        (str(rank), f"{run.work:g}", f"{run.waits(rank):g}", f"{peak:g}", str(versions))
        for rank, (peak, versions) in enumerate(zip(run.peaks, run.weight_versions, strict=True))
    ]
    head = ("rank", "busy", "waits between", "peak activations", "weight versions")
    title = "per rank; activations in units of one microbatch on all layers of the rank"
    print_table(title, number_columns(*head), rows)


_MOST_CELLS = 500_000
"""Ranks by units of time that a terminal is given, some megabytes of text."""


def _print_picture(run: UnitRun) -> None:
    from simulator.schedule.terminal_text import picture_lines

    if run.stages * run.step_time > _MOST_CELLS:
        typer.echo(f"The picture of {run.stages} ranks is left out; --csv FILE writes the order.")
        return
    print_lines(partial(picture_lines, run))


def _where(run: UnitRun) -> str:
    """Where the bubble is, if all of it is there: a rank fills, drains and never waits between."""
    waits = max(map(run.waits, range(run.stages)))
    return (
        ", all of it before the first and after the last pass"
        if run.bubble_share and not waits
        else ""
    )


def _buffers(messages: int) -> str:
    if messages == 0:
        return "no deadlock"
    messages_are = "1 message is" if messages == 1 else f"{messages} messages are"
    return f"deadlock unless {messages_are} buffered between two ranks"


def _print_comparison(comparison: Comparison, title: str) -> None:
    rows = [
        _comparison_row(run, relative)
        for run, relative in zip(comparison.runs, comparison.relative_peaks, strict=True)
    ]
    head = ["vpp", "step time", "bubble", "peak", "of 1f1b's", "weight copies"]
    columns = text_columns("schedule") + number_columns(*head)
    columns += text_columns("backward", "source")
    print_table(f"{title}; equal work on every rank", columns, rows)
    typer.echo(
        "peak: activations on the fullest rank, in units of one microbatch on all its layers"
    )
    for run in comparison.runs:
        if not run.info.synchronous:
            typer.echo(f"{run.info.name} {_NEVER_DRAINS}")


def _comparison_row(run: UnitRun, relative_peak: float) -> Sequence[str]:
    return (
        run.info.name,
        str(run.chunks),
        f"{run.step_time:g}",
        percent(run.bubble_share),
        f"{max(run.peaks):g}",
        f"{relative_peak:.2f} x",
        str(run.weight_copies),
        "split" if run.info.splits_backward else "whole",
        run.info.source,
    )
