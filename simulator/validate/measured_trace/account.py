"""Where does the time of a step go, by phase and by kind, measured or predicted?

Every moment of a step is booked once: under the kernel that computes in it; else, if a message is
on its way, under that collective, which is then *exposed*; else under the host or its data loader,
if the GPU waits for them; else it is idle. Time without a kernel belongs to the phase of what
follows, as it delays that; before the optimizer it belongs to backward, whose gradients are waited
for.

A simulated step gives the same spans. A pass is the sum of its layers, so kernels of a kind follow
one another; they do not alternate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from simulator.described.job import Job
from simulator.engine.timeline import STREAMS, Timeline
from simulator.program.ir import COMMUNICATION, Category, Kind, Operation, Part, Stream
from simulator.program.price.roofline import KernelKind, kernel_kinds
from simulator.program.price.stage_cost import SHARDING_COPY
from simulator.program.states.data_parallel_collectives import BUCKET_COPY
from simulator.results.passes import part_spans
from simulator.results.step import StepResult
from simulator.validate.measured_trace.kernel_names import SpanKind, Wait

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
IDLE = "idle"
"""Where neither a kernel nor a collective runs, and no host is waited for."""

_PASSES: Mapping[Kind, Phase] = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward",
    Kind.BACKWARD_WEIGHT: "backward",
    Kind.OPTIMIZER: "optimizer",
}

_NOT_ON_THE_GPU = frozenset({Stream.HOST, Stream.NVME_READ, Stream.NVME_WRITE})

_REDUCTIONS = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE})

_DEVICE_COPIES = frozenset({BUCKET_COPY, SHARDING_COPY})

_USUAL: Mapping[Category, Kind] = {
    Category.TENSOR_PARALLEL: Kind.ALL_REDUCE,
    Category.CONTEXT_PARALLEL: Kind.SEND_RECV,
    Category.EXPERT_PARALLEL: Kind.ALL_TO_ALL,
    Category.DATA_PARALLEL: Kind.ALL_REDUCE,
    Category.PIPELINE: Kind.SEND_RECV,
    Category.OFFLOAD: Kind.COPY_TO_DEVICE,
}
"""What a part of a pass is that shares its name with no collective, such as a ring's steps."""


class Span(NamedTuple):
    """Something that runs on a rank.

    Attributes:
        kind: What it does, or what it waits for.
        phase: Of which phase it is.
        start_s, end_s: When, since the step began [s].
    """

    kind: SpanKind | Wait
    phase: Phase
    start_s: float
    end_s: float

    @property
    def computes(self) -> bool:
        """Whether it is a kernel that is no communication."""
        return isinstance(self.kind, KernelKind)

    @property
    def waits(self) -> bool:
        """Whether it is time in which a host is waited for."""
        return isinstance(self.kind, Wait)


@dataclass(frozen=True)
class Account:
    """The time of one step of one rank.

    Attributes:
        step_s: How long it is [s].
        by_phase_s: Seconds of each phase and kind; they sum to the step.
        communication_s: Seconds in which each kind of collective runs, hidden or not.
    """

    step_s: float
    by_phase_s: Mapping[tuple[Phase, str], float]
    communication_s: Mapping[str, float]

    def phase_s(self, phase: Phase) -> float:
        """Length of a phase [s]."""
        return math.fsum(s for (found, _), s in self.by_phase_s.items() if found == phase)

    def idle_s(self, phase: Phase) -> float:
        """Time of a phase in which nothing runs, whatever is waited for [s]."""
        return sum(self.by_phase_s.get((phase, why), 0.0) for why in (*Wait, IDLE))


def account(spans: Iterable[Span], step_s: float) -> Account:
    """Book every moment of a step.

    Args:
        spans: What ran, in any order; what lies outside of the step is cut off.
        step_s: Length of the step [s].
    """
    inside = [
        span._replace(start_s=max(0.0, span.start_s), end_s=min(step_s, span.end_s))
        for span in sorted(spans, key=lambda span: span.start_s)
        if span.end_s > 0 and span.start_s < step_s
    ]
    computing = list(_one_at_a_time(s for s in inside if s.computes or s.waits))
    messages = [span for span in inside if not (span.computes or span.waits)]
    booked: dict[tuple[Phase, str], float] = {}

    def book(phase: Phase, kind: str, seconds: float) -> None:
        if seconds > 0:
            booked[phase, kind] = booked.get((phase, kind), 0.0) + seconds

    exposed = _Sweep(list(_one_at_a_time(messages)))
    for phase, why, start_s, end_s in _gaps(computing, messages, step_s):
        left_s = end_s - start_s
        for message, seconds in exposed.inside(start_s, end_s):
            book(message.phase, str(message.kind), seconds)
            left_s -= seconds
        book(phase, why, left_s)
    for span in computing:
        if span.computes:
            book(span.phase, span.kind, span.end_s - span.start_s)
    kinds = dict.fromkeys(span.kind for span in messages)
    communication = {
        str(kind): math.fsum(
            span.end_s - span.start_s
            for span in _one_at_a_time(each for each in messages if each.kind is kind)
        )
        for kind in kinds
    }
    return Account(step_s, booked, communication)


def merged(spans: Iterable[Span], apart_s: float) -> Iterator[Span]:
    """The same, drawn together: neighbours that do the same as one, small gaps closed.

    All that computes in a phase counts as doing the same. Waits are left out.

    Args:
        spans: In order of start.
        apart_s: The smallest gap that stays one [s].
    """
    last: dict[object, Span] = {}
    for span in spans:
        if span.waits:
            continue
        key = span.phase if span.computes else span.kind
        before = last.get(key)
        if before is None or span.start_s - before.end_s >= apart_s:
            if before is not None:
                yield before
            last[key] = span
        else:
            last[key] = before._replace(end_s=max(before.end_s, span.end_s))
    yield from last.values()


def _one_at_a_time(spans: Iterable[Span]) -> Iterator[Span]:
    """The same without overlap: who came first stays until it ends. Spans in order of start."""
    clock_s = 0.0
    for span in spans:
        if span.end_s > clock_s:
            yield span._replace(start_s=max(clock_s, span.start_s))
            clock_s = span.end_s


def _gaps(
    computing: Sequence[Span], messages: Sequence[Span], step_s: float
) -> Iterator[tuple[Phase, str, float, float]]:
    """Phase, reason, start and end of every time without a kernel, in order."""
    if not computing:
        yield (messages[0].phase if messages else PHASES[0]), IDLE, 0.0, step_s
        return
    clock_s, before = 0.0, computing[0].phase
    for span in computing:
        if span.start_s > clock_s:
            yield delayed_phase(before, span.phase), IDLE, clock_s, span.start_s
        if span.waits:
            yield span.phase, str(span.kind), span.start_s, span.end_s
        clock_s, before = span.end_s, span.phase
    if step_s > clock_s:
        yield before, IDLE, clock_s, step_s


def delayed_phase(before: Phase, after: Phase) -> Phase:
    """The phase that a time without a kernel belongs to, by the kernels around it."""
    return before if after == "optimizer" else after


class _Sweep:
    """Answers, for intervals in order, what of each span lies in them."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._place = 0

    def inside(self, start_s: float, end_s: float) -> Iterator[tuple[Span, float]]:
        """Spans that overlap an interval, and for how many seconds."""
        while self._place < len(self._spans):
            span = self._spans[self._place]
            shared_s = min(end_s, span.end_s) - max(start_s, span.start_s)
            if shared_s > 0:
                yield span, shared_s
            if span.end_s > end_s:
                return
            self._place += 1


def predicted_spans(job: Job, result: StepResult, rank_class: int) -> list[Span]:
    """What runs on the ranks of a class, in order of start."""
    kinds, timeline = kernel_kinds(job), result.timeline
    passes = _Passes(timeline, rank_class)
    rows = np.flatnonzero(timeline.rank_class == rank_class)
    ids, streams = timeline.operation[rows].tolist(), timeline.stream[rows].tolist()
    spans: list[Span] = []
    for index, stream in zip(ids, streams, strict=True):
        if STREAMS[stream] not in _NOT_ON_THE_GPU:
            operation = timeline.program.operations[index]
            start_s = float(timeline.operation_start_s[index])
            end_s = float(timeline.operation_end_s[index])
            if operation.kind in _PASSES:
                spans += _parts(operation, start_s, end_s, kinds)
            else:
                spans.append(
                    Span(operation.kind, passes.phase_of(operation, start_s), start_s, end_s)
                )
    return sorted(spans, key=lambda span: span.start_s)


class _Passes:
    def __init__(self, timeline: Timeline, rank_class: int) -> None:
        program = timeline.program
        own = program.lanes.get((rank_class, Stream.COMPUTE), [])
        ids = [index for index in own if program.operations[index].kind in _PASSES]
        self.start_s = timeline.operation_start_s[ids]
        self.phases = [_PASSES[program.operations[index].kind] for index in ids]

    def phase_of(self, message: Operation, start_s: float) -> Phase:
        """Gradients are reduced in backward; whatever else is sent, the next pass needs."""
        if message.category is Category.OPTIMIZER:
            return "optimizer"
        if message.kind in _REDUCTIONS and message.category is Category.DATA_PARALLEL:
            return "backward"
        place = int(np.searchsorted(self.start_s, start_s))
        return self.phases[place] if place < len(self.phases) else "optimizer"


def _parts(
    operation: Operation, start_s: float, end_s: float, kinds: Mapping[str, KernelKind]
) -> Iterator[Span]:
    phase = _PASSES[operation.kind]
    issued = {collective.name: collective.kind for collective in operation.work.collectives}
    for part, left_s, right_s in part_spans(operation.work, start_s, end_s):
        if right_s > left_s:
            yield Span(_kind(part, kinds, issued), phase, left_s, right_s)


def _kind(
    part: Part, kinds: Mapping[str, KernelKind], issued: Mapping[str, Kind]
) -> SpanKind | Wait:
    """What a part of a pass is."""
    if part.category is Category.HOST:
        return Wait.HOST
    if part.category in COMMUNICATION and part.name not in _DEVICE_COPIES:
        return issued.get(part.name, _USUAL[part.category])
    return kinds.get(part.name, KernelKind.OTHER)
