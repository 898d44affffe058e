"""How is a step, or a serving run, looked at in Perfetto or chrome://tracing?

Trace Event JSON. Of a step: a process per rank class, a thread per stream, a complete event per
operation with its coordinates, bytes and FLOP; beside them a thread of waits by cause, an
arrow from the sending to the receiving side of each transfer, and counters of allocated
memory and of what each link carries. Events are written one by one, so memory does not grow
with the trace.

Times are whole nanoseconds, rounded edge by edge, so that neighbours on a lane stay
neighbours and never overlap. Stages lie in their order, except in versions of Perfetto before
the end of 2025, which put processes with more events above those with fewer.

Of a serving run: a process per replica, an event per engine step with what was in it, counters of
requests and of the cache; beside them the life of each request: it waits, its prompt is computed,
its answer is made.

Source:
    Trace Event Format (Google, 2016): event phases X, M, C, s and f. Perfetto takes whole numbers
    only as the ids of arrows, and puts the unit of a counter behind its name.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from simulator.engine.timeline import STREAMS
from simulator.errors import InputError
from simulator.files import whole_file
from simulator.program.ir import Kind, Lane, Operation, Stream
from simulator.results.passes import part_spans
from simulator.results.step import StepResult
from simulator.results.traffic import LinkLoad, link_loads
from simulator.results.views.rank_classes import spread
from simulator.serving.cluster import Served

Event = dict[str, Any]

_WAITS, _KERNELS = "waits", "compute kernels"
_THREADS = (Stream.COMPUTE.value, _KERNELS, _WAITS, *(s.value for s in STREAMS[1:]))
"""Lanes of a process from top to bottom."""
_THREAD_PLACE = {name: place for place, name in enumerate(_THREADS)}
_PROCESS_SPACING = 100
"""Between the ids of processes. Each thread gets an id of its own, and the compute stream that
of its process, which makes it the main thread: Perfetto puts that first, then the others by id."""
_RECEIVING = frozenset({Stream.RECV_PREVIOUS, Stream.RECV_NEXT})
_GIB = 1024.0**3


@dataclass(frozen=True)
class TraceSummary:
    """What went into a trace.

    Attributes:
        num_events: Events written, names of processes and threads included.
        classes: Indices of the rank classes written.
        left_out: Indices of the rank classes that ``max_events`` had no room for.
    """

    num_events: int
    classes: tuple[int, ...]
    left_out: tuple[int, ...]


def write_trace(
    result: StepResult,
    path: str | Path,
    *,
    max_events: int = 2_000_000,
    kernels: bool = False,
    classes: Sequence[int] | None = None,
) -> TraceSummary:
    """Write the step as Trace Event JSON, compressed if the suffix is ``.gz``.

    Args:
        result: The step.
        path: File to write, ``.json`` or ``.json.gz``. The same step gives the same bytes.
        max_events: Where all classes would need more events, whole classes are left
            out, evenly between the first and the last; the summary and the ``otherData``
            of the trace name them.
        kernels: Also show what each compute operation is made of, on a lane of its own.
            Repeated kernels of an operation are one event.
        classes: Indices of the rank classes to choose from; by default all of them.

    Returns:
        What was written.

    Raises:
        InputError: The suffix is neither, or ``max_events`` has no room for one class.
    """
    loads = link_loads(result.timeline)
    wanted = range(len(result.memory)) if classes is None else sorted(set(classes))
    cost = _events_per_class(result, loads, kernels=kernels)
    shown = _fitting_classes(wanted, cost, max_events)
    left_out = tuple(sorted(set(range(len(result.memory))) - set(shown)))
    num_events = 0
    with open_trace(Path(path)) as file:
        head = {"displayTimeUnit": "ms", "otherData": _about(result, left_out)}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [')
        for event in trace_events(result, shown, kernels=kernels, loads=loads):
            file.write(",\n" if num_events else "\n")
            file.write(json.dumps(event, separators=(",", ":")))
            num_events += 1
        file.write("\n]}\n")
    return TraceSummary(num_events, tuple(shown), left_out)


def trace_events(
    result: StepResult,
    classes: Sequence[int],
    *,
    kernels: bool = False,
    loads: Sequence[LinkLoad] = (),
) -> Iterator[Event]:
    """The events of some rank classes, lane by lane, as they are written."""
    for index in classes:
        yield from _names(result, index, kernels=kernels)
        yield from _operations(result, index, kernels=kernels)
        yield from _waits(result, index)
        yield from _memory(result, index)
        for load in loads:
            if load.rank_class == index:
                yield from _link(result, load)
    yield from _transfers(result, set(classes))


def scaled_parts(
    operation: Operation, start_ns: int, end_ns: int
) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of each part, scaled to fill an interval without gaps [ns]."""
    for part, left, right in part_spans(operation.work, start_ns, end_ns):
        name = f"{part.name} x{part.repeats}" if part.repeats > 1 else part.name
        yield name, round(left), round(right)


def _about(result: StepResult, left_out: Sequence[int]) -> dict[str, Any]:
    names = [result.timeline.program.classes[index].name for index in left_out]
    return {
        "generator": "clustersim",
        "title": result.title,
        "step_time_s": result.step_time_s,
        "mfu": result.mfu,
        "bubble_fraction": result.bubble_fraction,
        "classes_left_out": names,
    }


@contextmanager
def open_trace(path: Path) -> Iterator[TextIO]:
    """A text file to write whole or not at all, through gzip where the name says so."""
    name = path.name.lower()
    if not name.endswith((".json", ".json.gz")):
        raise InputError.single(
            "path", "a trace is written as .json or .json.gz", str(path), "change the suffix"
        )
    with whole_file(path) as draft, draft.open("wb") as raw, ExitStack() as opened:
        binary: BinaryIO | gzip.GzipFile = raw
        if name.endswith(".gz"):
            # No name and no time in the header: the same step gives the same bytes.
            packed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0)
            binary = opened.enter_context(packed)
        yield opened.enter_context(io.TextIOWrapper(binary, encoding="utf-8", newline="\n"))


def _fitting_classes(wanted: Sequence[int], cost: Sequence[int], max_events: int) -> list[int]:
    """As many of the classes as the budget allows, evenly spread."""
    for count in range(len(wanted), 0, -1):
        classes = [wanted[place] for place in spread(len(wanted), count)]
        if sum(cost[index] for index in classes) <= max_events:
            return classes
    raise InputError.single(
        "max_events",
        "must allow at least one class of ranks",
        max_events,
        f"allow {cost[wanted[0]]} or more",
    )


def _events_per_class(result: StepResult, loads: Sequence[LinkLoad], *, kernels: bool) -> list[int]:
    """Events each class needs when all are written, its ends of arrows included."""
    program = result.timeline.program
    waits = Counter(result.waits.rank_class.tolist())
    costs = [
        4 + 2 * kernels + waits[index] + memory.time_s.size + 1
        for index, memory in enumerate(result.memory)
    ]
    for load in loads:
        costs[load.rank_class] += load.time_s.size + 1
    for (index, stream), ids in program.lanes.items():
        costs[index] += 2 + len(ids)
        if kernels and stream is Stream.COMPUTE:
            costs[index] += sum(len(program.operations[i].work.parts) for i in ids)
    for operation in program.operations:
        for sender, receiver in _arrow_ends(operation):
            costs[sender[0]] += 1
            costs[receiver[0]] += 1
    return costs


def _names(result: StepResult, index: int, *, kernels: bool) -> Iterator[Event]:
    program = result.timeline.program
    rank_class = program.classes[index]
    ranks = "1 rank" if rank_class.count == 1 else f"x{rank_class.count} ranks"
    yield _metadata("process_name", index, {"name": f"{rank_class.name} ({ranks})"})
    yield _metadata("process_sort_index", index, {"sort_index": index})
    if rank_class.cause:
        labels = f"stage {rank_class.stage}: {rank_class.cause}"
        yield _metadata("process_labels", index, {"labels": labels})
    used = {stream.value for owner, stream in program.lanes if owner == index} | {_WAITS}
    if kernels:
        used.add(_KERNELS)
    for name in _THREADS:
        if name in used:
            place = {"sort_index": _THREAD_PLACE[name]}
            yield _metadata("thread_name", index, {"name": name}, name)
            yield _metadata("thread_sort_index", index, place, name)


def _metadata(
    name: str, index: int, args: dict[str, Any], thread: str = Stream.COMPUTE.value
) -> Event:
    return {"ph": "M", "name": name, **_lane_ids(index, thread), "args": args}


def _lane_ids(index: int, thread: str) -> dict[str, int]:
    """Which lane an event is on; ids above 0, which is the idle task to Perfetto."""
    return {"pid": _process_id(index), "tid": _process_id(index) + _THREAD_PLACE[thread]}


def _process_id(index: int) -> int:
    return _PROCESS_SPACING * (index + 1)


def _operations(result: StepResult, index: int, *, kernels: bool) -> Iterator[Event]:
    timeline = result.timeline
    rows = np.flatnonzero(timeline.rank_class == index)
    ids, streams = timeline.operation[rows].tolist(), timeline.stream[rows].tolist()
    for operation_id, stream_index in zip(ids, streams, strict=True):
        operation = timeline.program.operations[operation_id]
        stream = STREAMS[stream_index]
        start_ns = _nanoseconds(timeline.operation_start_s[operation_id])
        end_ns = _nanoseconds(timeline.operation_end_s[operation_id])
        yield _complete(
            _title(operation),
            index,
            stream.value,
            (start_ns, end_ns),
            category=operation.category.value,
            args=_arguments(operation),
        )
        if kernels and stream is Stream.COMPUTE:
            for name, left_ns, right_ns in scaled_parts(operation, start_ns, end_ns):
                yield _complete(name, index, _KERNELS, (left_ns, right_ns), category="kernel")


def _title(operation: Operation) -> str:
    if operation.microbatch < 0:
        return operation.kind.value
    return f"{operation.kind.value} {operation.microbatch}"


def _arguments(operation: Operation) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if operation.microbatch >= 0:
        args["microbatch"] = operation.microbatch
    if operation.chunk >= 0:
        args["chunk"] = operation.chunk
    first, end = operation.layers
    if first >= 0:
        args["layers"] = f"{first}..{end - 1}" if end - first > 1 else str(first)
    if operation.work.num_bytes:
        args["bytes"] = operation.work.num_bytes
    if operation.work.flop:
        args["flop"] = operation.work.flop
    return args


def _waits(result: StepResult, index: int) -> Iterator[Event]:
    waits = result.waits
    for row in np.flatnonzero(waits.rank_class == index).tolist():
        span = (_nanoseconds(waits.start_s[row]), _nanoseconds(waits.end_s[row]))
        cause = waits.category[row].value
        yield _complete(
            f"wait for {cause}" if cause != "bubble" else cause,
            index,
            _WAITS,
            span,
            category="wait",
        )


def _memory(result: StepResult, index: int) -> Iterator[Event]:
    memory = result.memory[index]
    total = sum(memory.owner_bytes.values(), np.zeros_like(memory.time_s)).tolist()
    moments_s = [*memory.time_s.tolist(), result.step_time_s]
    for time_s, num_bytes in zip(moments_s, [*total, total[-1]], strict=True):
        yield {
            "ph": "C",
            "name": "allocated",
            "pid": _process_id(index),
            "ts": _microseconds(_nanoseconds(time_s)),
            "args": {"GiB": round(num_bytes / _GIB, 6)},
        }


def _link(result: StepResult, load: LinkLoad) -> Iterator[Event]:
    moments_s = [*load.time_s.tolist(), result.step_time_s]
    rates = load.bytes_per_s.tolist()
    for time_s, rate in zip(moments_s, [*rates, rates[-1]], strict=True):
        yield {
            "ph": "C",
            "name": f"{load.port} sent",
            "pid": _process_id(load.rank_class),
            "ts": _microseconds(_nanoseconds(time_s)),
            "args": {"GB/s": float(f"{rate / 1e9:.6g}")},
        }


def _transfers(result: StepResult, classes: set[int]) -> Iterator[Event]:
    """An arrow from the middle of each send to the middle of its receive."""
    timeline, flow = result.timeline, 0
    for index, operation in enumerate(timeline.program.operations):
        middle_s = (timeline.operation_start_s[index] + timeline.operation_end_s[index]) / 2
        for sender, receiver in _arrow_ends(operation):
            if sender[0] in classes and receiver[0] in classes:
                flow += 1
                yield _arrow("s", flow, sender, middle_s)
                yield _arrow("f", flow, receiver, middle_s) | {"bp": "e"}


def _arrow_ends(operation: Operation) -> Iterator[tuple[Lane, Lane]]:
    """Sender and receiver of each message of a transfer.

    A sender that waits for its transfer holds its compute stream instead of a stream for
    sending.
    """
    if operation.kind is not Kind.SEND_RECV:
        return
    senders = [lane for lane in operation.lanes if lane[1] not in _RECEIVING]
    receivers = [lane for lane in operation.lanes if lane[1] in _RECEIVING]
    for receiver in receivers if senders else []:
        yield senders[0], receiver


def _arrow(phase: str, flow: int, lane: Lane, time_s: float) -> Event:
    return {
        "ph": phase,
        "name": "transfer",
        "cat": "transfer",
        "id": flow,
        **_lane_ids(lane[0], lane[1].value),
        "ts": _microseconds(_nanoseconds(time_s)),
    }


def _complete(
    name: str,
    index: int,
    thread: str,
    span_ns: tuple[int, int],
    *,
    category: str,
    args: dict[str, Any] | None = None,
) -> Event:
    event: Event = {
        "ph": "X",
        "name": name,
        "cat": category,
        **_lane_ids(index, thread),
        "ts": _microseconds(span_ns[0]),
        "dur": _microseconds(span_ns[1] - span_ns[0]),
    }
    return event | {"args": args} if args else event


def _nanoseconds(seconds: float) -> int:
    return round(float(seconds) * 1e9)


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


_MOST_REQUESTS = 5_000
"""Requests whose life is shown."""
_STEPS = 1


def write_serving_trace(served: Served, path: Path) -> None:
    """Write recorded steps and requests as ``.json`` or ``.json.gz``.

    Raises:
        InputError: The suffix is neither.
    """
    with open_trace(path) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for number, event in enumerate(_serving_events(served)):
            file.write(",\n" if number else "\n")
            file.write(json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _serving_events(served: Served) -> Iterator[dict[str, Any]]:
    """Events of all replicas, then of the requests."""
    for index, steps in enumerate(served.steps, start=1):
        yield _named("process_name", index, f"replica {index - 1}")
        yield _named("thread_name", index, "engine steps")
        for step in steps:
            start, span = (
                _microseconds(_nanoseconds(step.start_s)),
                _microseconds(_nanoseconds(step.end_s - step.start_s)),
            )
            about = {
                "answers": step.decodes,
                "prompt tokens": step.prompt_tokens,
                "preempted": step.preempted,
                "steps": step.merged,
            }
            name = "prompts" if step.prompt_tokens else "answers"
            place = {"pid": index, "tid": _STEPS}
            yield {"ph": "X", "name": name, **place, "ts": start, "dur": span, "args": about}
            counted = {
                "requests": {"running": step.running, "waiting": step.waiting},
                "cache": {"%": round(100 * step.used_share, 2)},
            }
            for counter, values in counted.items():
                yield {"ph": "C", "name": counter, "pid": index, "ts": start, "args": values}
    requests = len(served.steps) + 1
    yield _named("process_name", requests, "requests")
    for request in sorted(served.requests, key=lambda r: r.arrival_s)[:_MOST_REQUESTS]:
        about = {"prompt": request.prompt_tokens, "answer": request.output_tokens}
        moments = (request.arrival_s, request.scheduled_s, request.first_token_s)
        ends = (*moments[1:], request.last_token_s)
        for name, begin_s, end_s in zip(("wait", "prompt", "answer"), moments, ends, strict=True):
            event = {"cat": "request", "id": request.number, "pid": requests, "tid": 1}
            yield {
                "ph": "b",
                "name": name,
                **event,
                "ts": _microseconds(_nanoseconds(begin_s)),
                "args": about,
            }
            yield {"ph": "e", "name": name, **event, "ts": _microseconds(_nanoseconds(end_s))}


def _named(kind: str, process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": _STEPS, "args": {"name": name}}
