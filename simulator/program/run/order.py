"""In which order do the ranks of a job run their passes?

Most schedules say it by their sizes alone; some are decided from what passes cost
(:mod:`simulator.program.price.schedule_costs`), and Megatron's interleaved one pairs passes where
it exchanges for both at once.
"""

from __future__ import annotations

from functools import cached_property

from simulator.described.job import Job
from simulator.errors import UnsupportedError
from simulator.program.price.schedule_costs import pass_costs
from simulator.program.run.boundary_buffers import BoundaryBuffers
from simulator.schedule import Order, ScheduleInfo
from simulator.schedule.info import PassCosts
from simulator.schedule.orders.one_f_one_b import one_ahead


def job_schedule(job: Job) -> ScheduleInfo:
    """The pipeline schedule that the plan names, implies, or reads from a file.

    Raises:
        InputError: The file holds no order that can run; faults name row and column.
        UnsupportedError: No framework shards under it as the plan says.
    """
    schedule = job.choices.schedule
    if job.choices.shards_gradients and job.plan.pp > 1 and schedule.placement.copies > 1:
        zero = job.plan.zero
        raise UnsupportedError.single(
            "plan.zero",
            f"no framework runs ZeRO {zero} under {schedule.name}: its two copies of the model "
            "add their whole gradients up at the end of the step",
            zero,
            "take plan.zero: 1, or a schedule with one copy of the model, as dualpipev",
        )
    return schedule


def boundary_buffers(job: Job, schedule: ScheduleInfo, boundary_bytes: float) -> BoundaryBuffers:
    """The buffers that the job's pipeline transfers take; none without a pipeline."""
    return BoundaryBuffers(
        boundary_bytes if job.plan.pp > 1 else 0.0,
        job.plan.pp,
        job.plan.vpp,
        schedule.placement,
        per_microbatch=job.choices.buffers_every_microbatch,
        blocking=not job.choices.overlaps_transfers,
    )


class StepOrder:
    """What every pipeline rank of a job runs; decided once, from the job as its user wrote it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.schedule = job_schedule(job)
        self._orders: dict[int, Order] = {}

    def slots(self, microbatches: int) -> Order:
        """The slots of every rank.

        Args:
            microbatches: How many a pipeline runs without a flush.

        Raises:
            InputError: The schedule has no order for the plan's sizes.
        """
        if microbatches not in self._orders:
            self._orders[microbatches] = self._decided(microbatches)
        return self._orders[microbatches]

    def _decided(self, microbatches: int) -> Order:
        plan, schedule = self.job.plan, self.schedule
        schedule.check(plan.pp, plan.vpp, self.job.microbatches)
        if plan.pp == 1 and plan.overlap_ep:
            return [one_ahead(microbatches)]
        sizes = (plan.pp, plan.vpp, microbatches)
        if schedule.paired_order is not None and self.job.choices.pairs_passes:
            return schedule.paired_order(*sizes)
        if schedule.costed_order is not None:
            return schedule.costed_order(*sizes, self._pass_costs)
        return schedule.order(*sizes)

    @cached_property
    def _pass_costs(self) -> PassCosts:
        return pass_costs(self.job, self.schedule)
