"""Which plan has the shortest step, of all that fit?

Three tiers; each costs more and is mostly closer than the one before, and none is above the last:

1. a closed-form lower bound of all plans at once (:mod:`simulator.planning.search.bound`);
2. the replay without contention;
3. the full simulation.

The plan with the smallest value so far is built and taken through the tiers, until the smallest
value is a full simulation's. All other plans have lower bounds that are no smaller, so that plan
is the fastest under the full simulation of *all* plans, although few were simulated. Going
on in the same way gives the second, the third, and so on, just as surely. A plan whose replay is
longer than the step of as many plans as are asked for is not simulated, and a simulation ends as
soon as what is left to do makes it longer: how late it is by then bounds its step.

A plan fits where it runs out of memory with a probability of no more than the risk that is asked.
One whose lower bound of memory is more than that allows is dropped; whether the others fit is what
the full simulation says.

The smallest value of a plan that is not simulated says how much faster any other can be at most, so
a search may end where that is little enough.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.planning.search.candidates import Candidates, first_answer
from simulator.planning.search.plan_trial import Tier, Trial
from simulator.planning.search.space import Axes, PlanSpace, plan_axes, plan_space
from simulator.processor import set_aside, without_collection
from simulator.program.ir import Category
from simulator.results.fit_probability import DEFAULT_RISK, allowed_device_bytes

Part = Callable[[PlanSpace], NDArray[np.bool_]]
"""Which plans of a space belong to a part of it, shape (plans,)."""

_NEAR_SHARE = 0.02
"""How much longer than the shortest one the bound of a plan may be that is tried first because it
is quicker to simulate, as a share: assumption. Any share gives the same winner."""

_MEMORY_STEP = 0.02
"""How much less memory the next plan of a Pareto front takes, as a share."""


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
        gap_share: How much shorter the step of any other plan can be at most, as a share; 0 where
            the choices are proven to be the fastest.
    """

    choices: tuple[PlanChoice, ...]
    plans: int
    replayed: int
    simulated: int
    pruned: Pruned
    smallest: Mapping[str, Any] | None
    gap_share: float = 0.0


class Progress(NamedTuple):
    """Where a search stands.

    Attributes:
        replayed, simulated: Plans that were taken to the second and third tier.
        open: Plans that could still be faster than the fastest known one; None before all
            have bounds.
        best_s: Step of the fastest plan that was fully simulated and fits; infinite where
            none was [s].
        gap_share: How much shorter any other step can be, as a share; 1 while none is known.
    """

    replayed: int
    simulated: int
    open: int | None
    best_s: float
    gap_share: float


def search_plans(
    job: Job,
    vary: Axes | None = None,
    *,
    top: int = 1,
    risk: float = DEFAULT_RISK,
    within: float = 0.0,
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
        within: How much shorter, as a share, the step of a plan may be that is not found. Above 0
            fewer are simulated, and the choices are the fastest of those that were.
        executor: Where plans are simulated; in this process if None. The answer does not
            depend on it where ``within`` is 0.
        at_a_time: Plans that are handed to the executor before the first of them is known.
        on_progress: Called after each plan that was replayed, and maybe simulated.

    Raises:
        InputError: A field cannot be varied, or a value of it is wrong.
    """
    searches = PlanSearches(
        job, [risk], vary, within=within, executor=executor, at_a_time=at_a_time,
        on_progress=on_progress,
    )  # fmt: skip
    return searches.fastest(risk, top)


class PlanSearches:
    """Searches for the plans of one job at several risks, which share what is known of a plan.

    Arguments and errors are those of :func:`search_plans`; ``risks`` are all that will be asked
    for, and the first answer fits at the first of them.
    """

    def __init__(
        self,
        job: Job,
        risks: Sequence[float],
        vary: Axes | None = None,
        *,
        within: float = 0.0,
        executor: Executor | None = None,
        at_a_time: int = 1,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._limits_bytes = {risk: allowed_device_bytes(job, risk) for risk in risks}
        self._job, self._vary, self._within = job, vary, within
        self._executor, self._at_a_time, self._on_progress = executor, at_a_time, on_progress

    def fastest(self, risk: float, top: int = 1) -> PlanSearch:
        """The fastest plans at one of the risks, proven as in :func:`search_plans`."""
        limit_bytes = self._limits_bytes[risk]
        return _Search(self._candidates, top, limit_bytes, within=self._within).run(
            self._on_progress
        )

    @cached_property
    def _candidates(self) -> Candidates:
        limits_bytes = [*self._limits_bytes.values()]
        return _candidates(
            self._job, self._vary, limits_bytes, self._executor, self._at_a_time, self._on_progress
        )


def search_parts(
    job: Job,
    parts: Mapping[str, Part],
    vary: Axes | None,
    *,
    risk: float,
    executor: Executor | None,
    at_a_time: int,
    on_progress: Callable[[str, Progress], None] | None,
) -> dict[str, PlanSearch]:
    """The fastest plan of each part of one space, proven as in :func:`search_plans`.

    What is known of a plan is shared, so all parts cost little more than the whole space. How
    many combinations break a rule is known of the whole space only. ``parts`` says by name which
    plans belong to a part, and ``on_progress`` is handed that name, too; the other arguments, and
    errors, are those of :func:`search_plans`.
    """
    limit_bytes = allowed_device_bytes(job, risk)
    candidates = _candidates(job, vary, [limit_bytes], executor, at_a_time)
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
    limit_bytes = allowed_device_bytes(job, risk)
    candidates = _candidates(job, vary, [limit_bytes], executor, at_a_time, on_progress)
    front: list[PlanChoice] = []
    while len(front) < most:
        choices = _Search(candidates, 1, limit_bytes).run(on_progress).choices
        if not choices:
            break
        front.append(choices[0])
        limit_bytes = choices[0].peak_device_bytes * (1 - _MEMORY_STEP)
    return tuple(front)


def _candidates(
    job: Job, vary: Axes | None, limits_bytes: Sequence[float], executor: Executor | None,
    at_a_time: int, on_progress: Callable[[Progress], None] | None = None,
) -> Candidates:  # fmt: skip
    """Plans that hold no more than the largest limit; the first answer keeps the first limit."""
    refuse_pools(job, "the best plan")
    with without_collection():
        axes = plan_axes(job, vary)
        first = first_answer(job, axes, limits_bytes[0])
        if first is not None and on_progress is not None:
            on_progress(Progress(1, 1, None, first.trial.step_time_s, 1.0))
        begun = first.begin(executor, at_a_time) if first else []
        space = plan_space(job, axes)
        return Candidates(space, max(limits_bytes), executor, at_a_time, first, begun)


class _Entry(NamedTuple):
    """A plan and what is known of its step; sorts by it, ties by the plan's number."""

    step_s: float
    plan: int
    tier: Tier


class _Search:
    """The fastest plans of a space, or of those of it that are looked at."""

    def __init__(
        self,
        candidates: Candidates,
        top: int,
        limit_bytes: float,
        among: NDArray[np.bool_] | None = None,
        within: float = 0.0,
    ) -> None:
        self._candidates, self._space, self._top = candidates, candidates.space, top
        self._limit_bytes, self._within = limit_bytes, within
        bounds = candidates.bounds
        everything = np.ones(len(self._space), dtype=np.bool_)
        self._plans = np.flatnonzero(everything if among is None else among)
        self._least_bytes = bounds.peak_device_bytes[self._plans]
        fits = self._plans[self._least_bytes <= self._limit_bytes]
        self._heap = [
            _Entry(float(bounds.step_time_s[plan]), int(plan), Tier.BOUND) for plan in fits
        ]
        heapq.heapify(self._heap)
        self._simulated: dict[int, Trial] = {}
        self._reached: dict[int, Tier] = {}
        self._found: list[_Entry] = []
        self._under_way: deque[tuple[_Entry, Future[Trial]]] = deque()
        """Trials that were begun, and what was known of these plans before."""
        self._misfits = 0
        self._refused = Counter(self._space.refused)

    @set_aside()
    def run(self, on_progress: Callable[[Progress], None] | None) -> PlanSearch:
        """Take plans through the tiers until the fastest are known."""
        self._take_first_answer()
        while not self._is_close:
            self._start_trials()
            if len(self._found) == self._top or not self._under_way:
                break
            entry, trial = self._under_way.popleft()
            self._book(entry.plan, trial.result())
            if on_progress is not None:
                on_progress(self._progress())
        self._stop_trials()
        return self._result()

    def _take_first_answer(self) -> None:
        first = self._candidates.first
        among = [entry for entry in self._heap if entry.plan == first]
        for entry in among:
            self._heap.remove(entry)
            heapq.heapify(self._heap)
            self._book(entry.plan, self._candidates.try_plan(entry.plan, inf).result())

    @property
    def _limit_s(self) -> float:
        """Step of the slowest of as many plans as are asked for; infinite while fewer are known."""
        known_s = [trial.step_time_s for trial in self._simulated.values()]
        return inf if len(known_s) < self._top else heapq.nsmallest(self._top, known_s)[-1]

    @property
    def _best_s(self) -> float:
        """Step of the fastest plan that was fully simulated and fits [s]."""
        return min((trial.step_time_s for trial in self._simulated.values()), default=inf)

    @property
    def _gap_share(self) -> float:
        """How much shorter than the fastest known step any other can be at most, as a share."""
        least_s = min((entry.step_s for entry in self._open), default=inf)
        return 1.0 if self._best_s == inf else max(0.0, 1 - least_s / self._best_s)

    @property
    def _is_close(self) -> bool:
        """Whether what is known is enough for who does not ask for the fastest plan."""
        return self._within > 0 and self._best_s < inf and self._gap_share <= self._within

    def _result(self) -> PlanSearch:
        gap_share = self._gap_share if len(self._found) < self._top else 0.0
        if self._is_close:
            known = [entry for entry in self._heap if entry.tier is Tier.SIMULATION]
            self._found += heapq.nsmallest(self._top - len(self._found), known)
            self._heap = [entry for entry in self._heap if entry not in self._found]
        left = [entry.tier for entry in self._heap]
        choices = tuple(self._choice(entry) for entry in self._found)
        smallest = None
        if not choices and len(self._plans):
            smallest = self._candidates.smallest(self._plans)
        return PlanSearch(
            choices=choices,
            plans=len(self._plans),
            replayed=len(self._reached),
            simulated=self._simulated_count,
            pruned=Pruned(
                refused=dict(self._refused.most_common()),
                too_large=int((self._least_bytes > self._limit_bytes).sum()),
                too_large_simulated=self._misfits,
                slower_bound=left.count(Tier.BOUND),
                slower_replay=left.count(Tier.REPLAY),
                slower_simulation=left.count(Tier.STOPPED) + left.count(Tier.SIMULATION),
            ),
            smallest=smallest,
            gap_share=gap_share if choices else 0.0,
        )

    @property
    def _open(self) -> Iterator[_Entry]:
        """Plans that are not fully known."""
        yield from (entry for entry in self._heap if entry.tier is not Tier.SIMULATION)
        yield from (entry for entry, _ in self._under_way)

    def _start_trials(self) -> None:
        """Try the most promising plans that are not fully known; those that are known are found."""
        kept: list[_Entry] = []
        while (
            self._heap
            and len(self._found) < self._top
            and len(self._under_way) < self._candidates.at_a_time
        ):
            entry = heapq.heappop(self._heap)
            if entry.step_s > self._limit_s:
                kept.append(entry)  # nor can any of the others be among the fastest
                break
            if entry.tier is not Tier.SIMULATION:
                entry = self._quickest(entry)
                trial = self._candidates.try_plan(entry.plan, self._limit_s)
                self._under_way.append((entry, trial))
            elif all(entry < other for other, _ in self._under_way):
                self._found.append(entry)
            else:
                kept.append(entry)  # a plan before it may turn out faster
        for entry in kept:
            heapq.heappush(self._heap, entry)

    def _quickest(self, first: _Entry) -> _Entry:
        """Of the plans that may be about as fast as the first, the one with the fewest passes.

        The sooner a fast one is known, the sooner simulations of long ones end.
        """
        most_s = min(self._limit_s, first.step_s * (1 + _NEAR_SHARE))
        near = [
            each for each in self._heap
            if each.step_s <= most_s and each.tier is not Tier.SIMULATION
        ]  # fmt: skip
        passes = self._space.passes
        found = min([first, *near], key=lambda each: (passes[each.plan], each))
        if found is not first:
            self._heap[self._heap.index(found)] = first
            heapq.heapify(self._heap)
        return found

    def _stop_trials(self) -> None:
        """Leave alone what is no longer of interest."""
        for entry, trial in self._under_way:
            trial.cancel()
            heapq.heappush(self._heap, entry)
        self._under_way.clear()

    def _book(self, plan: int, trial: Trial) -> None:
        self._candidates.keep(plan, trial)
        self._reached[plan] = trial.tier
        if trial.refused:
            self._refused[trial.refused] += 1
            return
        if trial.tier is Tier.SIMULATION:
            if trial.peak_device_bytes > self._limit_bytes:
                self._misfits += 1
                return
            self._simulated[plan] = trial
        heapq.heappush(self._heap, _Entry(trial.least_s, plan, trial.tier))

    @property
    def _simulated_count(self) -> int:
        return sum(tier >= Tier.STOPPED for tier in self._reached.values())

    def _progress(self) -> Progress:
        best_s = self._best_s
        still_open = sum(entry.step_s < best_s for entry in self._open)
        return Progress(
            len(self._reached), self._simulated_count, still_open, best_s, self._gap_share
        )

    def _choice(self, entry: _Entry) -> PlanChoice:
        trial = self._simulated[entry.plan]
        return PlanChoice(
            changes=self._space.changes(entry.plan),
            dp=int(self._space.dp[entry.plan]),
            step_time_s=entry.step_s,
            peak_device_bytes=trial.peak_device_bytes,
            fits_probability=trial.fits_probability,
            breakdown_s=trial.breakdown_s or {},
        )
