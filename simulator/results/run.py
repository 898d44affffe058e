"""One training step of a job, from specification to numbers."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Literal

from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.program.build import build_program, steps_around
from simulator.results.step import StepResult
from simulator.results.summary import summarise
from simulator.spec.job import Job

Engine = Literal["des", "replay"]


def run_step(job: Job, engine: Engine = "des", *, unfolded: bool = False) -> StepResult:
    """The numbers of one simulated step.

    Args:
        job: What to simulate.
        engine: ``des`` simulates shared links and multiprocessors; ``replay`` is the
            faster lower bound without contention.
        unfolded: Whether to simulate every rank by itself instead of one of each kind.

    Raises:
        InputError: The plan asks for something that cannot run.
    """
    steps = steps_around(job)
    with _without_collection():
        program = build_program(job, steps=steps.total, unfolded=unfolded)
        timeline = simulate_program(program) if engine == "des" else replay(program)
        return summarise(job, timeline, steps)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Look for no garbage meanwhile: nearly all objects live until the step is done.

    Looking again and again at all that is still alive takes a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
