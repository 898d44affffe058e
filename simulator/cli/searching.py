"""What do the commands that search for plans share?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import status_line
from simulator.units import format_seconds

if TYPE_CHECKING:
    from simulator.planning.search import Progress

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="FIELD=VALUE,VALUE,…",
        help="Values of a field to try in place of the default ones, for example "
        "plan.schedule=1f1b,zb-h1 or plan.zero=1; may be repeated.",
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
