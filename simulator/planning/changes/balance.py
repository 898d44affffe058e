"""Which layout of layers over pipeline stages shortens the step?

The slowest stage sets the pace of a pipeline, and embedding and head make the ends slower
than the rest. So layers are first assigned such that the largest forward plus backward
time of one microbatch on a virtual stage is as small as can be. The dynamic programme is exact
for that objective, which leaves out transfers, filling and draining, and data parallelism. So the
step is simulated and compared with the even layout's, and single layers are then moved for as long
as that shortens it. The result is never worse than the even layout; that no other layout is faster
still is proven for the objective only.

Source: pipeline planning by dynamic programming over contiguous runs, PipeDream (arXiv
1806.03377, section 3.1), here without replication of stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise, permutations
from math import inf
from operator import add

from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import InputError
from simulator.program.grid.stage_layers import Slice, runs_of_counts, stage_slices
from simulator.program.ir import total_bytes
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.resident import resident_memory, slice_parameters
from simulator.results.simulation import StepTimes, run_step
from simulator.results.step import StepResult
from simulator.schedule.slots import Phase

_REPLACED = {
    "first_stage_layers": 0,
    "last_stage_layers": 0,
    "account_for_embedding": False,
    "account_for_loss": False,
}
"""Fields of a plan that a layout replaces, with the values that say nothing."""

_MOST_MOVES = 32
_FEW_MOVES = 8
"""Layouts that are simulated to improve the first one, in full and in a quick search."""

RunCost = Callable[[int, Slice], float]
"""(virtual stage, its run) -> seconds; infinite where the stage cannot hold the run."""


@dataclass(frozen=True)
class Balance:
    """The best layout that was found, and the even one.

    Attributes:
        layout: Layers of each virtual stage, for ``plan.layout``; the even layout where
            nothing that was tried is better.
        even_layout: Layers of each virtual stage as the plan divides them without
            ``plan.layout``.
        step_time_s, even_step_time_s: Their simulated steps, without contention [s].
        fits, even_fits: Whether their fullest rank stays within its device's memory.
        tried: Layouts that were simulated, the even one included.
        changes: New values by dotted path, ready for :meth:`Job.replace`, of the layout
            and of the fields that it takes the place of; empty where even is best.
    """

    layout: tuple[int, ...]
    even_layout: tuple[int, ...]
    step_time_s: float
    even_step_time_s: float
    fits: bool
    even_fits: bool
    tried: int
    changes: Mapping[str, object]

    @property
    def is_even(self) -> bool:
        """Whether nothing that was tried is better than the even layout."""
        return self.layout == self.even_layout

    @property
    def saved_share(self) -> float:
        """Share of the even layout's step that is saved; negative where only this one fits."""
        return 1 - self.step_time_s / self.even_step_time_s


def balance(job: Job, *, is_quick: bool = False) -> Balance:
    """The fastest layout of layers over virtual stages that was found.

    Layouts that fit into memory go before those that do not; where the fastest does not fit, the
    best within memory is tried too. Steps are replayed without contention.

    Args:
        job: Its ``plan.layout``, if it has one, is ignored.
        is_quick: Whether to simulate few layouts.

    Raises:
        InputError: The plan has no pipeline, or the even layout cannot run.
    """
    refuse_pools(job, "the best layout")
    if job.plan.pp == 1:
        rule = "must be 2 or more: a single stage holds every layer"
        raise InputError.single("plan.pp", rule, job.plan.pp, "set for example plan.pp: 2")
    search = _Search(job.replace({"plan.layout": None}))
    search.start()
    if not is_quick:
        search.improve(_MOST_MOVES)
    elif search.best is not search.even:
        search.improve(_FEW_MOVES)
    best = search.best
    return Balance(
        layout=best.layout,
        even_layout=search.even.layout,
        step_time_s=best.step_time_s,
        even_step_time_s=search.even.step_time_s,
        fits=best.fits,
        even_fits=search.even.fits,
        tried=len(search.trials),
        changes={} if best is search.even else search.changes(best.layout),
    )


def simulated_in_full(found: Balance, job: Job) -> Balance:
    """The same with the steps of the discrete-event simulation, which ``clustersim run`` shows.

    Where contention takes back what the layout gains, the even one is best after all.
    """
    even = run_step(job.replace({"plan.layout": None}))
    best = even if found.is_even else run_step(job.replace(found.changes))
    if best.step_time_s > even.step_time_s and (even.fits or not best.fits):
        best, found = even, replace(found, layout=found.even_layout, changes={})
    return replace(
        found,
        step_time_s=best.step_time_s,
        even_step_time_s=even.step_time_s,
        fits=best.fits,
        even_fits=even.fits,
    )


@dataclass(frozen=True)
class _Trial:
    """A layout and its step; whether that fits takes most of the time, and is seldom asked."""

    layout: tuple[int, ...]
    step_time_s: float
    job: Job
    known: StepResult | None = None

    @cached_property
    def fits(self) -> bool:
        return (self.known or run_step(self.job, "replay")).fits

    def beats(self, other: _Trial) -> bool:
        """Whether it fits and the other does not, or else is faster."""
        if other.fits and self.step_time_s >= other.step_time_s:
            return False
        return (not self.fits, self.step_time_s) < (not other.fits, other.step_time_s)


class _Search:
    """Simulates layouts of one job, each once, the even one first."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stages = job.plan.pp * job.plan.vpp
        step = run_step(job, "replay")
        even = tuple(run.end - run.first for run in stage_slices(job, self._stages))
        self._costs = _Costs(job, step)
        self.even = self.best = _Trial(even, step.step_time_s, job, step)
        self.trials = {even: self.even}

    @cached_property
    def _times(self) -> StepTimes:
        return StepTimes(self._job, "replay")

    def start(self) -> None:
        """Try what is best for the objective: the layout whose slowest stage is fastest."""
        layers, stages = self._job.model.layers, self._stages
        even_s = self._bottleneck_s(self.even.layout)[0]
        # The even layout bounds the best one, but not the best one that has room.
        for cost, most in ((self._costs.seconds, even_s), (self._costs.seconds_within_memory, inf)):
            layout = least_bottleneck(layers, stages, cost, most)
            if layout is not None and self._try(layout).fits:
                return

    def improve(self, most_moves: int) -> None:
        """Move single layers for as long as that helps, the most promising moves first."""
        most = len(self.trials) + most_moves
        improves = True
        while improves:
            before = self.best
            moves = sorted(_moves(before.layout), key=self._bottleneck_s)
            for layout in (layout for layout in moves if layout not in self.trials):
                if len(self.trials) == most:
                    return
                if self._try(layout) is self.best:
                    break
            improves = self.best is not before

    def changes(self, layout: tuple[int, ...]) -> dict[str, object]:
        """What gives the job that layout."""
        plan = self._job.plan
        replaced = {
            f"plan.{field}": nothing
            for field, nothing in _REPLACED.items()
            if getattr(plan, field) != nothing
        }
        return {**replaced, "plan.layout": list(layout)}

    def _try(self, layout: tuple[int, ...]) -> _Trial:
        if layout not in self.trials:
            job = self._job.replace(self.changes(layout))
            self.trials[layout] = trial = _Trial(layout, self._times.of(job), job)
            if trial.beats(self.best):
                self.best = trial
        return self.trials[layout]

    def _bottleneck_s(self, layout: tuple[int, ...]) -> tuple[float, float]:
        """Time of the slowest stage, and then how much the times differ."""
        seconds = [
            self._costs.seconds(stage, run) for stage, run in enumerate(runs_of_counts(layout))
        ]
        return max(seconds), math.fsum(time_s**2 for time_s in seconds)


def _moves(layout: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every layout in which one layer is on another stage; only the ends may be empty."""
    last = len(layout) - 1
    for source, target in permutations(range(len(layout)), 2):
        if layout[source] > (0 if source in (0, last) else 1):
            moved = list(layout)
            moved[source] -= 1
            moved[target] += 1
            yield tuple(moved)


def better_layout(job: Job) -> tuple[str, Mapping[str, object]] | None:
    """Another layout that few trials found to be best, in words, and what gives it to the job.

    None where the job has it, has no pipeline, or cannot be balanced.
    """
    if job.plan.pp == 1 or job.cluster.pools:
        return None
    try:
        found = balance(job, is_quick=True)
    except InputError:
        return None
    own = job.plan.layout
    if found.layout == (found.even_layout if own is None else tuple(own)):
        return None
    stages = "stages" if job.plan.vpp == 1 else "virtual stages"
    words = f"giving {layout_text(found.layout)} layers to the {stages}"
    return words, found.changes or {"plan.layout": None}


def layout_text(layout: Sequence[int]) -> str:
    """Layers per stage with equal neighbours counted (``7, 14 x 8, 7``)."""
    runs = [(layers, len(list(group))) for layers, group in groupby(layout)]
    return ", ".join(f"{times} x {layers}" if times > 1 else str(layers) for layers, times in runs)


def least_bottleneck(
    layers: int, stages: int, cost: RunCost, most: float = inf
) -> tuple[int, ...] | None:
    """Layers of each stage such that the most expensive stage costs least.

    Of several such layouts, one with the smallest sum of squared costs. Every stage holds
    at least one layer, but the first may hold the embedding alone, and the last the head.
    None where no layout has a finite cost, or none costs as little as ``most``.

    Args:
        layers: Layers to deal out.
        stages: Stages, >= 2.
        cost: Cost of a run of layers on a stage; more layers never cost less.
        most: Runs that cost more need not be looked at.
    """
    table = _cost_table(layers, stages, cost, most)
    first = _deal(table, layers, max)
    if first is None:
        return None
    runs = pairwise((0, *accumulate(first)))
    least = max(costs[run] for costs, run in zip(table, runs, strict=True))
    squares = [
        {run: seconds**2 for run, seconds in costs.items() if seconds <= least} for costs in table
    ]
    return _deal(squares, layers, add)


_Run = tuple[int, int]
"""First layer and end of a run."""


def _cost_table(layers: int, stages: int, cost: RunCost, most: float) -> list[dict[_Run, float]]:
    """Cost of every run that a stage can hold, one table per stage."""
    table: list[dict[_Run, float]] = []
    last = stages - 1
    for stage in range(stages):
        firsts = [0] if stage == 0 else range(layers + 1)
        costs: dict[_Run, float] = {}
        for first in firsts:
            least = first if stage in (0, last) else first + 1
            for end in [layers] if stage == last else range(least, layers + 1):
                run = Slice(
                    first,
                    end,
                    has_embedding=stage == 0,
                    has_head=stage == last,
                    has_loss=stage == last,
                )
                seconds = cost(stage, run)
                if seconds > most or seconds == inf:
                    break
                costs[first, end] = seconds
        table.append(costs)
    return table


def _deal(
    table: list[dict[_Run, float]], layers: int, join: Callable[[float, float], float]
) -> tuple[int, ...] | None:
    """Layers of each stage with the smallest joined cost; None where there are none.

    ``join`` gives the cost of a layout from that of its first stages and that of the next.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for costs in table:
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for (first, end), seconds in costs.items():
            if first not in best:
                continue
            total, counts = best[first]
            joined = join(total, seconds)
            if end not in longer or joined < longer[end][0]:
                longer[end] = joined, (*counts, end - first)
        best = longer
    return best[layers][1] if layers in best else None


class _Costs:
    """Time and memory of runs of layers on the stages of one job."""

    def __init__(self, job: Job, step: StepResult) -> None:
        self._job = job
        self._costs = StageCosts(job)
        self._seconds: dict[Slice, float] = {}
        self._held: dict[Slice, tuple[float, float, float]] = {}
        self._schedule = job.choices.schedule
        self._most_bytes = _allocatable_bytes(step)

    def seconds(self, stage: int, run: Slice) -> float:
        """Forward plus backward of one microbatch [s]."""
        del stage
        if run not in self._seconds:
            phases = (Phase.FORWARD, Phase.BACKWARD)
            self._seconds[run] = math.fsum(self._costs.work(run, phase).seconds for phase in phases)
        return self._seconds[run]

    def seconds_within_memory(self, stage: int, run: Slice) -> float:
        """The same, infinite where a rank whose every chunk is such a run has no room."""
        return self.seconds(stage, run) if self._bytes(stage, run) <= self._most_bytes else inf

    def _bytes(self, stage: int, run: Slice) -> float:
        plan = self._job.plan
        rank = self._schedule.placement.rank(stage, plan.pp)
        in_flight = self._schedule.in_flight(rank, plan.pp, plan.vpp, self._job.microbatches)
        resident, saved, working = self._held_bytes(run)
        return plan.vpp * resident + in_flight * saved + working

    def _held_bytes(self, run: Slice) -> tuple[float, float, float]:
        """Bytes kept from step to step, per microbatch in flight, and while a pass works [B]."""
        if run not in self._held:
            copied = self._job.choices.copies_embedding
            parameters = slice_parameters(self._job, run, tied_copy=copied)
            self._held[run] = (
                total_bytes(resident_memory(self._job, parameters)),
                total_bytes(self._costs.saved(run)),
                self._costs.working_bytes(run),
            )
        return self._held[run]


def _allocatable_bytes(step: StepResult) -> float:
    """What tensors may take of a device, after its context and what the allocator wastes [B]."""
    fullest = step.fullest
    context = fullest.peak_device_bytes - fullest.peak_reserved_bytes
    wasted = fullest.peak_reserved_bytes / fullest.peak_allocated_bytes
    return (step.capacity_bytes - context) / wasted
