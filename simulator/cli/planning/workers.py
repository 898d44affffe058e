"""How many processes work on a command?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from concurrent.futures import Executor

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, metavar="N", help="Processes that simulate; by default one per core."
    ),
]


@contextlib.contextmanager
def worker_pool(workers: int | None) -> Iterator[tuple[Executor | None, int]]:
    """The processes and how many they are; no executor where this process is enough."""
    from concurrent.futures import ProcessPoolExecutor

    from simulator.processor import core_count

    processes = workers or core_count()
    if processes == 1:
        yield None, 1
        return
    with ProcessPoolExecutor(processes) as executor:
        yield executor, processes
