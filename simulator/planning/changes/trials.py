"""What does a changed job cost?

Whatever is said of a change was simulated. Changes that break a rule of a job, or that its stack
does not run, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.planning.changes.single_changes import Change, Fields, Question
from simulator.planning.search.space import still_shards
from simulator.results.simulation import Engine, run_step

OnTrial = Callable[[], None]


@dataclass(frozen=True)
class Trial:
    """A simulated change.

    Attributes:
        change: What was changed.
        step_time_s: Step of the changed job [s].
        tokens_per_s_per_gpu: What it trains.
        peak_device_bytes: What its fullest GPU holds [B].
        held_bytes: Who holds that, by name [B]; sums to it.
        capacity_bytes: Memory of a GPU [B].
        fits: Whether the fullest GPU, and the fullest node, has room.
    """

    change: Change
    step_time_s: float
    tokens_per_s_per_gpu: float
    peak_device_bytes: float
    held_bytes: Mapping[str, float]
    capacity_bytes: float
    fits: bool

    @property
    def fields(self) -> Fields:
        """What was changed, ready for :meth:`Job.replace`."""
        return self.change.fields


class Trials:
    """Simulates changes of one job.

    Attributes:
        job: Where to start from.
        base: The job itself, simulated.
        count: Changed jobs that were simulated.

    Args:
        job: Where to start from.
        engine: How steps are simulated.
        on_trial: Called after each simulated change, for progress.

    Raises:
        InputError: The job itself cannot run.
    """

    def __init__(self, job: Job, engine: Engine = "replay", on_trial: OnTrial | None = None):
        self.job, self.count = job, 0
        self._engine, self._on_trial = engine, on_trial
        self.base = _simulated(job, Change("nothing", {}, Question(0)), engine)

    def of(self, changes: Iterable[Change]) -> Iterator[Trial]:
        """The changes that can run, simulated one by one."""
        for change in changes:
            try:
                changed = self.job.replace(change.fields)
                if not self._can_shard(changed, change):
                    continue
                trial = _simulated(changed, change, self._engine)
            except InputError:
                continue  # not a choice that this job has
            self.count += 1
            if self._on_trial:
                self._on_trial()
            yield trial

    def in_full(self, trial: Trial) -> Trial:
        """The same change simulated with contention, as the job will be."""
        return _simulated(self.job.replace(trial.fields), trial.change, "des")

    def _can_shard(self, changed: Job, change: Change) -> bool:
        """Whether the stack shards as the plan says, and a new ZeRO stage has ranks to use."""
        if "plan.zero" in change.fields and changed.dp * changed.plan.cp == 1:
            return False
        return still_shards(changed, self.job)


def _simulated(job: Job, change: Change, engine: Engine) -> Trial:
    step = run_step(job, engine)
    fullest = step.fullest
    held = {owner.value: num_bytes for owner, num_bytes in fullest.by_owner.items()}
    held["allocator and context"] = fullest.peak_device_bytes - fullest.peak_allocated_bytes
    return Trial(
        change=change,
        step_time_s=step.step_time_s,
        tokens_per_s_per_gpu=step.tokens_per_s_per_gpu,
        peak_device_bytes=step.peak_device_bytes,
        held_bytes=held,
        capacity_bytes=step.capacity_bytes,
        fits=step.fits,
    )
