"""What does a changed job cost?

Whatever is said of a change was simulated. Changes that break a rule of a job, or that its stack
does not run, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from simulator.described.job import Job
from simulator.engine.des import LimitError
from simulator.errors import InputError
from simulator.planning.changes.single_changes import Change
from simulator.planning.search.space import still_shards
from simulator.results.fit_probability import DEFAULT_RISK, allowed_device_bytes
from simulator.results.simulation import Engine, KeptSteps, run_step
from simulator.results.step import StepResult
from simulator.results.views.verdict import WhatIf

OnTrial = Callable[[], None]

MUCH_SHORTER = 0.95
"""Share of a step that other changes must get below to be worth their number. Assumption."""


@dataclass(frozen=True)
class Trial(WhatIf):
    """A simulated change, compared with the job without it.

    Attributes:
        held_bytes: Who holds the peak of the fullest GPU, by name [B].
        before_s: Step without the change, by the same engine [s].
        before_bytes: What the fullest GPU holds without it [B].
    """

    held_bytes: Mapping[str, float]
    before_s: float
    before_bytes: float

    @property
    def change(self) -> Change:
        """What was changed."""
        return Change(self.words, self.changes)

    @property
    def slower_share(self) -> float:
        """How much longer the step is, as a share; negative where it is shorter."""
        return self.step_time_s / self.before_s - 1

    @property
    def saved_share(self) -> float:
        """Share of the step that is saved; negative where it is longer."""
        return 1 - self.step_time_s / self.before_s

    @property
    def saved_bytes(self) -> float:
        """Memory that the fullest GPU no longer needs [B]."""
        return self.before_bytes - self.peak_device_bytes


class Baseline(NamedTuple):
    """What changes of a job are compared with.

    Attributes:
        step_time_s: Its step, by the same engine [s].
        tokens_per_s_per_gpu: What an average GPU gets done.
        peak_device_bytes: What its fullest GPU holds [B].
    """

    step_time_s: float
    tokens_per_s_per_gpu: float
    peak_device_bytes: float


class Comparison:
    """Simulates changes of one job whose own step is known.

    Args:
        job: The job that is changed.
        baseline: What is known of it, by the same engine.
        kept: What is known of steps like its own.

    Attributes:
        count: Changed jobs that were simulated.
    """

    def __init__(
        self,
        job: Job,
        baseline: Baseline,
        engine: Engine = "replay",
        on_trial: OnTrial | None = None,
        risk: float = DEFAULT_RISK,
        kept: KeptSteps | None = None,
    ) -> None:
        self.job, self.count = job, 0
        self._baseline, self._kept = baseline, kept or KeptSteps()
        self._risk, self._engine, self._on_trial = risk, engine, on_trial

    def shorter(self, changes: Iterable[Change]) -> Iterator[Trial]:
        """Those whose step is shorter than that of the job itself."""
        found = self.of(changes, below_s=self._baseline.step_time_s)
        return (each for each in found if each.saved_share > 0)

    def of(self, changes: Iterable[Change], *, below_s: float = inf) -> Iterator[Trial]:
        """The changes that can run, simulated one by one.

        Some of those whose steps are not shorter than ``below_s`` are left out.
        """
        for change in changes:
            try:
                changed = self.job.replace(change.fields)
                if not self._can_shard(changed, change):
                    continue
                step = run_step(changed, self._engine, kept=self._kept, below_s=below_s)
            except InputError:
                continue  # not a choice that this job has
            except LimitError:
                step = None
            self.count += 1
            if self._on_trial:
                self._on_trial()
            if step is not None:
                yield _trial(change, step, self._baseline, self._risk)

    def _can_shard(self, changed: Job, change: Change) -> bool:
        """Whether the stack shards as the plan says, and a new ZeRO stage has ranks to use."""
        if "plan.zero" in change.fields and changed.dp * changed.plan.cp == 1:
            return False
        return still_shards(changed, self.job)


class Trials(Comparison):
    """Simulates changes of one job, and the job itself before.

    Attributes:
        before: The step of the job itself.
        allowed_bytes: What the fullest GPU may hold where the risk is no larger than asked [B].

    Raises:
        InputError: The job itself cannot run.
    """

    def __init__(
        self,
        job: Job,
        engine: Engine = "replay",
        on_trial: OnTrial | None = None,
        risk: float = DEFAULT_RISK,
    ) -> None:
        kept = KeptSteps()
        self.before = step = run_step(job, engine, kept=kept)
        self.allowed_bytes = allowed_device_bytes(job, risk)
        baseline = Baseline(step.step_time_s, step.tokens_per_s_per_gpu, step.peak_device_bytes)
        super().__init__(job, baseline, engine, on_trial, risk, kept)


def unbeaten(found: Iterable[Trial]) -> list[Trial]:
    """Trials in their order, without those than which another saves more memory and time.

    One that asks more of how the model is trained does not stand for one that asks less.
    """
    trials = list(found)
    return [
        each
        for each in trials
        if not any(
            other.saved_bytes > each.saved_bytes
            and other.step_time_s < each.step_time_s
            and _asked_of_training(other) <= _asked_of_training(each)
            for other in trials
        )
    ]


def _asked_of_training(trial: Trial) -> int:
    """0 where the model is trained as before, 1 with other states, 2 with other weights."""
    if any(path.startswith("plan.lora") for path in trial.changes):
        return 2
    return int("plan.optimizer" in trial.changes)


def held_bytes(step: StepResult) -> dict[str, float]:
    """Who holds the memory of the fullest GPU at its peak, by name [B]."""
    fullest = step.fullest
    held = {owner.value: num_bytes for owner, num_bytes in fullest.by_owner.items()}
    return {
        **held,
        "allocator and context": fullest.peak_device_bytes - fullest.peak_allocated_bytes,
    }


def _trial(change: Change, step: StepResult, before: Baseline, risk: float) -> Trial:
    probability = step.fits_probability
    return Trial(
        words=change.words,
        changes=change.fields,
        gain=step.tokens_per_s_per_gpu / before.tokens_per_s_per_gpu - 1,
        step_time_s=step.step_time_s,
        peak_device_bytes=step.peak_device_bytes,
        fits_probability=probability,
        fits=probability >= 1 - risk,
        held_bytes=held_bytes(step),
        before_s=before.step_time_s,
        before_bytes=before.peak_device_bytes,
    )
