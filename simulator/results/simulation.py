"""One training step of a job, from specification to numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from simulator.described.job import Job
from simulator.engine.des import Limit, LimitError, simulate_program
from simulator.engine.replay import is_timed_alike, replay
from simulator.engine.timeline import Timeline
from simulator.errors import InputError
from simulator.processor import without_collection
from simulator.program.build import build_program, steps_around
from simulator.program.ir import Program
from simulator.results.allocator.exchanges import KeptReserves
from simulator.results.shorter_sequences import shorter_programs
from simulator.results.step import StepResult
from simulator.results.summary import steady_window, summarise

Engine = Literal["des", "replay"]

_ROUNDING = 1 - 1e-9
"""Sums in another order may differ in their last digits; a limit must not."""


@dataclass(frozen=True)
class PerturbationCost:
    """What the slow GPUs, nodes and links of a job cost it.

    Attributes:
        step_time_without_s: Step on a cluster that is as its profile says [s].
        lost_s: How much longer the step is [s].
        lost_share: That, as a share of the step without perturbations.
    """

    step_time_without_s: float
    lost_s: float
    lost_share: float


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


class KeptSteps:
    """What is known of one job's step, for those who simulate changes of it by one engine.

    Most changes move its times alone, or what it holds alone, or nothing.

    Args:
        first: A simulated program; the first one that is asked for if None.

    Attributes:
        reserves: What the latest allocators reserved.
    """

    def __init__(self, first: Timeline | None = None) -> None:
        self._first = first
        self.reserves = KeptReserves()

    def timeline(self, program: Program, engine: Engine, below_s: float = inf) -> Timeline:
        """When everything happens: simulated, unless the first program takes the same times.

        Raises:
            LimitError: That takes ``below_s`` or longer [s].
        """
        first = self._first
        if first is not None and is_timed_alike(program, first.program):
            timeline = Timeline(program, first.operation_start_s, first.operation_end_s)
        elif engine == "replay":
            timeline = replay(program)
        else:
            limit = None if below_s == inf else Limit.of(program, below_s / _ROUNDING)
            timeline = simulate_program(program, limit=limit)
        self._first = first or timeline
        if timeline.step_time_s >= below_s:
            raise LimitError(timeline.step_time_s)
        return timeline


def run_step(
    job: Job,
    engine: Engine = "des",
    *,
    unfolded: bool = False,
    kept: KeptSteps | None = None,
    below_s: float = inf,
) -> StepResult:
    """The numbers of one simulated step.

    Args:
        job: The job to simulate.
        engine: ``des`` simulates shared links and multiprocessors; ``replay`` is the
            faster lower bound without contention.
        unfolded: Whether to simulate every rank by itself instead of one of each kind.
        kept: What is known of jobs like this one, for callers that run many by one engine.
        below_s: Only a step that is shorter is of interest [s].

    Raises:
        InputError: The plan asks for something that cannot run, or there is no such engine.
        LimitError: The step is not shorter, and no other overlaps it.
    """
    check_step(job, engine)
    steps = steps_around(job)
    with without_collection():
        program = build_program(job, steps=steps.total, unfolded=unfolded)
        kept = kept or KeptSteps()
        timeline = kept.timeline(program, engine, below_s if steps.total == 1 else inf)
        shorter = shorter_programs(job, unfolded=unfolded)
        return summarise(job, timeline, steps, kept.reserves, shorter)


class StepTimes:
    """Times of the steps of jobs that differ a little from one, without what they hold.

    A job whose operations take what they take in that one is not simulated again.

    Args:
        job: The one.
        engine: Engine that simulates the steps.

    Attributes:
        step_time_s: Of the job itself [s].

    Raises:
        InputError: The job cannot run.
    """

    def __init__(self, job: Job, engine: Engine) -> None:
        self._engine = engine
        self._kept = KeptSteps()
        self.step_time_s = self.of(job)

    def of(self, changed: Job) -> float:
        """Step of a changed job, to the last bit what :func:`run_step` says [s].

        Raises:
            InputError: It cannot run.
        """
        steps = steps_around(changed)
        with without_collection():
            program = build_program(changed, steps=steps.total)
            timeline = self._kept.timeline(program, self._engine)
        if steps.total == 1:
            return timeline.step_time_s
        start_s, end_s = steady_window(timeline, steps)
        return end_s - start_s


def perturbation_cost(
    job: Job, step_time_s: float, engine: Engine = "des"
) -> PerturbationCost | None:
    """What the perturbations of a job cost, found by a simulation without them; None without any.

    ``step_time_s`` is the job's simulated step, by that engine [s].
    """
    if not job.perturbations:
        return None
    without_s = StepTimes(job.model_copy(update={"perturbations": ()}), engine).step_time_s
    return PerturbationCost(without_s, step_time_s - without_s, step_time_s / without_s - 1)
