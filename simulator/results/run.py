"""One training step of a job, from specification to numbers."""

from __future__ import annotations

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
    program = build_program(job, steps=steps.total, unfolded=unfolded)
    timeline = simulate_program(program) if engine == "des" else replay(program)
    return summarise(job, timeline, steps)
