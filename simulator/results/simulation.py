"""One training step of a job, from specification to numbers."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Literal, get_args

from simulator.described.job import Job
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program, steps_around
from simulator.results.step import StepResult
from simulator.results.summary import summarise

Engine = Literal["des", "replay"]


def check_step(job: object, engine: object) -> None:
    """Refuses what a script may hand over in place of a job or an engine.

    Raises:
        InputError: It is neither.
    """
    if not isinstance(job, Job):
        hint = "load one first: sim.load_job(FILE)"
        raise InputError.single("job", "must be a Job", job, hint)
    if engine not in get_args(Engine):
        raise InputError.single("engine", "must be 'des' or 'replay'", engine)


def run_step(job: Job, engine: Engine = "des", *, unfolded: bool = False) -> StepResult:
    """The numbers of one simulated step.

    Args:
        job: What to simulate.
        engine: ``des`` simulates shared links and multiprocessors; ``replay`` is the
            faster lower bound without contention.
        unfolded: Whether to simulate every rank by itself instead of one of each kind.

    Raises:
        InputError: The plan asks for something that cannot run, or there is no such engine.
    """
    check_step(job, engine)
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
