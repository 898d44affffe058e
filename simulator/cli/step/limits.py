"""clustersim limits: how large may microbatch, sequence and model become?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from simulator.cli.console import (
    counting,
    note,
    number_column,
    print_json,
    print_table,
    text_column,
)
from simulator.cli.options import AsJson, Changes, JobFile, read_job
from simulator.units import format_bytes

if TYPE_CHECKING:
    from simulator.planning.limits import Limit


def limits(job_file: JobFile, changes: Changes = None, as_json: AsJson = False) -> None:
    """Find the largest microbatch, sequence and depth that fit.

    Each is raised alone; the depth is the number of layers.

    Example:  clustersim limits job.yaml --set plan.recompute=full
    """
    from simulator.planning.limits import limits

    job = read_job(job_file, changes)
    with counting("simulations") as count:
        found = limits(job, on_trial=count)
    if as_json:
        print_json({"title": job.title, "limits": [asdict(limit) for limit in found]})
    else:
        columns = [
            text_column("field"),
            number_column("now"),
            number_column("largest that fits"),
            number_column("in steps of"),
            number_column("device memory then"),
        ]
        print_table(job.title, columns, [_row(limit) for limit in found])
    for limit in found:
        if limit.obstacle:
            note(f"{limit.field}: {limit.obstacle}")
    if any(not limit.obstacle and limit.largest < limit.now for limit in found):
        note("The job does not fit as it is.")
        raise typer.Exit(1)


def _row(limit: Limit) -> tuple[str, ...]:
    if limit.obstacle:
        return limit.field, str(limit.now), "cannot be changed", "", ""
    largest = f"more than {limit.largest}" if limit.is_open else str(limit.largest or "none")
    held = format_bytes(limit.peak_device_bytes)
    return limit.field, str(limit.now), largest, str(limit.step), held
