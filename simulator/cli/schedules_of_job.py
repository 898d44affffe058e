"""clustersim schedule show and compare with --job: schedules with the passes of a job."""

from __future__ import annotations

import sys
from itertools import chain
from math import floor, log10
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import typer

from simulator.cli.console import (
    need_one_that_fits,
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
    write_picture,
)
from simulator.cli.options import read_job
from simulator.errors import InputError
from simulator.files import write_whole
from simulator.units import format_bytes, format_seconds, percent, signed_percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simulator.api import Result
    from simulator.described.job import Job
    from simulator.results.passes import RankPasses
    from simulator.schedule import Phase, ScheduleInfo
    from simulator.schedule.terminal_text import Cell, Row


_COLORS: Mapping[str, str] = {"F": "blue", "B": "green", "I": "cyan", "W": "yellow"}
"""Colours of the phases, in the shades that the terminal gives these names."""

SCHEMA_VERSION = 1

_MOST_ROWS = 32
"""Classes of ranks in a picture of each schedule; of more, some stand for all."""

_SMALLEST_SHARE = 4
"""Passes shorter than a typical one by more than this factor may be lost in the picture."""

_OTHER = "~"


def print_lines(lines: Callable[[int | None], list[list[Cell]]]) -> None:
    """Print a picture; on a terminal in colour and folded to its width.

    Args:
        lines: Its lines at a width; None never folds.
    """
    from rich.console import Console
    from rich.text import Text

    from simulator.schedule.terminal_text import lines_text

    if not sys.stdout.isatty():
        typer.echo(lines_text(lines(None)))
        return
    console = Console(highlight=False)
    for line in lines(console.width):
        cells = ((cell.text, _COLORS[cell.phase] if cell.phase else "dim") for cell in line)
        console.print(Text.assemble(*cells), soft_wrap=True)


def show_step(
    job_file: Path,
    changes: Sequence[str] | None,
    name: str | None,
    *,
    as_json: bool,
    plot: Path | None,
    csv: Path | None,
) -> None:
    """The schedule of a job, as its simulated step runs it."""
    from simulator.api import simulate
    from simulator.program.run.order import StepOrder
    from simulator.schedule.written import write_order

    job, info = _job_under(job_file, changes, name)
    result = simulate(job)
    if plot is not None:
        note(f"wrote {result.plot_pipeline(plot)}")
    if csv is not None:
        write_whole(csv, write_order(StepOrder(job).slots(job.microbatches)))
        note(f"wrote {csv}")
    if as_json:
        print_json(_run_document(result, info))
    else:
        _print_run(result, info)
    if not result.fits:
        note("the job does not fit; clustersim memory JOB.yaml shows what uses the memory")
        raise typer.Exit(1)


def compare_steps(
    job_file: Path,
    changes: Sequence[str] | None,
    names: Sequence[str],
    *,
    as_json: bool,
    plot: Path | None,
) -> None:
    """A job under several schedules."""
    from simulator.api import simulate

    jobs = [_job_under(job_file, changes, name) for name in names]
    runs = [(simulate(job), info) for job, info in jobs]
    if plot is not None:
        from simulator.plots.pipeline import build_pipelines_figure

        named = [(info.name, result) for result, info in runs]
        title = runs[0][0].title
        write_picture(build_pipelines_figure(title, named, max_stages=_MOST_ROWS), plot)
    if as_json:
        print_json(_comparison_document(runs))
    else:
        _print_comparison(runs)
    need_one_that_fits((result.fits for result, _ in runs), "schedule")


def _job_under(
    job_file: Path, changes: Sequence[str] | None, name: str | None
) -> tuple[Job, ScheduleInfo]:
    """The job of a file under a schedule, by default its own.

    Takes as many chunks per rank as the job has, or the nearest that the schedule runs with.

    Raises:
        InputError: Job or schedule is wrong, or they do not go together.
    """
    from simulator.schedule import schedule_info
    from simulator.schedule.unit_run import nearest_chunks

    job = read_job(job_file, changes)
    if name is not None:
        is_file = name.endswith(".csv")
        schedule = str(Path(name).resolve()) if is_file else name
        vpp = job.plan.vpp if is_file else nearest_chunks(schedule_info(name), job.plan.vpp)
        if vpp > 1 and job.plan.pp == 1:
            rule = f"{name} needs a pipeline: its ranks have {vpp} chunks"
            raise InputError.single("plan.pp", rule, 1, "use --set plan.pp=2, or more")
        job = job.replace({"plan.schedule": schedule, "plan.vpp": vpp})
    return job, job.choices.schedule


def refuse_sizes(**options: float | None) -> None:
    """Raise where sizes or costs are given beside a job, which has its own; None is not given."""
    given = next((f"--{name}" for name, value in options.items() if value is not None), None)
    if given is not None:
        hint = f"remove {given}; --set plan.pp=8 changes a field of the job"
        rule = "cannot be combined with --job, which has its own"
        raise InputError.single(given, rule, hint=hint)


def _print_run(result: Result, info: ScheduleInfo) -> None:
    from simulator.results.passes import step_passes
    from simulator.schedule.terminal_text import legend_text, sizes_text

    job, ranks = result.job, step_passes(result.timeline)
    passes = list(chain.from_iterable(rank.passes for rank in ranks))
    parts = job.plan.vpp * info.placement.copies
    lengths_ms = [1e3 * (each.end_s - each.start_s) for each in passes]
    cell_ms = _rounded_down(max(min(lengths_ms), median(lengths_ms) / _SMALLEST_SHARE))
    typer.echo(f"{info.name}: {info.summary}")
    typer.echo(f"{result.title}; {sizes_text(job.plan.pp, job.microbatches, job.plan.vpp)}\n")
    _print_picture([_row(rank, parts) for rank in ranks], 1e3 * result.step_time_s, cell_ms)
    used = {each.phase for each in passes}
    words = legend_text(info, parts, used, goes_on=max(lengths_ms) > cell_ms)
    others = f", {_OTHER} update or exchange" if any(rank.others for rank in ranks) else ""
    typer.echo(f"\n{words}{others}\n")
    bubble, step = percent(result.bubble_fraction), format_seconds(result.step_time_s)
    typer.echo(f"pipeline bubble {bubble} of a step of {step}\n")
    _print_ranks(result, ranks, used)


def _rounded_down(time: float) -> float:
    """To two digits, so that the ruler has few."""
    digit = 10.0 ** (floor(log10(time)) - 1)
    return round(floor(time / digit) * digit, 12)


def _row(rank: RankPasses, parts: int) -> Row:
    from simulator.schedule.terminal_text import Cell, Mark, Row, slot_cell

    marks = [
        Mark(slot_cell(phase, microbatch, chunk, parts), 1e3 * start_s, 1e3 * end_s)
        for phase, chunk, microbatch, start_s, end_s in rank.passes
    ]
    marks += [Mark(Cell(_OTHER), 1e3 * start_s, 1e3 * end_s) for start_s, end_s in rank.others]
    return Row(rank.name, sorted(marks, key=lambda mark: mark.start))


def _print_picture(rows: Sequence[Row], span_ms: float, cell_ms: float) -> None:
    from simulator.schedule.terminal_text import row_lines

    def lines(width: int | None) -> list[list[Cell]]:
        return row_lines(rows, span_ms, cell_ms, width, unit="ms")

    print_lines(lines)


def _print_ranks(result: Result, ranks: Sequence[RankPasses], used: set[Phase]) -> None:
    from simulator.schedule.terminal_text import PHASE_NAMES

    shown = [phase for phase in PHASE_NAMES if phase in used]
    rows = [
        (
            rank.name,
            *(format_seconds(rank.mean_s(phase)) for phase in shown),
            percent(rank.busy_s / result.step_time_s),
            format_bytes(memory.peak_allocated_bytes),
        )
        for rank, memory in zip(ranks, result.memory, strict=True)
    ]
    columns = text_columns("ranks") + number_columns(
        *(PHASE_NAMES[phase] for phase in shown), "busy", "peak memory"
    )
    print_table("per rank; mean of one microbatch", columns, rows)


def _run_document(result: Result, info: ScheduleInfo) -> dict[str, Any]:
    from simulator.results.passes import step_passes

    return {
        "schema_version": SCHEMA_VERSION,
        **_summary(result, info),
        "ranks": [
            {
                "name": rank.name,
                "busy_s": rank.busy_s,
                "passes": [{**each._asdict(), "phase": each.phase.value} for each in rank.passes],
            }
            for rank in step_passes(result.timeline)
        ],
    }


def _summary(result: Result, info: ScheduleInfo) -> dict[str, Any]:
    plan = result.job.plan
    return {
        "schedule": info.name,
        "pp": plan.pp,
        "vpp": plan.vpp,
        "microbatches": result.job.microbatches,
        "step_time_s": result.step_time_s,
        "bubble_fraction": result.bubble_fraction,
        "peak_allocated_bytes": result.peak_allocated_bytes,
        "fits": result.fits,
        "splits_backward": info.splits_backward,
        "synchronous": info.synchronous,
    }


def _comparison_document(runs: Sequence[tuple[Result, ScheduleInfo]]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "schedules": [_summary(result, info) for result, info in runs],
    }


def _print_comparison(runs: Sequence[tuple[Result, ScheduleInfo]]) -> None:
    first, _ = runs[0]
    rows = [
        (
            info.name,
            str(result.job.plan.vpp),
            format_seconds(result.step_time_s),
            signed_percent(first.step_time_s / result.step_time_s - 1),
            percent(result.bubble_fraction),
            format_bytes(result.peak_allocated_bytes),
            "yes" if result.fits else "no",
            "split" if info.splits_backward else "whole",
            "yes" if info.synchronous else "no",
        )
        for result, info in runs
    ]
    head = ["vpp", "step time", "faster", "bubble", "peak memory"]
    columns = text_columns("schedule") + number_columns(*head)
    columns += text_columns("fits", "backward", "synchronous")
    print_table(f"{first.title}; faster than {runs[0][1].name}", columns, rows)
