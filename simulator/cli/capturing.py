"""clustersim capture: what does a step of one's own torch code do on so many ranks?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.console import note, working
from simulator.cli.options import complete_profile, whole_numbers
from simulator.units import format_bytes


def capture(
    script: Annotated[Path, typer.Argument(metavar="TRAIN.py", help="As torchrun runs it.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="The script's own.")
    ] = None,
    *,
    world: Annotated[int, typer.Option(metavar="N", min=1, help="Ranks of the run.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the capture goes.")],
    device: Annotated[
        str,
        typer.Option(
            metavar="PROFILE",
            help="Hardware profile whose GPU the script is told of.",
            autocompletion=complete_profile,
        ),
    ] = "h100-sxm-80gb",
    ranks: Annotated[
        str,
        typer.Option(
            metavar="auto|RANK,RANK,…", help="Ranks to run; auto: the first and its pipeline."
        ),
    ] = "auto",
) -> None:
    """Capture a training step of a torch script, without a GPU.

    The file is accepted wherever a job is.

    Example:  clustersim capture train.py --world 64 --out step.capture -- --batch-size 1

    Example:  clustersim run step.capture --profile h100-sxm-80gb --gpus 1024
    """
    from simulator.capture.file import write_capture
    from simulator.capture.make import capture_script

    chosen = None if ranks == "auto" else whole_numbers(ranks, "--ranks", 0)
    with working(f"running one rank of {world} without a GPU"):
        made = capture_script(script, arguments or [], world=world, device=device, ranks=chosen)
        write_capture(made, out)
    operators = sum(len(table.call) for table in made.tables)
    captured = ", ".join(str(table.rank) for table in made.tables)
    note(f"captured {operators:,} operators of rank {captured} of {world}")
    for text in made.notes:
        note(text)
    note(f"wrote {out} ({format_bytes(out.stat().st_size)})")
