"""clustersim schedule: in which order does a pipeline work?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import note, number_column, percent, print_table, text_column
from simulator.cli.options import complete_schedule

if TYPE_CHECKING:
    from simulator.schedule import Order
    from simulator.schedule.unit_time import SlotTimes

Stages = Annotated[int, typer.Option("--pp", help="Pipeline stages.")]
Chunks = Annotated[
    int | None, typer.Option("--vpp", help="Chunks per stage; by default the fewest.")
]
Microbatches = Annotated[int, typer.Option("--microbatches", help="Microbatches per step.")]


def build_group() -> typer.Typer:
    """The ``schedule`` commands."""
    group = typer.Typer(name="schedule", no_args_is_help=True, help="Pipeline schedules.")
    group.command("list")(list_schedules)
    group.command("show")(show_schedule)
    return group


def list_schedules() -> None:
    """List the pipeline schedules.

    Example:  clustersim schedule list
    """
    from simulator.schedule import SCHEDULES

    rows = [(info.name, info.summary, info.source) for info in SCHEDULES.values()]
    columns = [text_column(name) for name in ("name", "summary", "source")]
    print_table("pipeline schedules", columns, rows)


def show_schedule(
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=complete_schedule, help="The schedule.")
    ],
    pp: Stages,
    microbatches: Microbatches,
    vpp: Chunks = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the order as torch reads it.")
    ] = None,
) -> None:
    """Show when every rank runs what, with free communication and backward = 2 x forward.

    Example:  clustersim schedule show 1f1b --pp 4 --microbatches 8
    """
    from simulator.schedule import schedule_info, schedule_order
    from simulator.schedule.csv import write_order
    from simulator.schedule.unit_time import slot_times

    info = schedule_info(name)
    chunks = info.chunks[0] if vpp is None else vpp
    order = schedule_order(name, pp, chunks, microbatches)
    times = slot_times(order, chunks, info.placement)
    typer.echo("\n".join(draw_lanes(order, times)))
    typer.echo("")
    _print_ranks(order, times)
    typer.echo(f"bubble {percent(times.bubble_share)} of {times.makespan:g} forward times")
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        csv.write_text(write_order(order), encoding="utf-8")
        note(f"wrote {csv}")


def draw_lanes(order: Order, times: SlotTimes) -> list[str]:
    """One line of text per rank; a column is the time of one forward, ``.`` is idle."""
    width = max(len(str(slot)) for slots in order for slot in slots) + 1
    lines = []
    for rank, slots in enumerate(order):
        cells = ["."] * round(times.makespan)
        for slot, start, end in zip(slots, times.start[rank], times.end[rank], strict=True):
            first, last = round(start), round(end)
            cells[first:last] = [str(slot)] + ["-" * (width - 1)] * (last - first - 1)
        line = "".join(cell.ljust(width) for cell in cells)
        lines.append(f"rank {rank:<3}  {line}".rstrip())
    return lines


def _print_ranks(order: Order, times: SlotTimes) -> None:
    rows = [
        (str(rank), str(len(slots)), f"{times.busy[rank]:g}", str(times.in_flight[rank]))
        for rank, slots in enumerate(order)
    ]
    columns = [number_column(name) for name in ("rank", "slots", "busy", "activations held")]
    print_table("per rank, in forward times and in (stage, microbatch) activations", columns, rows)
