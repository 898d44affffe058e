"""Which plan has the shortest step, of all that fit?

Three tiers; each costs more and is closer than the one before, and is never above the next:

1. a closed-form lower bound of all plans at once (:mod:`simulator.planning.search.bound`);
2. the replay without contention;
3. the full simulation.

The plan with the smallest value so far is taken to its next tier, until the smallest value
is a full simulation's. All other plans have lower bounds that are no smaller, so that plan
is the fastest under the full simulation of *all* plans, although few were simulated. Going
on in the same way gives the second, the third, and so on, just as surely.

A plan fits where it runs out of memory with a probability of no more than the risk that is asked.
One whose lower bound of memory is more than that allows is dropped; whether the others fit is what
the full simulation says.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.planning.search.bound import ROUNDING, plan_bounds
from simulator.planning.search.space import Axes, PlanSpace, plan_space
from simulator.program.build import build_program, steps_around
from simulator.program.ir import Category
from simulator.results.fit_probability import DEFAULT_RISK, allowed_device_bytes
from simulator.results.simulation import run_step

Part = Callable[[PlanSpace], NDArray[np.bool_]]
"""Which plans of a space belong to a part of it, shape (plans,)."""

_MEMORY_STEP = 0.02
"""How much less memory the next plan of a Pareto front takes, as a share."""


class Tier(IntEnum):
    """How well a plan's step time is known."""

    BOUND = 0
    REPLAY = 1
    SIMULATION = 2


@dataclass(frozen=True)
class PlanChoice:
    """A plan that was fully simulated and fits.

    Attributes:
        changes: What gives the job this plan, ready for :meth:`Job.replace`.
        step_time_s: Its step under the full simulation [s].
        peak_device_bytes: Device memory of its fullest GPU [B].
        fits_probability: How likely that is within its memory, 0 to 1.
        breakdown_s: Where the step of the mean rank goes [s].
    """

    changes: Mapping[str, Any]
    dp: int
    step_time_s: float
    peak_device_bytes: float
    fits_probability: float
    breakdown_s: Mapping[Category, float]


@dataclass(frozen=True)
class Pruned:
    """How many plans were set aside for which reason.

    Attributes:
        refused: Combinations that break a rule, by the field that the rule names.
        too_large: Plans whose least memory is more than the risk allows.
        too_large_simulated: Plans that turned out to hold more when they were simulated.
        slower_bound: Plans whose lower bound is no shorter than the last choice's step.
        slower_replay: Plans whose replay is no shorter.
        slower_simulation: Plans whose simulated step is longer.
    """

    refused: Mapping[str, int]
    too_large: int
    too_large_simulated: int
    slower_bound: int
    slower_replay: int
    slower_simulation: int


@dataclass(frozen=True)
class PlanSearch:
    """What a search found.

    Attributes:
        choices: The fastest plans that fit, fastest first; empty where none fits.
        plans: Valid plans that were looked at.
        replayed, simulated: How many of them reached the second and third tier.
        pruned: Why the others are not among the choices.
        smallest: The plan that needs least memory, by its lower bound, where none fits.
    """

    choices: tuple[PlanChoice, ...]
    plans: int
    replayed: int
    simulated: int
    pruned: Pruned
    smallest: Mapping[str, Any] | None


class Progress(NamedTuple):
    """Where a search stands.

    Attributes:
        replayed, simulated: Plans that were taken to the second and third tier.
        open: Plans that could still be faster than the fastest known one.
        best_s: Step of the fastest plan that was fully simulated and fits; infinite where
            none was [s].
    """

    replayed: int
    simulated: int
    open: int
    best_s: float


def search_plans(
    job: Job,
    vary: Axes | None = None,
    *,
    top: int = 1,
    risk: float = DEFAULT_RISK,
    executor: Executor | None = None,
    at_a_time: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> PlanSearch:
    """The fastest plans of a job, proven to be so under the full simulation of all plans.

    Args:
        job: Model, cluster, batch, and the fields of the plan that are not varied.
        vary: Values by field; see :func:`~simulator.planning.search.space.plan_space`.
        top: How many of the fastest plans to find.
        risk: Largest accepted probability of running out of memory.
        executor: Where plans are simulated; in this process if None. The answer does not
            depend on it.
        at_a_time: Plans that are handed to the executor together.
        on_progress: Called after each plan that was replayed or simulated.

    Raises:
        InputError: A field cannot be varied, or a value of it is wrong.
    """
    candidates = _candidates(job, vary, executor, at_a_time)
    return _Search(candidates, top, allowed_device_bytes(job, risk)).run(on_progress)


def search_risks(
    job: Job,
    risks: Sequence[float],
    vary: Axes | None = None,
    *,
    executor: Executor | None = None,
    at_a_time: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[float, PlanSearch]:
    """The fastest plan by the risk of running out of memory, proven as in :func:`search_plans`.

    What is known of a plan is shared. Arguments and errors are those of :func:`search_plans`.
    """
    candidates = _candidates(job, vary, executor, at_a_time)
    return {
        risk: _Search(candidates, 1, allowed_device_bytes(job, risk)).run(on_progress)
        for risk in risks
    }


def search_parts(
    job: Job,
    parts: Mapping[str, Part],
    vary: Axes | None = None,
    *,
    risk: float = DEFAULT_RISK,
    executor: Executor | None = None,
    at_a_time: int = 1,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> dict[str, PlanSearch]:
    """The fastest plan of each part of one space, proven as in :func:`search_plans`.

    What is known of a plan is shared, so all parts cost little more than the whole space. How
    many combinations break a rule is known of the whole space only. ``parts`` says by name which
    plans belong to a part, and ``on_progress`` is handed that name, too; the other arguments, and
    errors, are those of :func:`search_plans`.
    """
    candidates = _candidates(job, vary, executor, at_a_time)
    limit_bytes = allowed_device_bytes(job, risk)
    return {
        name: _Search(candidates, 1, limit_bytes, part(candidates.space)).run(
            None if on_progress is None else partial(on_progress, name)
        )
        for name, part in parts.items()
    }


def pareto_front(
    job: Job,
    vary: Axes | None = None,
    *,
    risk: float = DEFAULT_RISK,
    most: int = 12,
    executor: Executor | None = None,
    at_a_time: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[PlanChoice, ...]:
    """Plans that no other beats in both step time and memory, the fastest first.

    Each is the fastest of all that hold 2 % less than the one before it, proven as in
    :func:`search_plans`; the last one found has no plan below it, or ends the ``most`` that are
    asked for. The other arguments, and errors, are those of :func:`search_plans`.
    """
    candidates = _candidates(job, vary, executor, at_a_time)
    limit_bytes = allowed_device_bytes(job, risk)
    front: list[PlanChoice] = []
    while len(front) < most:
        choices = _Search(candidates, 1, limit_bytes).run(on_progress).choices
        if not choices:
            break
        front.append(choices[0])
        limit_bytes = choices[0].peak_device_bytes * (1 - _MEMORY_STEP)
    return tuple(front)


def _candidates(
    job: Job, vary: Axes | None, executor: Executor | None, at_a_time: int
) -> _Candidates:
    refuse_pools(job, "the best plan")
    return _Candidates(plan_space(job, vary), executor, at_a_time)


class _Trial(NamedTuple):
    """What a tier says about a plan; only the full simulation says what it holds."""

    step_time_s: float
    peak_device_bytes: float | None = None
    fits_probability: float = 0.0
    breakdown_s: Mapping[Category, float] | None = None
    refused: str = ""
    """Field of the rule that the plan turned out to break; its other values mean nothing."""


class _Entry(NamedTuple):
    """A plan and what is known of its step; sorts by it, ties by the plan's number."""

    step_s: float
    plan: int
    tier: Tier


class _Candidates:
    """All plans of a space with their bounds, and every trial that was ever made of them."""

    def __init__(self, space: PlanSpace, executor: Executor | None, at_a_time: int) -> None:
        self.space, self.at_a_time = space, at_a_time
        self.bounds = plan_bounds(space)
        self._run = map if executor is None else executor.map
        self._known: dict[tuple[int, Tier], _Trial] = {}

    def trials(self, wanted: list[tuple[int, Tier]]) -> Iterator[_Trial]:
        """What the tiers say about the plans, in order."""
        new = [pair for pair in wanted if pair not in self._known]
        jobs = [self.space.plan_job(plan) for plan, _ in new]
        results = self._run(_try, jobs, [tier for _, tier in new])
        for pair in wanted:
            if pair not in self._known:
                self._known[pair] = next(results)
            yield self._known[pair]


class _Search:
    """The fastest plans of a space, or of those of it that are looked at."""

    def __init__(
        self,
        candidates: _Candidates,
        top: int,
        limit_bytes: float,
        among: NDArray[np.bool_] | None = None,
    ) -> None:
        self._candidates, self._space, self._top = candidates, candidates.space, top
        self._limit_bytes = limit_bytes
        bounds = candidates.bounds
        everything = np.ones(len(self._space), dtype=np.bool_)
        self._plans = np.flatnonzero(everything if among is None else among)
        self._least_bytes = bounds.peak_device_bytes[self._plans]
        fits = self._plans[self._least_bytes <= self._limit_bytes]
        self._heap = [
            _Entry(float(bounds.step_time_s[plan]), int(plan), Tier.BOUND) for plan in fits
        ]
        heapq.heapify(self._heap)
        self._simulated: dict[int, _Trial] = {}
        self._counts = {Tier.REPLAY: 0, Tier.SIMULATION: 0}
        self._best_s = inf
        self._found: list[_Entry] = []
        self._misfits = 0
        self._refused = Counter(self._space.refused)

    def run(self, on_progress: Callable[[Progress], None] | None) -> PlanSearch:
        """Take plans to their next tiers until the fastest are known."""
        while len(self._found) < self._top and self._heap:
            batch = self._next_batch(self._candidates.at_a_time)
            tiers = [Tier(entry.tier + 1) for entry in batch]
            wanted = [(entry.plan, tier) for entry, tier in zip(batch, tiers, strict=True)]
            trials = self._candidates.trials(wanted)
            for entry, tier, trial in zip(batch, tiers, trials, strict=True):
                self._book(entry, tier, trial)
                if on_progress is not None:
                    on_progress(self._progress())
        return self._result()

    def _result(self) -> PlanSearch:
        left = [entry.tier for entry in self._heap]
        space, choices = self._space, tuple(self._choice(entry) for entry in self._found)
        smallest = None
        if not choices and len(self._plans):
            smallest = space.changes(int(self._plans[self._least_bytes.argmin()]))
        return PlanSearch(
            choices=choices,
            plans=len(self._plans),
            replayed=self._counts[Tier.REPLAY],
            simulated=self._counts[Tier.SIMULATION],
            pruned=Pruned(
                refused=dict(self._refused.most_common()),
                too_large=int((self._least_bytes > self._limit_bytes).sum()),
                too_large_simulated=self._misfits,
                slower_bound=left.count(Tier.BOUND),
                slower_replay=left.count(Tier.REPLAY),
                slower_simulation=left.count(Tier.SIMULATION),
            ),
            smallest=smallest,
        )

    def _next_batch(self, size: int) -> list[_Entry]:
        """The most promising plans that are not fully known; those that are known are found."""
        batch: list[_Entry] = []
        kept: list[_Entry] = []
        while self._heap and len(batch) < size and len(self._found) < self._top:
            entry = heapq.heappop(self._heap)
            if entry.tier is not Tier.SIMULATION:
                batch.append(entry)
            elif batch:
                kept.append(entry)  # a plan before it may turn out faster
            else:
                self._found.append(entry)
        for entry in kept:
            heapq.heappush(self._heap, entry)
        return batch

    def _book(self, entry: _Entry, tier: Tier, trial: _Trial) -> None:
        self._counts[tier] += 1
        if trial.refused:
            self._refused[trial.refused] += 1
            return
        if trial.peak_device_bytes is not None:
            if trial.peak_device_bytes > self._limit_bytes:
                self._misfits += 1
                return
            self._simulated[entry.plan] = trial
            self._best_s = min(self._best_s, trial.step_time_s)
        step_s = trial.step_time_s * (1.0 if tier is Tier.SIMULATION else ROUNDING)
        heapq.heappush(self._heap, _Entry(step_s, entry.plan, tier))

    def _progress(self) -> Progress:
        still_open = sum(
            entry.step_s < self._best_s and entry.tier is not Tier.SIMULATION
            for entry in self._heap
        )
        counts = self._counts
        return Progress(counts[Tier.REPLAY], counts[Tier.SIMULATION], still_open, self._best_s)

    def _choice(self, entry: _Entry) -> PlanChoice:
        trial = self._simulated[entry.plan]
        return PlanChoice(
            changes=self._space.changes(entry.plan),
            dp=int(self._space.dp[entry.plan]),
            step_time_s=entry.step_s,
            peak_device_bytes=trial.peak_device_bytes or 0.0,
            fits_probability=trial.fits_probability,
            breakdown_s=trial.breakdown_s or {},
        )


def _try(job: Job, tier: Tier) -> _Trial:
    """What a tier says about a plan."""
    try:
        if tier is Tier.REPLAY:
            # One step of several that overlap is a window, which contention may also shorten.
            windows = steps_around(job).total > 1
            return _Trial(0.0 if windows else replay(build_program(job)).step_time_s)
        step = run_step(job)
    except InputError as error:
        return _Trial(inf, refused=error.faults[0].path)
    # A node without room for what leaves its GPUs makes the plan as useless as a full GPU.
    has_room = step.host is None or step.host.fits
    peak_bytes = step.peak_device_bytes if has_room else inf
    return _Trial(step.step_time_s, peak_bytes, step.fits_probability, step.breakdown_s)


BATCH, GPUS = "batch.global", "cluster.gpus"


def merged_searches(
    searches: Sequence[tuple[Mapping[str, Any], PlanSearch]], top: int
) -> PlanSearch:
    """One ranking of searches that differ in their global batch, their number of GPUs, or both.

    Args:
        searches: Each with what it changes of the job: ``{"batch.global": 256}``.
        top: Plans of each number of GPUs.

    Returns:
        The plans with the least time per sequence, first; their changes name batch and GPUs.
    """
    ranked = sorted(
        (
            (
                choice.step_time_s / changes.get(BATCH, 1),
                replace(choice, changes={**changes, **choice.changes}),
            )
            for changes, search in searches
            for choice in search.choices
        ),
        key=lambda pair: pair[0],
    )
    kept: list[PlanChoice] = []
    taken: Counter[Any] = Counter()
    for _, choice in ranked:
        gpus = choice.changes.get(GPUS)
        if taken[gpus] < top:
            kept.append(choice)
        taken[gpus] += 1
    parts = [search for _, search in searches]
    smallest = next(
        ({**changes, **s.smallest} for changes, s in searches if s.smallest is not None), None
    )
    return PlanSearch(
        choices=tuple(kept),
        plans=sum(part.plans for part in parts),
        replayed=sum(part.replayed for part in parts),
        simulated=sum(part.simulated for part in parts),
        pruned=_sum([part.pruned for part in parts]),
        smallest=None if ranked else smallest,
    )


def _sum(parts: list[Pruned]) -> Pruned:
    refused = sum((Counter(part.refused) for part in parts), Counter())
    counts = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(Pruned)
        if field.name != "refused"
    }
    return Pruned(refused=dict(refused.most_common()), **counts)
