"""What does the simulator say of the numbers that a real run gives?

A measured phase lasts from where the rank begins it to where it ends it, whatever it waits
for in between: gathers of weights and exchanges of activations belong to the pass that needs
them, reductions of gradients that outlast backward to backward, where DDP and FSDP2 wait
for them. Pipelines measure the passes, and the optimizer, which begins with the gradient norm
over all ranks and so waits for the last of them; the rest of the step is waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.engine.des import simulate_program
from simulator.engine.timeline import STREAMS, Timeline
from simulator.program.build import build_program, steps_around
from simulator.program.ir import (
    COMMUNICATION,
    Category,
    Kind,
    Operation,
    Owner,
    Part,
    Program,
    Stream,
    Work,
)
from simulator.program.run.host_copies import HOST_UPDATE
from simulator.results.simulation import run_step
from simulator.results.step import ClassMemory, StepResult
from simulator.results.summary import summarise

WAITING = "waiting"
BACKWARD_SLEEP = 2.0
"""Time of a sleeping layer's backward over its forward's, as products have it."""

_PASSES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward",
    Kind.BACKWARD_WEIGHT: "backward",
    Kind.OPTIMIZER: "optimizer",
}
_COMPUTED = (
    Category.FORWARD,
    Category.BACKWARD,
    Category.RECOMPUTE,
    Category.OPTIMIZER,
    Category.HOST,
)
_KEPT = {
    "weights": (Owner.WEIGHTS, Owner.MASTER_WEIGHTS, Owner.STASHED_WEIGHTS),
    "optimizer_states": (Owner.OPTIMIZER_STATES,),
}

Row = tuple[Operation, float, float]

_SILENT = COMMUNICATION - {Category.OFFLOAD}


@dataclass(frozen=True)
class Predicted:
    """The numbers of a job that a real run gives, too.

    Attributes:
        step_s: Step time [s].
        phases_s: Time of each phase of a pipeline stage [s], by stage.
        memory_bytes: Peak and what is kept of a pipeline stage [B], by stage.
        result: The whole step.
    """

    step_s: float
    phases_s: Mapping[int, Mapping[str, float]]
    memory_bytes: Mapping[int, Mapping[str, float]]
    result: StepResult


def predict(job: Job, *, alone: int | None = None, layer_sleep_s: float | None = None) -> Predicted:
    """Simulate one step of the job.

    Args:
        job: As torch runs it.
        alone: The pipeline stage of a rank that runs without the others: only what it
            computes takes time then, and what it copies to its host and does there.
        layer_sleep_s: How long each layer sleeps in forward [s], instead of computing where it
            exchanges nothing.
    """
    refuse_pools(job, "a comparison with a real run")
    offloads_alone = alone is not None and job.plan.offload.is_used
    if offloads_alone:
        job = alone_on_its_node(job)
    if offloads_alone or layer_sleep_s is not None:
        result = _changed_step(job, layer_sleep_s, is_silent=offloads_alone)
    else:
        result = run_step(job)
    classes = result.timeline.program.classes
    pipelined = job.plan.pp > 1
    if alone is None or offloads_alone:
        step_s = result.step_time_s
        phases = {
            rank_class.stage: class_phases_s(result.timeline, index, pipelined=pipelined)
            for index, rank_class in enumerate(classes)
        }
    else:
        own = next(i for i, rank_class in enumerate(classes) if rank_class.stage == alone)
        computed = result.class_breakdown_s[own]
        step_s = math.fsum(computed.get(category, 0.0) for category in _COMPUTED)
        phases = {alone: _computed_phases_s(result.timeline, own)}
    memory = {each.stage: _memory_bytes(each) for each in result.memory}
    return Predicted(step_s, phases, memory, result)


def exchanges_activations(job: Job) -> bool:
    """Whether layers take part in exchanges, for which even sleeping ones have to compute."""
    return any(degree > 1 for degree in (job.choices.tensor_ranks, job.plan.cp, job.plan.ep))


def _changed_step(job: Job, layer_sleep_s: float | None, *, is_silent: bool) -> StepResult:
    steps = steps_around(job)
    program = build_program(job, steps=steps.total)
    if layer_sleep_s is not None:
        _put_to_sleep(program, layer_sleep_s, computes=exchanges_activations(job))
    if is_silent:
        silence(program)
    return summarise(job, simulate_program(program), steps)


def _put_to_sleep(program: Program, layer_sleep_s: float, *, computes: bool) -> None:
    """Passes take what their layers sleep, and what they compute and exchange where they do.

    Of layers that only sleep, embedding, head and loss are taken to need no time.
    """
    sleeps = {Kind.FORWARD: layer_sleep_s, Kind.BACKWARD: BACKWARD_SLEEP * layer_sleep_s}
    for operation in program.operations:
        if operation.kind in sleeps:
            first, end = operation.layers
            seconds = (end - first) * sleeps[operation.kind]
            sleep = Part("sleep", operation.category, seconds)
            work = operation.work if computes else Work(0.0, ())
            operation.work = replace(
                work, seconds=work.seconds + seconds, parts=(*work.parts, sleep)
            )


def class_phases_s(timeline: Timeline, index: int, *, pipelined: bool) -> dict[str, float]:
    """Time of each phase of one rank class, gaps included [s]."""
    phases = dict.fromkeys(("forward", "backward", "optimizer", WAITING), 0.0)
    rows = _compute_rows(timeline, index)
    before_s = 0.0
    for place, (operation, start_s, end_s) in enumerate(rows):
        name = _phase_of(operation) or _next_phase(rows[place:])
        gap_s, before_s = max(0.0, start_s - before_s), max(before_s, end_s)
        if pipelined:
            phases["optimizer" if name == "optimizer" else WAITING] += gap_s
        else:
            phases["backward" if name == "optimizer" else name] += gap_s
        phases[name] += end_s - start_s
    phases[WAITING if pipelined else "optimizer"] += max(0.0, timeline.step_time_s - before_s)
    if not pipelined:
        phases.pop(WAITING)
    return phases


def _computed_phases_s(timeline: Timeline, index: int) -> dict[str, float]:
    """The same without gaps and without communication."""
    phases = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
    for operation, start_s, end_s in _compute_rows(timeline, index):
        name = _PASSES.get(operation.kind)
        if name is not None:
            parts = operation.work.parts
            communicated = math.fsum(p.seconds for p in parts if p.category not in _COMPUTED)
            phases[name] += max(0.0, end_s - start_s - communicated)
    return phases


def _compute_rows(timeline: Timeline, index: int) -> list[Row]:
    streams = [STREAMS.index(Stream.COMPUTE), STREAMS.index(Stream.HOST)]
    rows = np.flatnonzero((timeline.rank_class == index) & np.isin(timeline.stream, streams))
    start_s, end_s, operations = timeline.start_s, timeline.end_s, timeline.operations
    return sorted(
        (
            (operations[row], float(start_s[row]), float(end_s[row]))
            for row in rows
            if timeline.stream[row] == streams[0] or _updates_on_host(operations[row])
        ),
        key=lambda row: (row[1], row[2]),
    )


def _updates_on_host(operation: Operation) -> bool:
    """Whether the CPUs run the optimizer; adding gradients up belongs to backward."""
    return any(part.name == HOST_UPDATE for part in operation.work.parts)


def _phase_of(operation: Operation) -> str | None:
    """The phase of a computation, or of communication that is in no doubt; else None."""
    if operation.kind in _PASSES:
        return _PASSES[operation.kind]
    if operation.kind is Kind.SEND_RECV:
        return WAITING
    if operation.category is Category.OPTIMIZER or operation.kind is Kind.BROADCAST:
        return "optimizer"
    return None if operation.kind is Kind.ALL_GATHER else "backward"


def _next_phase(rows: list[Row]) -> str:
    """A gather belongs to what needs it."""
    found = (_PASSES.get(operation.kind) for operation, _, _ in rows)
    return next((phase for phase in found if phase is not None), "optimizer")


def _memory_bytes(memory: ClassMemory) -> dict[str, float]:
    kept = {
        name: math.fsum(float(memory.by_owner.get(owner, 0.0)) for owner in owners)
        for name, owners in _KEPT.items()
    }
    return {
        "peak_allocated": memory.peak_allocated_bytes,
        "peak_reserved": memory.peak_reserved_bytes,
        **kept,
    }


def alone_on_its_node(job: Job) -> Job:
    """The job with one rank per node, which has all of its host."""
    return job.replace({"cluster.network.gpus_per_node": 1})


def silence(program: Program) -> None:
    """Exchanges between ranks take no time and load no links; all else stays."""
    for operation in program.operations:
        work = operation.work
        kept = tuple(part for part in work.parts if part.category not in _SILENT)
        if len(kept) < len(work.parts):
            seconds = math.fsum(part.seconds for part in kept)
            operation.work = replace(
                work, seconds=seconds, parts=kept, traffic=None, collectives=()
            )
