"""How much does every pipeline stage hold at its peak, without simulating the step?

Passes of one rank run in the order of the schedule, so what they take and give back can be
added up along that order alone: no times, no transfers, no contention. That is the simulated
peak where the passes are not cut into pieces that gather weights or make gradients (ZeRO 0
and 1 with gradient buffers that stay, more than one microbatch), and a bound for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import UnsupportedError
from simulator.program.boundary_buffers import NO_BUFFERS
from simulator.program.ir import total_bytes
from simulator.program.layout import Slice, stage_slices
from simulator.program.order import StepOrder, boundary_buffers
from simulator.program.stage import StageCosts
from simulator.program.states import (
    ParameterCount,
    copies_embedding,
    resident_memory,
    slice_parameters,
)
from simulator.program.update_memory import update_memory
from simulator.schedule import Phase, Slot
from simulator.schedule.info import ScheduleInfo
from simulator.spec.job import Job


@dataclass(frozen=True, slots=True)
class QuickPeak:
    """What one stage holds.

    Attributes:
        least_bytes: Allocated at least, whatever is sharded: what stays from step to step and
            the activations of all microbatches under way [B].
        peak_bytes: With what passes hold while they run; the simulated peak under the
            conditions above [B].
    """

    least_bytes: float
    peak_bytes: float


def quick_peaks(job: Job) -> tuple[QuickPeak, ...]:
    """The peak of every pipeline rank of a job.

    Raises:
        InputError: The plan asks for something that cannot run.
        UnsupportedError: The schedule is asynchronous, or activations leave the GPU.
    """
    plan, order = job.plan, StepOrder(job)
    schedule = order.schedule
    if not schedule.synchronous:
        raise UnsupportedError.single(
            "plan.schedule",
            "updates weights between microbatches; its peak is simulated, not added up",
            schedule.name,
            "take a synchronous one such as 1f1b",
        )
    if plan.offload.activations:
        raise UnsupportedError.single(
            "plan.offload.activations",
            "leave the GPU as fast as the link lets them; the peak is simulated, not added up",
            plan.offload.activations,
            "leave it out",
        )
    walker = _Walker(job, schedule, StageCosts(job), stage_slices(job, plan.pp * plan.vpp))
    return tuple(
        walker.peak(rank, slots) for rank, slots in enumerate(order.slots(job.microbatches))
    )


@dataclass
class _Walker:
    job: Job
    schedule: ScheduleInfo
    costs: StageCosts
    runs: Sequence[Slice]

    def peak(self, rank: int, slots: Sequence[Slot]) -> QuickPeak:
        """Adds up what the passes of a rank take, hold and give back."""
        parameters = self._parameters(rank)
        buffers = boundary_buffers(self.job, self.schedule, self.costs.boundary_bytes)
        resident = total_bytes(resident_memory(self.job, parameters))
        resident += total_bytes(buffers.resident(slots, self.job.microbatches))
        around = buffers.of_passes(slots)
        held = most_held = 0.0
        peak = self._update_bytes(rank)
        for slot in slots:
            taken, working, given = self._changes(slot)
            buffer = around.get(slot, NO_BUFFERS)
            held += taken + total_bytes(buffer.takes)
            most_held = max(most_held, held)
            peak = max(peak, held + working + total_bytes(buffer.holds))
            held -= given + total_bytes(buffer.gives)
        return QuickPeak(resident + most_held, resident + peak)

    def _changes(self, slot: Slot) -> tuple[float, float, float]:
        """Bytes that a pass takes, holds while it runs, and gives back."""
        run, costs = self._run(slot.stage), self.costs
        if slot.phase is Phase.FORWARD:
            return total_bytes(costs.saved(run)), total_bytes(costs.passing(run)), 0.0
        working = total_bytes(costs.working(run, slot.phase))
        if slot.phase is Phase.BACKWARD:
            return 0.0, working, total_bytes(costs.saved(run))
        halves = costs.halves(run)
        if slot.phase is Phase.BACKWARD_INPUT:
            return total_bytes(halves.takes), working, total_bytes(halves.gives)
        return 0.0, working, total_bytes(halves.pending)

    def _run(self, stage: int) -> Slice:
        plan = self.job.plan
        return self.runs[self.schedule.placement.model_stage(stage, plan.pp, plan.vpp)]

    def _update_bytes(self, rank: int) -> float:
        runs, copied = self._rank_runs(rank), self._copies_embedding
        return update_memory(self.job, runs, tied_copy=copied).most_bytes

    def _parameters(self, rank: int) -> ParameterCount:
        copied = self._copies_embedding
        held = (slice_parameters(self.job, r, tied_copy=copied) for r in self._rank_runs(rank))
        return sum(held, ParameterCount())

    @property
    def _copies_embedding(self) -> bool:
        placement = self.schedule.placement
        head_rank = placement.rank(len(self.runs) - 1, self.job.plan.pp)
        return placement.copies == 1 and copies_embedding(self.job) and head_rank != 0

    def _rank_runs(self, rank: int) -> list[Slice]:
        plan, placement = self.job.plan, self.schedule.placement
        return [
            self._run(stage)
            for stage in range(placement.num_virtual_stages(plan.pp, plan.vpp))
            if placement.rank(stage, plan.pp) == rank
        ]
