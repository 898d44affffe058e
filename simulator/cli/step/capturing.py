"""clustersim capture: what does a step of one's own torch code do on each of its ranks?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.completion import complete_profile
from simulator.cli.console import note, number_columns, print_table, text_columns, working
from simulator.cli.options import option, whole_numbers
from simulator.errors import InputError
from simulator.units import format_bytes, format_seconds, percent

if TYPE_CHECKING:
    from simulator.capture.result import CaptureResult


def capture(
    script: Annotated[
        Path, typer.Argument(metavar="TRAIN.py", help="The torch script, as torchrun would run it.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script.")
    ] = None,
    *,
    world: Annotated[int, option("Number of ranks of the run.", "N", min=1)],
    out: Annotated[Path, option("File to write the capture to.", "FILE")],
    device: Annotated[
        str,
        option(
            "Hardware profile of the GPU that the script sees.",
            "PROFILE",
            autocompletion=complete_profile,
        ),
    ] = "h100-sxm-80gb",
    ranks: Annotated[
        str,
        option(
            "Ranks to run; auto: the first rank and the others of its pipeline.", "auto|RANK,RANK,…"
        ),
    ] = "auto",
    value: Annotated[
        list[str] | None,
        option(
            "Value that a line asks a tensor for, or the number or share of elements it selects.",
            "FILE:LINE=NUMBER|%",
        ),
    ] = None,
) -> None:
    """Capture a training step of a torch script, without a GPU.

    run, traffic and memory accept the file in place of a job.

    Example:  clustersim capture train.py --world 64 --out step.capture -- --batch-size 1

    Example:  clustersim run step.capture --profile h100-sxm-80gb --gpus 1024
    """
    from simulator.capture.file import write_capture
    from simulator.capture.make import capture_script

    chosen = None if ranks == "auto" else whole_numbers(ranks, "--ranks", 0)
    with working(f"running one rank of {world} without a GPU"):
        made = capture_script(
            script, arguments or [], world=world, device=device, ranks=chosen, values=value or []
        )
        write_capture(made, out)
    operators = sum(len(table.call) for table in made.tables)
    captured = ", ".join(str(table.rank) for table in made.tables)
    note(f"captured {operators:,} operators of rank {captured} of {world}")
    for text in made.notes:
        note(text)
    note(f"wrote {out} ({format_bytes(out.stat().st_size)})")


def read_captured(
    path: Path, changes: Sequence[str] | None, profile: str | None, gpus: int | None
) -> CaptureResult | None:
    """The simulated step of a capture; None where the file is none.

    Raises:
        InputError: Fields of a job are to be changed, or the step cannot run like that.
    """
    from simulator.capture.file import is_capture, read_capture

    if not is_capture(path):
        return None
    from simulator.capture.result import simulate_capture

    if changes:
        rule = "changes a job; a captured step is code"
        raise InputError.single("--set", rule, changes[0], "give --profile or --gpus")
    return simulate_capture(read_capture(path), profile, gpus)


def cluster_changes(
    changes: Sequence[str] | None, profile: str | None, gpus: int | None
) -> list[str]:
    """Changes of a job that ``--profile`` and ``--gpus`` stand for, with those given."""
    said = [("cluster.profile", profile), ("cluster.gpus", gpus)]
    return [*(changes or ()), *(f"{field}={value}" for field, value in said if value is not None)]


def end_captured(result: CaptureResult) -> None:
    """Say what was left out; end with 1 where the step does not fit.

    Raises:
        Exit: It does not fit.
    """
    from simulator.capture.result import MOST_NAMED

    for each in result.unknown[:MOST_NAMED]:
        text = f"{each.name} ({each.calls:g} calls) is timed by its bytes alone"
        note(f"{text}: {percent(each.share)} of the step")
    for text in result.capture.notes:
        note(text)
    if not result.fits:
        needed, has = result.fullest.peak_device_bytes, result.fullest.capacity_bytes
        note(f"needs {format_bytes(needed)} per GPU, which has {format_bytes(has)}")
        raise typer.Exit(1)


def print_captured(result: CaptureResult) -> None:
    """Print the headline of a captured step."""
    from simulator.capture.captured_page import captured_headline

    print_table(result.title, text_columns("") + number_columns(""), captured_headline(result))


def print_dearest(result: CaptureResult) -> None:
    """Print which operators take most of the GPU's time, and where."""
    from simulator.capture.result import MOST_NAMED

    rows = [
        (
            each.name.removesuffix(".default"),
            each.module or "-",
            each.phase,
            f"{each.calls:,.0f}",
            format_seconds(each.seconds),
            percent(each.share),
        )
        for each in result.dearest[:MOST_NAMED]
    ]
    columns = text_columns("operator", "module", "phase") + number_columns("calls", "time", "share")
    print_table("longest operators on the GPU", columns, rows)
