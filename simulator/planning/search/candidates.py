"""Which plans of a space may win, and what is known of them?

All have bounds, and the few that are tried what the tiers say about them.

Where bounds of all plans take longer than people wait, a plan of a small part of the space is
simulated before: one of the fastest of that part, by its bound, that takes few passes. It is the
first answer, and no plan that is slower is simulated to its end. Where processes simulate plans,
the next best ones of that part are tried meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.planning.search.bound import plan_bounds
from simulator.planning.search.plan_costs import CostTables, KnownCosts
from simulator.planning.search.plan_trial import Tier, Trial, try_plan
from simulator.planning.search.space import Axes, PlanSpace, plan_space

_MANY_COMBINATIONS = 20_000
"""Combinations from which a first answer is sought before all plans are bounded, which then takes
half a second or more: assumption. Any number gives the same winner."""
_NEAR_SHARE = 0.1
"""How much longer than the shortest bound that of the first answer may be, as a share: assumption.
Any share gives the same winner."""
_FIRST_TRIALS = 4
"""Plans that are simulated in search of a first answer, since the first may turn out to hold too
much: assumption. Any number gives the same winner."""
_BEGUN_AT_ONCE = 2
"""Plans that each process tries while all are bounded: assumption. Any number gives the same
winner."""
_SPARE_SHARE = 0.02
"""How much more than its bound a plan is expected to hold, as a share: assumption. Those that would
be too large then are not tried first. Any share gives the same winner."""


Begun = tuple[Mapping[str, Any], Future[Trial]]
"""What gives the job a plan, and its trial under way."""


class Candidates:
    """All plans of a space with their bounds, and every trial that was ever made of them.

    Only plans that hold no more than ``most_bytes`` are looked at.

    Attributes:
        first: The plan whose trial was the first answer, if there was one.
    """

    def __init__(
        self, space: PlanSpace, most_bytes: float, executor: Executor | None, at_a_time: int,
        first: FirstAnswer | None = None, begun: Sequence[Begun] = (),
    ) -> None:  # fmt: skip
        self.space = space
        self.at_a_time = at_a_time + (executor is not None)  # one waits for the others to end
        self._tables = CostTables(space, first and first.costs)
        self.bounds = plan_bounds(space, self._tables, most_bytes=most_bytes)
        self._executor = executor
        self._known: dict[int, Trial] = {}
        self.first: int | None = None
        if first is not None:
            self.first = space.number(first.changes)
            self._known[self.first] = first.trial
        self._begun = {space.number(changes): trial for changes, trial in begun}

    def try_plan(self, plan: int, limit_s: float) -> Future[Trial]:
        """What is found of a plan; of one longer than a limit, that it is."""
        known = self._known.get(plan)
        if known is not None and (known.tier is Tier.SIMULATION or known.least_s > limit_s):
            return _done(known)
        if plan in self._begun:
            return self._begun.pop(plan)
        job = self.space.plan_job(plan)
        if self._executor is None:
            return _done(try_plan(job, limit_s))
        return self._executor.submit(try_plan, job, limit_s)

    def keep(self, plan: int, trial: Trial) -> None:
        """Know what a trial said."""
        self._known[plan] = trial

    def smallest(self, plans: NDArray[np.int64]) -> Mapping[str, Any]:
        """What gives the job that one of some plans which holds least, by its bound."""
        bounds = plan_bounds(self.space, self._tables)  # also of passes whose states are too large
        return self.space.changes(int(plans[bounds.peak_device_bytes[plans].argmin()]))


def _done(trial: Trial) -> Future[Trial]:
    """A trial of which everything is known."""
    future: Future[Trial] = Future()
    future.set_result(trial)
    return future


class FirstAnswer(NamedTuple):
    """A plan that is quick to simulate and not far from the best.

    Attributes:
        changes: What gives the job this plan.
        trial: What its simulation says.
        costs: What was computed to find it.
        space: The part that it is of.
        others: Plans of it that may be faster, the most promising first.
    """

    changes: Mapping[str, Any]
    trial: Trial
    costs: KnownCosts
    space: PlanSpace
    others: Sequence[int]

    def begin(self, executor: Executor | None, at_a_time: int) -> list[Begun]:
        """Try the most promising of the others on an executor."""
        if executor is None:
            return []
        space, limit_s = self.space, self.trial.step_time_s
        return [
            (space.changes(plan), executor.submit(try_plan, space.plan_job(plan), limit_s))
            for plan in self.others[: _BEGUN_AT_ONCE * at_a_time]
        ]


def first_answer(job: Job, axes: Axes, most_bytes: float) -> FirstAnswer | None:
    """A plan to begin with.

    Among plans with the smallest microbatch and one recomputation. None where none of them fits, or
    bounding all plans takes no longer.
    """
    if prod(map(len, axes.values())) <= _MANY_COMBINATIONS:
        return None
    part = {path: axes[path][:1] for path in ("batch.micro", "plan.recompute") if path in axes}
    if job.plan.recompute in axes.get("plan.recompute", ()):
        part["plan.recompute"] = [job.plan.recompute]
    space, costs = plan_space(job, axes, part=part), KnownCosts()
    bounds = plan_bounds(space, CostTables(space, costs), most_bytes=most_bytes)
    fitting = np.flatnonzero(bounds.peak_device_bytes * (1 + _SPARE_SHARE) <= most_bytes)
    least_s = bounds.step_time_s[fitting]
    near = fitting[least_s <= (1 + _NEAR_SHARE) * least_s.min(initial=inf)]
    quickest = near[space.passes[near].argsort(kind="stable")][:_FIRST_TRIALS]
    for plan in quickest.tolist():
        trial = try_plan(space.plan_job(plan), inf)
        if not trial.refused and trial.peak_device_bytes <= most_bytes:
            promising = fitting[least_s.argsort(kind="stable")]
            may_win = bounds.step_time_s[promising] < trial.step_time_s
            others = promising[may_win & (promising != plan)].tolist()
            return FirstAnswer(space.changes(plan), trial, costs, space, others)
    return None
