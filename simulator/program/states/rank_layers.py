"""Which layers, and which parameters, does each rank of a pipeline hold?"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.states.resident import (
    ParameterCount,
    added_up,
    copies_embedding,
    slice_parameters,
)
from simulator.schedule import ScheduleInfo


class PipelineRanks:
    """What the ranks of one job's pipeline hold under a schedule.

    Attributes:
        stages: How many ranks there are.
        runs: Layers of each virtual stage, in order of the model.
    """

    def __init__(self, job: Job, schedule: ScheduleInfo) -> None:
        self._job, self._placement, self._chunks = job, schedule.placement, job.plan.vpp
        self.stages = job.plan.pp
        self.runs = stage_slices(job, self.stages * self._chunks)
        self._parameters: dict[int, ParameterCount] = {}

    def runs_of(self, rank: int) -> list[Slice]:
        """Layers of every virtual stage of a rank, of all copies of the model."""
        placement, stages, chunks = self._placement, self.stages, self._chunks
        return [
            self.runs[placement.model_stage(stage, stages, chunks)]
            for stage in range(placement.num_virtual_stages(stages, chunks))
            if placement.rank(stage, stages) == rank
        ]

    def parameters(self, rank: int) -> ParameterCount:
        """What a rank holds of the model, before data-parallel sharding."""
        if rank not in self._parameters:
            runs, copied = self.runs_of(rank), self.copies_embedding
            counts = (slice_parameters(self._job, run, tied_copy=copied) for run in runs)
            self._parameters[rank] = added_up(counts)
        return self._parameters[rank]

    @property
    def model_copies(self) -> int:
        """Copies of the model that one pipeline holds: two where it runs in both directions."""
        return self._placement.copies

    @property
    def head_rank(self) -> int:
        """Rank that holds the head; beside the embedding where the pipeline comes back."""
        return self._placement.rank(len(self.runs) - 1, self.stages)

    @property
    def copies_embedding(self) -> bool:
        """Whether the rank with the head holds a copy of the first one's embedding."""
        return self.model_copies == 1 and copies_embedding(self._job) and self.head_rank != 0
