"""How does a rank of torchrun measure collectives from the command line?"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

from simulator.cli.console import note, progress
from simulator.cli.options import quantity
from simulator.extras import require
from simulator.units import format_bytes

MeasuredBackend = Literal["nccl", "gloo"]

_LARGEST = {"nccl": "512 MiB", "gloo": "16 MiB"}


def measured(
    table: Path, backend: MeasuredBackend | None, largest: str | None, *, resume: bool
) -> bool:
    """Measures with all ranks; whether this rank goes on to fit.

    Args:
        table: Where the rows are kept.
        backend: Library of the collectives; by default that of the device.
        largest: Largest message, with its unit; by default what the backend is used for.
        resume: Whether an existing table is gone on with.

    Raises:
        InputError: There are no ranks, their library is not there, or the table or a size is wrong.
    """
    require("torch", "runs what is measured")
    from simulator.calibrate.network.collective_world import launched_world
    from simulator.calibrate.network.measure_collectives import (
        collective_cases,
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
