"""What do the commands that search for plans share?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import note, percent, status_line
from simulator.cli.options import note_doubts, parse_assignments
from simulator.units import format_seconds

if TYPE_CHECKING:
    from simulator.described.job import Job
    from simulator.planning.search.search import PlanChoice, Progress

_LITTLE_ROOM = 0.05
"""Free share of the device memory below which a plan may not fit after all: about how far
predictions lie from the measured memory in reports/accuracy.md."""

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="FIELD=VALUE,VALUE,…",
        help="Values of a field to try in place of the default ones, for example "
        "plan.schedule=1f1b,zb-h1 or plan.zero=1; may be repeated.",
    ),
]
Headroom = Annotated[
    float,
    typer.Option(
        "--headroom", min=0.0, max=0.9, metavar="SHARE", help="Device memory to leave free: 0.05."
    ),
]


@contextlib.contextmanager
def search_status() -> Iterator[Callable[..., None]]:
    """Show where a search stands, on a terminal only.

    Yields what tells it: called with a :class:`Progress`, and with what is searched for where
    that is more than one thing.
    """
    with status_line() as show:
        show("bounding the step and the memory of every valid plan")
        yield lambda progress, what="": show(_progress_text(progress, what))


def _progress_text(progress: Progress, what: str) -> str:
    name = f"{what}: " if what else ""
    best = "" if progress.best_s == float("inf") else f"; best {format_seconds(progress.best_s)}"
    return (
        f"{name}{progress.replayed} plans replayed, {progress.simulated} simulated{best}; "
        f"{progress.open} could still be faster"
    )


def read_job_to_search(path: Path, assignments: Sequence[str] | None) -> Job:
    """The job of a file; a plan that breaks a rule is no obstacle, because others are searched.

    Raises:
        InputError: The file or an assignment is wrong.
    """
    from simulator.api import load_job
    from simulator.planning.search.space import searchable_job

    given = parse_assignments(assignments or ())
    job = searchable_job(lambda changes: load_job(path, {**given, **changes}))
    note_doubts(job)
    return job


def note_tightness(job: Job, best: PlanChoice) -> None:
    """Say where the best plan fits by less than memory predictions are off."""
    free = 1 - best.peak_device_bytes / job.cluster.profile.device.memory_bytes
    if free < _LITTLE_ROOM:
        note(
            f"It leaves {percent(free)} of the memory free, less than a prediction may be off: "
            f"--headroom {_LITTLE_ROOM} finds plans with room."
        )
