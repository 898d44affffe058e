"""In which order do the ranks of a job run their passes?

Most schedules say it by their sizes alone; some are decided from what passes cost
(:mod:`simulator.program.price.schedule_costs`), and Megatron's interleaved one pairs passes where
it exchanges for both at once.
"""

from __future__ import annotations

from functools import cached_property

from simulator.described.job import Job
from simulator.described.plan.plan_blocks import WrittenSchedule
from simulator.errors import UnsupportedError
from simulator.program.price.schedule_costs import pass_costs
from simulator.program.run.boundary_buffers import BoundaryBuffers
from simulator.schedule import Order, ScheduleInfo, schedule_info
from simulator.schedule.orders.one_f_one_b import one_ahead, paired_interleaved
from simulator.schedule.pass_costs import PassCosts
from simulator.schedule.written import written_schedule

_WAITING_SCHEDULES = frozenset({"naive", "gpipe", "1f1b", "dapple"})
"""Schedules whose implementations, Megatron's and PyTorch's alike, wait for every transfer
before they go on (``overlap_p2p_comm`` is for interleaved schedules only)."""


def job_schedule(job: Job) -> ScheduleInfo:
    """The pipeline schedule that the plan names, implies, or reads from a file.

    Raises:
        InputError: The file holds no order that can run; faults name row and column.
        UnsupportedError: No framework shards under it as the plan says.
    """
    plan = job.plan
    if isinstance(plan.schedule, WrittenSchedule):
        schedule = written_schedule("\n".join(plan.schedule.rows), plan.schedule.file)
    else:
        implied = "interleaved-1f1b" if plan.vpp > 1 else "1f1b"
        schedule = schedule_info(plan.schedule or implied)
    _refuse_sharded_copies(job, schedule)
    return schedule


def _refuse_sharded_copies(job: Job, schedule: ScheduleInfo) -> None:
    """Raise where ranks hold two copies of the model and gradients or weights are sharded."""
    zero = job.plan.zero
    if zero > 1 and job.plan.pp > 1 and schedule.placement.copies > 1:
        raise UnsupportedError.single(
            "plan.zero",
            f"no framework runs ZeRO {zero} under {schedule.name}: its two copies of the model "
            "add their whole gradients up at the end of the step",
            zero,
            "take plan.zero: 1, or a schedule with one copy of the model, as dualpipev",
        )


def overlaps_p2p(job: Job, schedule: ScheduleInfo) -> bool:
    """Whether pipeline transfers run beside computation."""
    plan = job.plan
    if plan.overlap_p2p is not None:
        return plan.overlap_p2p
    # Where backwards are split, runtimes post sends and receives ahead of their use.
    overlaps = plan.stack.overlap_p2p or schedule.splits_backward
    return overlaps and schedule.name not in _WAITING_SCHEDULES


def boundary_buffers(job: Job, schedule: ScheduleInfo, boundary_bytes: float) -> BoundaryBuffers:
    """The buffers that the job's pipeline transfers take; none without a pipeline."""
    return BoundaryBuffers(
        boundary_bytes if job.plan.pp > 1 else 0.0,
        job.plan.pp,
        job.plan.vpp,
        schedule.placement,
        per_microbatch=job.plan.stack.buffers_every_microbatch,
        blocking=not overlaps_p2p(job, schedule),
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
        if self._joins_passes:
            return paired_interleaved(*sizes)
        if schedule.costed_order is not None:
            return schedule.costed_order(*sizes, self._pass_costs)
        return schedule.order(*sizes)

    @cached_property
    def _pass_costs(self) -> PassCosts:
        return pass_costs(self.job, self.schedule)

    @property
    def _joins_passes(self) -> bool:
        """Whether a forward waits for the input of the backward after it.

        Megatron's interleaved schedule does where it exchanges activations and gradients in
        one blocking call, and where the two passes run side by side.
        """
        overlaps = overlaps_p2p(self.job, self.schedule) and not self.job.plan.overlap_ep
        return self.schedule.name == "interleaved-1f1b" and not overlaps
