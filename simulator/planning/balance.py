"""Which layout of layers over pipeline stages shortens the step?

The slowest stage sets the pace of a pipeline, and embedding and head make the ends slower
than the rest. So layers are dealt out such that the largest forward plus backward time of
one microbatch is as small as can be: of a rank where each holds one run of layers, of a
virtual stage where it holds several (``plan.vpp``), because with those the schedule
decides which of them coincide. Among layouts with the same largest time, the one whose
times differ least is taken. The dynamic programme is exact for that objective; what the
objective leaves out (transfers, filling and draining, data parallelism) is decided by
simulating the step, next to that of the even layout.

Source: pipeline planning by dynamic programming over contiguous runs, PipeDream (arXiv
1806.03377, section 3.1), here without replication of stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from operator import add
from typing import NamedTuple

from simulator.errors import InputError
from simulator.program.build import job_schedule
from simulator.program.ir import Memory
from simulator.program.layout import Slice, stage_slices
from simulator.program.stage import StageCosts
from simulator.program.states import copies_embedding, resident_memory, slice_parameters
from simulator.results.run import run_step
from simulator.results.step import ClassMemory, StepResult
from simulator.schedule.slots import Phase
from simulator.spec.job import Job

_NO_LAYOUT = {
    "plan.layout": None,
    "plan.first_stage_layers": 0,
    "plan.last_stage_layers": 0,
    "plan.account_for_embedding": False,
    "plan.account_for_loss": False,
}
"""What makes a plan deal its layers out evenly."""

_TIE = 1e-9
"""Sums that differ by less than this share are equal: the order of adding makes that much."""

RunCost = Callable[[int, Slice], float]
"""(virtual stage, its run) -> seconds; infinite where the stage cannot hold the run."""


@dataclass(frozen=True)
class Balance:
    """The best layout that was found, beside the even one.

    Attributes:
        layout: Layers of each virtual stage, for ``plan.layout``; the even layout where
            nothing that was tried is better.
        even_layout: Layers of each virtual stage as dealt out evenly.
        step_time_s, even_step_time_s: Their simulated steps, without contention [s].
        fits, even_fits: Whether their fullest rank stays within its device's memory.
        tried: Layouts that were simulated, the even one included.
    """

    layout: tuple[int, ...]
    even_layout: tuple[int, ...]
    step_time_s: float
    even_step_time_s: float
    fits: bool
    even_fits: bool
    tried: int

    @property
    def saved_share(self) -> float:
        """Share of the even layout's step that is saved; negative where only this one fits."""
        return 1 - self.step_time_s / self.even_step_time_s


def balance(job: Job) -> Balance:
    """The fastest of the even layout and those whose slowest stage is fastest.

    Layouts that fit into memory go before those that do not. Where none of the latter
    fits, the best within memory are tried too; that bounds the activations of a rank by
    what its schedule may keep in flight. Layout fields that the plan has are left aside.
    Steps are replayed without contention.

    Raises:
        InputError: The plan has no pipeline, or the even layout cannot run.
    """
    if job.plan.pp == 1:
        rule = "must be 2 or more to balance stages: one stage holds every layer"
        raise InputError.single("plan.pp", rule, job.plan.pp, "take for example plan.pp: 2")
    search = _Search(job.replace(_NO_LAYOUT))
    for cost in (search.costs.seconds, search.costs.seconds_within_memory):
        layouts = least_bottlenecks(job.model.layers, search.stages, cost)
        if any([search.trial(layout).fits for layout in layouts]):
            break
    best = min(search.trials.values(), key=lambda trial: (not trial.fits, trial.step_time_s))
    return Balance(
        layout=best.layout,
        even_layout=search.even.layout,
        step_time_s=best.step_time_s,
        even_step_time_s=search.even.step_time_s,
        fits=best.fits,
        even_fits=search.even.fits,
        tried=len(search.trials),
    )


class _Trial(NamedTuple):
    """A simulated layout."""

    layout: tuple[int, ...]
    step_time_s: float
    fits: bool


class _Search:
    """Simulates layouts of one job, each once, the even one first."""

    def __init__(self, job: Job) -> None:
        self.stages = job.plan.pp * job.plan.vpp
        even = tuple(run.end - run.first for run in stage_slices(job, self.stages))
        step = run_step(job, "replay")
        self.even = _trial(even, step)
        self.trials = {even: self.even}
        self.costs = _Costs(job, step)
        self._job = job

    def trial(self, layout: tuple[int, ...]) -> _Trial:
        """The step with that layout."""
        if layout not in self.trials:
            step = run_step(self._job.replace({"plan.layout": list(layout)}), "replay")
            self.trials[layout] = _trial(layout, step)
        return self.trials[layout]


def _trial(layout: tuple[int, ...], step: StepResult) -> _Trial:
    peak_bytes = max(memory.peak_device_bytes for memory in step.memory)
    return _Trial(layout, step.step_time_s, peak_bytes <= step.capacity_bytes)


def least_bottlenecks(layers: int, stages: int, cost: RunCost) -> list[tuple[int, ...]]:
    """Layers of each stage such that the most expensive stage costs least.

    Of all such layouts, those with the smallest sum of squared costs; of these the one with
    its layers as far back as can be and the one with them as far to the front, which may be
    the same. Every stage holds at least one layer, but the first may hold the embedding
    alone, and the last the head. Empty where no layout has a finite cost.

    Args:
        layers: Layers to deal out.
        stages: Stages, >= 2.
        cost: Cost of a run of layers on a stage.
    """
    table = _cost_table(layers, stages, cost)
    first = _deal(table, layers, max)
    if first is None:
        return []
    runs = pairwise((0, *accumulate(first)))
    most = max(costs[run] for costs, run in zip(table, runs, strict=True))
    squares = [
        {run: seconds**2 for run, seconds in costs.items() if seconds <= most} for costs in table
    ]
    mirrored = [dict(reversed(costs.items())) for costs in squares]
    layouts = [_deal(costs, layers, add) for costs in (squares, mirrored)]
    return list(dict.fromkeys(layout for layout in layouts if layout is not None))


_Run = tuple[int, int]
"""First layer and end of a run."""


def _cost_table(layers: int, stages: int, cost: RunCost) -> list[dict[_Run, float]]:
    """Cost of every run that a stage can hold, one table per stage."""
    table: list[dict[_Run, float]] = []
    last = stages - 1
    for stage in range(stages):
        firsts = [0] if stage == 0 else range(layers + 1)
        costs: dict[_Run, float] = {}
        for first in firsts:
            least = first if stage in (0, last) else first + 1
            for end in [layers] if stage == last else range(least, layers + 1):
                run = Slice(first, end, has_embedding=stage == 0, has_head=stage == last)
                seconds = cost(stage, run)
                if seconds < inf:
                    costs[first, end] = seconds
        table.append(costs)
    return table


def _deal(
    table: list[dict[_Run, float]], layers: int, join: Callable[[float, float], float]
) -> tuple[int, ...] | None:
    """Layers of each stage with the smallest joined cost; None where there are none.

    Args:
        table: Cost of each run that a stage can hold, per stage; of equal runs the first wins.
        layers: Layers to deal out.
        join: Cost of a layout from that of its first stages and that of the next.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for costs in table:
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for (first, end), seconds in costs.items():
            if first not in best:
                continue
            total, counts = best[first]
            joined = join(total, seconds)
            if end not in longer or joined < longer[end][0] * (1 - _TIE):
                longer[end] = joined, (*counts, end - first)
        best = longer
    return best[layers][1] if layers in best else None


class _Costs:
    """Time and memory of runs of layers on the stages of one job."""

    def __init__(self, job: Job, step: StepResult) -> None:
        self._job = job
        self._costs = StageCosts(job)
        self._seconds: dict[Slice, float] = {}
        self._schedule = job_schedule(job)
        self._most_bytes = _allocatable_bytes(step)

    def seconds(self, stage: int, run: Slice) -> float:
        """Forward plus backward of one microbatch [s]."""
        del stage
        if run not in self._seconds:
            phases = (Phase.FORWARD, Phase.BACKWARD)
            self._seconds[run] = sum(self._costs.work(run, phase).seconds for phase in phases)
        return self._seconds[run]

    def seconds_within_memory(self, stage: int, run: Slice) -> float:
        """The same, infinite where a rank whose every chunk is such a run has no room."""
        return self.seconds(stage, run) if self._bytes(stage, run) <= self._most_bytes else inf

    def _bytes(self, stage: int, run: Slice) -> float:
        job, plan, costs = self._job, self._job.plan, self._costs
        rank = self._schedule.placement.rank(stage, plan.pp)
        in_flight = self._schedule.in_flight(rank, plan.pp, plan.vpp, job.microbatches)
        parameters = slice_parameters(job, run, tied_copy=copies_embedding(job))
        held = plan.vpp * _total(resident_memory(job, parameters))
        return held + in_flight * _total(costs.saved(run)) + _total(costs.working(run))


def _total(memory: Memory) -> float:
    return sum(num_bytes for _, num_bytes in memory)


def _allocatable_bytes(step: StepResult) -> float:
    """What tensors may take of a device, after its context and what the allocator wastes [B]."""
    fullest: ClassMemory = max(step.memory, key=lambda memory: memory.peak_device_bytes)
    context = fullest.peak_device_bytes - fullest.peak_reserved_bytes
    wasted = fullest.peak_reserved_bytes / fullest.peak_allocated_bytes
    return (step.capacity_bytes - context) / wasted
