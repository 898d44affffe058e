"""What does the fullest GPU hold in each sample, where microbatches differ?

What a stage holds at its peak is known at a few values that all microbatches have, and interpolated
between them. What is kept for backward follows from the microbatches in flight together; what is
only worked with, from the largest single one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.engine.replay import replay
from simulator.planning.distribution.draws import DrawnMicrobatches, DrawnRouting
from simulator.program.ir import Owner, Program
from simulator.program.run.order import StepOrder
from simulator.results.memory import class_memory
from simulator.schedule.unit_time import peak_in_flight

Floats = NDArray[np.float64]


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
