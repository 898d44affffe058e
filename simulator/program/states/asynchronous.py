"""What does training need, and what is it no longer, that updates weights without a flush?

Every rank updates alone, in the middle of the order. A microbatch must meet in its backward
the weights of its forward, so a rank keeps versions of them; gradients are applied to newer
weights than they were computed with. That is not synchronous training: it learns something
else, and how well is not the simulator's to say.

A delayed update on the CPU (ZeRO-Offload, arXiv 2101.06840, section 5.2) has one version of the
weights, and applies gradients one update late.

Source: PipeDream (arXiv 1806.03377, section 3.3), one version per microbatch in flight, an
update after each; PipeDream-2BW (arXiv 2006.09503, section 3.1), two versions, an update
after every step's microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.described.job import Job
from simulator.errors import UnsupportedError
from simulator.program.states.resident import copies_embedding
from simulator.schedule import ScheduleInfo


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


def refuse_shared_updates(job: Job, schedule: ScheduleInfo) -> None:
    """Raise if ranks that update alone would have to wait for others.

    Raises:
        UnsupportedError: Names the field and the way out.
    """
    if schedule.synchronous:
        return
    if job.choices.shards_states and job.dp * job.plan.cp > 1:
        raise UnsupportedError.single(
            "plan.zero",
            f"must be 0 with {schedule.name}: no sharded form of its stashed weights is published",
            job.plan.zero,
            "take plan.zero: 0, or plan.schedule: 1f1b",
        )
    if copies_embedding(job):
        raise UnsupportedError.single(
            "plan.schedule",
            "updates every stage on its own, but the first and the last stage share the embedding",
            schedule.name,
            "take model.tied_embeddings: false (and no multi-token prediction), or 1f1b",
        )
    if job.plan.post_validation:
        raise UnsupportedError.single(
            "plan.post_validation",
            f"has no meaning with {schedule.name}, whose stages never wait for each other's norm",
            job.plan.post_validation,
            "leave it out",
        )
