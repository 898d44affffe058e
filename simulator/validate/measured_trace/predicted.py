"""What runs on a rank of the simulated step, told apart as a profile tells it?

Work of the host that a GPU waits for is idle time, as it is in a profile. A pass is the sum of
its layers, so that kernels of a kind follow one another; they do not alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from simulator.described.job import Job
from simulator.engine.timeline import STREAMS, Timeline
from simulator.program.ir import COMMUNICATION, Category, Kind, Operation, Part, Stream
from simulator.program.price.kernel_kinds import KernelKind, kernel_kinds
from simulator.program.price.stage_cost import SHARDING_COPY
from simulator.program.states.data_parallel_collectives import BUCKET_COPY
from simulator.results.parts import part_spans
from simulator.results.step import StepResult
from simulator.validate.measured_trace.account import Phase, Span
from simulator.validate.measured_trace.names import SpanKind

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


def predicted_spans(job: Job, result: StepResult, rank_class: int) -> list[Span]:
    """What runs on the ranks of a class, in order of start.

    Args:
        job: The job.
        result: Its simulated step.
        rank_class: Index of the class.
    """
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
    """The passes of a rank, in order, which its messages are for."""

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
) -> SpanKind | None:
    """What a part of a pass is; None where the GPU waits for its host."""
    if part.category is Category.HOST:
        return None
    if part.category in COMMUNICATION and part.name not in _DEVICE_COPIES:
        return issued.get(part.name, _USUAL[part.category])
    return kinds.get(part.name, KernelKind.OTHER)
