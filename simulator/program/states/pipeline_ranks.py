"""Which layers does each rank of a pipeline hold, and which ranks hold the same?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.grid.stand_ins import StandIns
from simulator.program.layer.adapters import frozen_in_layer
from simulator.program.layer.layer_kinds import layer_kinds
from simulator.program.states.resident import ParameterCount, added_up, slice_parameters
from simulator.schedule import ScheduleInfo


class PipelineRanks:
    """What the ranks of one job's pipeline hold under a schedule.

    Attributes:
        stages: How many ranks there are.
        runs: Layers of each virtual stage, in order of the model.
    """

    def __init__(self, job: Job, schedule: ScheduleInfo, layers: Sequence[Hashable] = ()) -> None:
        self._job, self._placement, self._layers = job, schedule.placement, layers
        self.stages, chunks = job.plan.pp, job.plan.vpp
        self.runs = stage_slices(job, self.stages * chunks)
        self._runs_of: list[list[Slice]] = [[] for _ in range(self.stages)]
        for stage in range(self._placement.num_virtual_stages(self.stages, chunks)):
            run = self.runs[self._placement.model_stage(stage, self.stages, chunks)]
            self._runs_of[self._placement.rank(stage, self.stages)].append(run)
        self._parameters: dict[int, ParameterCount] = {}

    def runs_of(self, rank: int) -> list[Slice]:
        """Layers of every virtual stage of a rank, of all copies of the model."""
        return self._runs_of[rank]

    @cached_property
    def stand_ins(self) -> StandIns:
        """Which of them stand for equal ones of later ranks, where it is known what layers are."""
        return StandIns(self._runs_of, self._layers) if self._layers else StandIns()

    def stand_ins_of(self, rank: int) -> list[Slice]:
        """What stands for the layers of a rank."""
        return [*map(self.stand_ins.of, self._runs_of[rank])]

    @cached_property
    def like(self) -> list[int]:
        """Of each rank, the first that holds the same: equal layers in order, and equal ends."""
        model, plan = self._job.model, self._job.plan
        layers = [
            (kind, frozen_in_layer(model, plan, index))
            for index, kind in enumerate(layer_kinds(model))
        ]
        held = [
            tuple((*run[2:], *layers[run.first : run.end]) for run in runs)
            for runs in self._runs_of
        ]
        return [held.index(each) for each in held]

    def parameters(self, rank: int) -> ParameterCount:
        """What a rank holds of the model, before data-parallel sharding."""
        like = self.like[rank]
        if like not in self._parameters:
            runs, copied = self.runs_of(like), self.copies_embedding
            counts = (slice_parameters(self._job, run, tied_copy=copied) for run in runs)
            self._parameters[like] = added_up(counts)
        return self._parameters[like]

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
        return self.model_copies == 1 and self._job.choices.copies_embedding and self.head_rank != 0
