"""In which order do the ranks of a job run their passes, and when do they update?

Most schedules say the order by their sizes alone; some are decided from what passes cost
(:mod:`simulator.program.price.schedule_costs`), and Megatron's interleaved one pairs passes where
it exchanges for both at once.

Without a flush every rank updates alone, in the middle of the order. A microbatch must meet in its
backward the weights of its forward, so a rank keeps versions of them; gradients are applied to
newer weights than they were computed with. That is not synchronous training: it learns something
else, and how well is not the simulator's to say. A delayed update on the CPU (ZeRO-Offload, arXiv
2101.06840, section 5.2) has one version of the weights, and applies gradients one update late.

Source: PipeDream (arXiv 1806.03377, section 3.3), one version per microbatch in flight, an
update after each; PipeDream-2BW (arXiv 2006.09503, section 3.1), two versions, an update
after every step's microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator.described.job import Job
from simulator.program.price.schedule_costs import pass_costs
from simulator.program.run.boundary_buffers import BoundaryBuffers
from simulator.schedule import Order, ScheduleInfo
from simulator.schedule.info import PassCosts
from simulator.schedule.orders.one_f_one_b import one_ahead


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
        self.schedule = job.choices.schedule
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


@dataclass(frozen=True)
class Asynchrony:
    """How far training without a flush is from synchronous training.

    Attributes:
        microbatches_per_update: Microbatches of each replica between two updates.
        weight_versions: Versions of its weights that each stage keeps.
        staleness_updates: Updates by which the weights that a gradient was computed with are
            older than those it is applied to, per stage.
        is_delayed: Whether CPUs update beside the next step; else a pipeline never drains.
    """

    microbatches_per_update: int
    weight_versions: tuple[int, ...]
    staleness_updates: tuple[int, ...]
    is_delayed: bool = False

    @property
    def statement(self) -> str:
        """What must be said beside the numbers."""
        worst = max(self.staleness_updates)
        if self.is_delayed:
            return (
                "not synchronous training: the CPUs update while the next step runs, so gradients "
                "are applied 1 update after the weights they belong to"
            )
        return (
            "not synchronous training: the pipeline never drains, and gradients are applied up "
            f"to {worst} update{'' if worst == 1 else 's'} after the weights they belong to; the "
            "step time is that of as many microbatches in a full pipeline"
        )


def asynchrony(job: Job, schedule: ScheduleInfo) -> Asynchrony | None:
    """Updates, versions and staleness of the job; None if its training is synchronous."""
    if job.plan.offload.delayed_update:
        return Asynchrony(job.microbatches, (1,), (1,), is_delayed=True)
    if schedule.synchronous:
        return None
    stages = job.plan.pp
    return Asynchrony(
        1 if schedule.updates_every_microbatch else job.microbatches,
        tuple(schedule.weight_versions(rank, stages) for rank in range(stages)),
        tuple(schedule.staleness(rank, stages) for rank in range(stages)),
    )
