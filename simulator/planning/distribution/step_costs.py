"""How long does each operation of a step take, and what do stages hold, as far as it varies?

The step is simulated once in full, so the durations hold what operations take from each other on
shared links and multiprocessors. Where microbatches differ, by length or by the load of experts, a
few of their values are priced, and those between them interpolated. So is what a stage holds at
its peak: what is kept for backward follows from the microbatches in flight together, what is only
worked with from the largest single one.

Assumption: what operations take from each other is the same share in every sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.engine.sampled_replay import replay_order
from simulator.errors import UnsupportedError
from simulator.planning.distribution.draws import DrawnMicrobatches, DrawnRouting
from simulator.program.ir import COMMUNICATION, Category, Operation, Owner, Program
from simulator.program.run.order import StepOrder
from simulator.results.memory import class_memory
from simulator.schedule.unit_time import peak_in_flight

Floats = NDArray[np.float64]


class StepCosts:
    """Durations of a step's operations.

    Args:
        program: The step as it is simulated, with one class of ranks per stage.
        points: Values of microbatches that are priced, ascending; one where none differ.
        programs: The step where all microbatches have one of those values.
    """

    def __init__(
        self, program: Program, points: Sequence[float], programs: Sequence[Program]
    ) -> None:
        self.program = program
        self.points = np.asarray(points, dtype=float)
        self.programs = programs
        for other in programs:
            if len(other.operations) != len(program.operations):
                raise UnsupportedError.single(
                    "plan.schedule",
                    "depends on the times of passes, so steps with other times run in other orders",
                    hint="use a schedule with a fixed order, such as 1f1b",
                )
        self.order = replay_order(program)
        timeline = simulate_program(program)
        self.step_time_s = timeline.step_time_s
        self.seconds = timeline.operation_end_s - timeline.operation_start_s
        shares = {id(op.work): _shares(op) for op in program.operations}
        self.compute_share, self.link_share = np.array(
            [shares[id(op.work)] for op in program.operations]
        ).T
        self._ratios: dict[tuple[int, ...], Floats | None] = {}

    def ratios(self, index: int) -> Floats | None:
        """Duration at each point over that of the step; None where it is always the same."""
        operations = [program.operations[index] for program in self.programs]
        key = (id(self.program.operations[index].work), *(id(op.work) for op in operations))
        if key not in self._ratios:
            whole_s = self.program.operations[index].work.seconds
            ratios = np.array([op.work.seconds / whole_s if whole_s else 1.0 for op in operations])
            self._ratios[key] = None if np.all(ratios == 1.0) else ratios
        return self._ratios[key]

    def place(self, values: Floats) -> Place:
        """Between which points values lie."""
        if len(self.points) == 1:
            return Place(np.zeros(values.shape, dtype=np.int64), np.zeros(values.shape))
        before = np.searchsorted(self.points, values, side="right") - 1
        before = np.clip(before, 0, len(self.points) - 2)
        rises = np.diff(self.points)
        return Place(before, (values - self.points[before]) / rises[before])


class Place(NamedTuple):
    """Where values lie between points.

    Attributes:
        before: The point before each.
        share: How far to the next, 0 to 1.
    """

    before: NDArray[np.int64]
    share: Floats


def interpolated(at_points: Floats, place: Place) -> Floats:
    """What lies at a place, from what is known at the points."""
    if len(at_points) == 1:
        return np.full(place.before.shape, at_points[0])
    rises = np.diff(at_points)
    found: Floats = at_points[place.before] + rises[place.before] * place.share
    return found


class PeakMemory:
    """Peaks of all stages.

    Args:
        job: What runs.
        points: Values of microbatches, ascending; none where they are all alike.
        programs: The step in which all have one of those values, or the only one there is.
    """

    def __init__(self, job: Job, points: Floats, programs: Sequence[Program]) -> None:
        self._job, self._points = job, points
        device = job.cluster.profile.device
        memory = [class_memory(replay(program), device) for program in programs]
        self._peak_bytes = np.array(
            [[stage.peak_device_bytes for stage in stages] for stages in memory]
        )
        self._kept_bytes = np.array(
            [[stage.by_owner.get(Owner.ACTIVATIONS, 0.0) for stage in stages] for stages in memory]
        )
        slots = StepOrder(job).slots(job.microbatches)
        self._in_flight = [max(1, peak_in_flight(its)) for its in slots]

    def peaks_bytes(
        self, values: DrawnMicrobatches | DrawnRouting | None, pipelines: int, samples: int
    ) -> Floats:
        """What the fullest GPU holds [B], shape (samples,).

        Args:
            values: Of the microbatches.
            pipelines: How many there are.
            samples: How many steps were drawn.
        """
        if values is None or not len(self._points):
            return np.full(samples, self._peak_bytes.max())
        stages = [
            self._stage_bytes(stage, values, pipelines) for stage in range(len(self._in_flight))
        ]
        peaks: Floats = np.max(stages, axis=0)
        return peaks

    def _stage_bytes(
        self, stage: int, values: DrawnMicrobatches | DrawnRouting, pipelines: int
    ) -> Floats:
        kept, largest = self._kept_and_largest(stage, values, pipelines)
        kept_bytes = self._kept_bytes[:, stage]
        others_bytes = self._peak_bytes[:, stage] - kept_bytes
        found: Floats = np.interp(kept, self._points, kept_bytes)
        found += np.interp(largest, self._points, others_bytes)
        return found

    def _kept_and_largest(
        self, stage: int, values: DrawnMicrobatches | DrawnRouting, pipelines: int
    ) -> tuple[Floats, Floats]:
        """Mean value of what is in flight, and the largest single one, shape (samples,) each."""
        in_flight = self._in_flight[stage]
        if isinstance(values, DrawnMicrobatches):
            return values.kept(in_flight), values.kept(1)
        layers = max(1, self._job.model.layers // self._job.plan.pp)
        microbatches = self._job.microbatches
        kept = values.mean_load(layers * in_flight, pipelines * microbatches / in_flight)
        return kept, values.mean_load(1, pipelines * microbatches * layers)


def _shares(operation: Operation) -> tuple[float, float]:
    """Part of an operation's time that is computed, and part in which something is exchanged.

    The rest waits for the host.
    """
    work = operation.work
    if not work.parts or not work.seconds:
        is_exchange = operation.category in COMMUNICATION
        return (0.0, 1.0) if is_exchange else (1.0, 0.0)

    def share(wanted: Callable[[Category], bool]) -> float:
        return (
            math.fsum(part.seconds for part in work.parts if wanted(part.category)) / work.seconds
        )

    return (
        share(lambda category: category not in COMMUNICATION and category is not Category.HOST),
        share(lambda category: category in COMMUNICATION),
    )
