"""Which small program, timeline and step can a test work with by eye?

Programs with given unit times, replayed without contention, so that tests of plots, exporters
and results need no costs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from simulator.described.cluster.hardware import Device
from simulator.described.load import load_profile
from simulator.engine.replay import replay
from simulator.engine.timeline import Timeline
from simulator.program.ir import (
    COMMUNICATION,
    Category,
    Kind,
    Lane,
    Operation,
    Owner,
    Part,
    Program,
    RankClass,
    Stream,
    Work,
)
from simulator.results.fit_probability import MemorySpread
from simulator.results.step import ClassMemory, StepResult
from simulator.results.waits import class_breakdowns, compute_waits, mean_over_ranks

GIB = 1024.0**3
ACTIVATION_BYTES = 1 * GIB
LOGITS_BYTES = 2 * GIB
TEMPORARY_BYTES = 0.5 * GIB
RESIDENT = (
    (Owner.WEIGHTS, 8 * GIB),
    (Owner.GRADIENTS, 8 * GIB),
    (Owner.MASTER_WEIGHTS, 4 * GIB),
    (Owner.OPTIMIZER_STATES, 12 * GIB),
)

_Key = tuple[Kind, int, int, int]
"""A unit of work: (kind, stage, microbatch, chunk)."""


def device_of(sm_count: int) -> Device:
    """A GPU of so many multiprocessors whose memory is never busy."""
    quick = {"sm_count": sm_count, "memory_bandwidth_bytes_per_s": math.inf}
    return load_profile("h100-sxm-80gb").device.model_copy(update=quick)


@dataclass(frozen=True)
class Pipeline:
    """1F1B, interleaved where ``chunks`` is above one (Megatron-LM's order).

    All times are those of one chunk of one stage [s]; a time of zero leaves the
    operation out, recompute and tensor parallelism are parts of the compute operations.
    """

    stages: int = 4
    microbatches: int = 8
    chunks: int = 1
    forward_s: float = 1.0
    backward_s: float = 2.0
    recompute_s: float = 0.0
    tensor_parallel_s: float = 0.0
    transfer_s: float = 0.0
    gradient_s: float = 0.0
    gather_s: float = 0.0
    optimizer_s: float = 0.0
    split_backward: bool = False
    ranks_per_stage: int = 8

    def program(self) -> Program:
        """What each stage does."""
        return _Builder(self).build()

    def timeline(self) -> Timeline:
        """When it happens without contention."""
        return replay(self.program())

    def result(self) -> StepResult:
        """The step with all its metrics."""
        return step_result(self.timeline())


class _Builder:
    def __init__(self, plan: Pipeline) -> None:
        self.plan = plan
        self.program = Program(
            classes=tuple(
                RankClass(
                    name=f"stage {stage}",
                    stage=stage,
                    count=plan.ranks_per_stage,
                    first_rank=stage * plan.ranks_per_stage,
                    resident=RESIDENT,
                )
                for stage in range(plan.stages)
            )
        )
        self.ids: dict[_Key, int] = {}

    def build(self) -> Program:
        for stage in range(self.plan.stages):
            for key in self._order(stage):
                self.ids[key] = self.program.add(self._compute(key))
        for key in list(self.ids):
            self._connect(key)
        for stage in range(self.plan.stages):
            self._finish(stage)
        return self.program

    def _order(self, stage: int) -> list[_Key]:
        p, m, v = self.plan.stages, self.plan.microbatches, self.plan.chunks
        forwards = [(stage, *self._unit(k, reverse=False)) for k in range(m * v)]
        backwards = [(stage, *self._unit(k, reverse=True)) for k in range(m * v)]
        ahead = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
        order: list[_Key] = [(Kind.FORWARD, *unit) for unit in forwards[:ahead]]
        for k, unit in enumerate(backwards):
            if ahead + k < m * v:
                order.append((Kind.FORWARD, *forwards[ahead + k]))
            order += [(kind, *unit) for kind in self._backward_kinds()]
        return order

    def _unit(self, k: int, *, reverse: bool) -> tuple[int, int]:
        p, v = self.plan.stages, self.plan.chunks
        if v == 1:
            return k, 0
        chunk = k // p % v
        return k // (p * v) * p + k % p, v - 1 - chunk if reverse else chunk

    def _backward_kinds(self) -> tuple[Kind, ...]:
        if self.plan.split_backward:
            return (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        return (Kind.BACKWARD,)

    def _compute(self, key: _Key) -> Operation:
        kind, stage, microbatch, chunk = key
        is_forward = kind is Kind.FORWARD
        is_last = stage == self.plan.stages - 1 and chunk == self.plan.chunks - 1
        kept = [(Owner.ACTIVATIONS, ACTIVATION_BYTES)]
        if is_last:
            kept.append((Owner.LOGITS, LOGITS_BYTES))
        ends = kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
        return Operation(
            kind,
            ((stage, Stream.COMPUTE),),
            self._work(kind),
            Category.FORWARD if is_forward else Category.BACKWARD,
            microbatch=microbatch,
            chunk=chunk,
            layers=(stage + chunk * self.plan.stages, stage + chunk * self.plan.stages + 1),
            takes=tuple(kept) if is_forward else (),
            gives=tuple(kept) if ends else (),
            holds=((Owner.TEMPORARIES, TEMPORARY_BYTES),),
        )

    def _work(self, kind: Kind) -> Work:
        plan = self.plan
        category = Category.FORWARD if kind is Kind.FORWARD else Category.BACKWARD
        seconds = plan.forward_s if kind is Kind.FORWARD else plan.backward_s
        if plan.split_backward and kind is not Kind.FORWARD:
            seconds /= 2
        parts = [Part("matmul", category, seconds, repeats=4)]
        if kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and plan.recompute_s:
            parts.insert(0, Part("recompute", Category.RECOMPUTE, plan.recompute_s))
        if kind is not Kind.BACKWARD_WEIGHT and plan.tensor_parallel_s:
            comm = plan.tensor_parallel_s
            parts.append(Part("reduce_scatter", Category.TENSOR_PARALLEL, comm, repeats=2))
        return Work(sum(p.seconds for p in parts), tuple(parts), flop=seconds * 1e12)

    def _connect(self, key: _Key) -> None:
        """What a unit waits for: the unit before it in the model, through a transfer."""
        kind, stage, microbatch, chunk = key
        last = self.plan.stages * self.plan.chunks - 1
        depth = chunk * self.plan.stages + stage
        backward = self._backward_kinds()[0]
        if kind is Kind.FORWARD and depth < last:
            self._transfer(key, (kind, *self._place(depth + 1, microbatch)), forwards=True)
        elif kind is Kind.FORWARD:
            self._order_after((backward, stage, microbatch, chunk), self.ids[key])
        elif kind is backward and depth > 0:
            self._transfer(key, (kind, *self._place(depth - 1, microbatch)), forwards=False)

    def _place(self, depth: int, microbatch: int) -> tuple[int, int, int]:
        return depth % self.plan.stages, microbatch, depth // self.plan.stages

    def _transfer(self, source: _Key, target: _Key, *, forwards: bool) -> None:
        if not self.plan.transfer_s or source[1] == target[1]:
            self._order_after(target, self.ids[source])
            return
        send = Stream.SEND_NEXT if forwards else Stream.SEND_PREVIOUS
        receive = Stream.RECV_PREVIOUS if forwards else Stream.RECV_NEXT
        transfer = Operation(
            Kind.SEND_RECV,
            ((source[1], send), (target[1], receive)),
            _message("send_recv", Category.PIPELINE, self.plan.transfer_s),
            Category.PIPELINE,
            after=(self.ids[source],),
            microbatch=source[2],
            chunk=target[3],
        )
        self._order_after(target, self.program.add(transfer))

    def _order_after(self, key: _Key, before: int) -> None:
        self.program.operations[self.ids[key]].after += (before,)

    def _finish(self, stage: int) -> None:
        """Reduce the gradients of each chunk when they are complete, then update."""
        plan, last_kind = self.plan, self._backward_kinds()[-1]
        waits_for: tuple[int, ...] = ()
        if plan.gradient_s:
            waits_for = tuple(
                self._collective(
                    Kind.REDUCE_SCATTER,
                    stage,
                    plan.gradient_s,
                    (self.ids[last_kind, stage, plan.microbatches - 1, chunk],),
                )
                for chunk in reversed(range(plan.chunks))
            )
        if plan.optimizer_s:
            part = Part("adam", Category.OPTIMIZER, plan.optimizer_s)
            lanes = ((stage, Stream.COMPUTE),)
            work = Work(plan.optimizer_s, (part,))
            update = Operation(Kind.OPTIMIZER, lanes, work, Category.OPTIMIZER, waits_for)
            waits_for = (self.program.add(update),)
        if plan.gather_s:
            self._collective(Kind.ALL_GATHER, stage, plan.gather_s, waits_for)

    def _collective(
        self, kind: Kind, stage: int, seconds: float, waits_for: tuple[int, ...]
    ) -> int:
        return self.program.add(
            Operation(
                kind,
                ((stage, Stream.DATA_PARALLEL),),
                _message(kind.value, Category.DATA_PARALLEL, seconds),
                Category.DATA_PARALLEL,
                after=waits_for,
            )
        )


def _message(name: str, category: Category, seconds: float) -> Work:
    return Work(seconds, (Part(name, category, seconds),), num_bytes=seconds * 1e9)


def step_result(timeline: Timeline, capacity_bytes: float = 80 * GIB) -> StepResult:
    """The step of a timeline, with memory and rates that are easy to know."""
    program = timeline.program
    waits = compute_waits(timeline)
    per_class = class_breakdowns(timeline, waits)
    mean = mean_over_ranks(timeline, per_class)
    step_s = timeline.step_time_s
    return StepResult(
        timeline=timeline,
        step_time_s=step_s,
        step_time_band_s=None,
        tokens_per_s_per_gpu=1000.0,
        model_tflops_per_gpu=400.0,
        mfu=0.404,
        mfu_causal=0.392,
        hfu=0.431,
        bubble_fraction=mean.get(Category.BUBBLE, 0.0) / step_s,
        breakdown_s=mean,
        exposed_comm_s={c: s for c, s in mean.items() if c in COMMUNICATION},
        class_breakdown_s=per_class,
        waits=waits,
        memory=tuple(
            replace(_memory(timeline, c), capacity_bytes=capacity_bytes)
            for c in range(len(program.classes))
        ),
        capacity_bytes=capacity_bytes,
        memory_spread=MemorySpread(0.05, 3),
        title=f"synthetic model, {len(program.classes)} stages",
        asynchrony=None,
        host=None,
    )


def with_title(result: StepResult, title: str) -> StepResult:
    """The same step under another name."""
    return replace(result, title=title)


def _memory(timeline: Timeline, index: int) -> ClassMemory:
    changes: dict[float, dict[Owner, float]] = defaultdict(lambda: defaultdict(float))
    changes[0.0] = defaultdict(float, dict(timeline.program.classes[index].resident))
    lanes: list[Lane] = [lane for lane in timeline.program.lanes if lane[0] == index]
    for i in {i for lane in lanes for i in timeline.program.lanes[lane]}:
        operation = timeline.program.operations[i]
        start, end = float(timeline.operation_start_s[i]), float(timeline.operation_end_s[i])
        for owner, num_bytes in (*operation.takes, *operation.holds):
            changes[start][owner] += num_bytes
        for owner, num_bytes in (*operation.gives, *operation.holds):
            changes[end][owner] -= num_bytes
    times = sorted(changes)
    owners = {o: np.cumsum([changes[t].get(o, 0.0) for t in times]) for o in Owner}
    owners = {o: held for o, held in owners.items() if held.any()}
    total = sum(owners.values(), np.zeros(len(times)))
    peak = int(np.argmax(total))
    return ClassMemory(
        stage=timeline.program.classes[index].stage,
        peak_allocated_bytes=float(total[peak]),
        peak_reserved_bytes=float(total[peak]) * 1.05,
        peak_device_bytes=float(total[peak]) * 1.05 + 2 * GIB,
        least_device_bytes=float(total[peak]) + 2 * GIB,
        peak_time_s=times[peak],
        by_owner={o: float(held[peak]) for o, held in owners.items()},
        time_s=np.array(times),
        owner_bytes=owners,
    )
