"""How much memory does each rank class hold, when, and for whom?

Operations take memory at their start and give it back at their end; what they only hold
lives in between. The curve of each owner is the running sum of those events on top of
what is resident.

Three numbers, always labelled: *allocated* is the sum of the tensors; *reserved* what a
caching allocator holds for them (:mod:`simulator.results.allocator`), replayed block by block
in the order in which the host issues the operations; *device* adds the driver's context,
libraries, and the buffers of communicators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import Timeline
from simulator.program.ir import Memory, Operation, Owner, Program, Stream, total_bytes
from simulator.results.allocator import Request, reserved_bytes
from simulator.results.step import ClassMemory
from simulator.spec.hardware import Device

_LEAST_UNUSED_SHARE = 0.04
"""Reserved beyond allocated: median of the eight different runs in
``reports/data/runs_open.csv`` that print both for a current PyTorch (2.8 to 7 %)."""


class _Event(NamedTuple):
    time_s: float
    order: int
    """Memory given back at one moment is free before more is taken at that moment, but an
    operation that takes no time holds what it holds for that moment."""
    owner: Owner
    num_bytes: float


def class_memory(timeline: Timeline, device: Device) -> tuple[ClassMemory, ...]:
    """Memory of every rank class over the step."""
    return tuple(
        _one_class(timeline, index, device) for index in range(len(timeline.program.classes))
    )


def _one_class(timeline: Timeline, index: int, device: Device) -> ClassMemory:
    rank_class = timeline.program.classes[index]
    events = _events(timeline, index)
    time_s = np.asarray([0.0, *(event.time_s for event in events)])
    owner_bytes = _curves(events, dict(rank_class.resident))
    preallocated = timeline.program.preallocated & owner_bytes.keys()
    buffers_bytes = {owner: float(owner_bytes[owner].max()) for owner in preallocated}
    for owner, num_bytes in buffers_bytes.items():
        owner_bytes[owner] = np.full(len(time_s), num_bytes)
    total = sum(owner_bytes.values(), np.zeros(len(time_s)))
    peak = int(np.argmax(total))
    by_owner = {owner: float(curve[peak]) for owner, curve in owner_bytes.items() if curve[peak]}
    allocated = float(total[peak])
    outside = device.context_bytes + timeline.program.communicator_bytes
    room = device.memory_bytes - outside
    reserved = _reserved(timeline.program, index, allocated, sum(buffers_bytes.values()), room)
    return ClassMemory(
        stage=rank_class.stage,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=reserved + outside,
        peak_time_s=float(time_s[peak]),
        by_owner=by_owner,
        time_s=time_s,
        owner_bytes=owner_bytes,
        role=rank_class.role,
    )


def _reserved(
    program: Program, index: int, allocated_bytes: float, buffers_bytes: float, room_bytes: float
) -> float:
    """What the allocator of one rank holds at its most in a step [B].

    What is resident counts as it is: it was taken first and stays, as buffers do. Blocks that
    come and go within an operation are not all known; they leave a share unused at least, unless
    the device is full, and unused segments are returned to it.
    """
    resident = total_bytes(program.classes[index].resident) + buffers_bytes
    booked = (program.operations[i] for i in _booked(program, index))
    steps = (step for operation in booked for step in _blocks(operation, program))
    is_expandable = program.expandable_segments
    replayed = resident + reserved_bytes(
        steps, expandable_segments=is_expandable, room_bytes=room_bytes - resident
    )
    least = allocated_bytes * (1 + (0.0 if is_expandable else _LEAST_UNUSED_SHARE))
    return max(replayed, min(least, max(room_bytes, allocated_bytes)))


def _booked(program: Program, index: int) -> list[int]:
    """Ids of the operations whose memory one class books, as its host issues them.

    What a transfer takes is booked where it starts from.
    """
    stage = program.classes[index].stage
    ids = {i for stream in Stream for i in program.lanes.get((index, stream), ())}
    sources = ((i, program.operations[i].lanes[0][0]) for i in sorted(ids))
    return [i for i, source in sources if program.classes[source].stage == stage]


def _blocks(
    operation: Operation, program: Program
) -> Iterator[tuple[list[Request], list[Request]]]:
    """The blocks that an operation takes, and that are free after it, in turn."""
    held, takes, gives, *turns = (
        [
            (str(owner) if owner in program.own_stream else "", size)
            for owner, size in memory
            if owner not in program.preallocated
        ]
        for memory in (operation.holds, operation.takes, operation.gives, *operation.turns)
    )
    for turn in turns:
        yield turn, turn
    yield [*takes, *held], [*held, *gives]


def _events(timeline: Timeline, index: int) -> list[_Event]:
    events = []
    program, by_owner = timeline.program, _OwnerSums()
    for operation_id in _booked(program, index):
        operation = program.operations[operation_id]
        start = float(timeline.operation_start_s[operation_id])
        end = float(timeline.operation_end_s[operation_id])
        takes, holds, gives = (
            by_owner(memory) for memory in (operation.takes, operation.holds, operation.gives)
        )
        for turn in operation.turns:
            events += [_Event(start, 1, owner, size) for owner, size in by_owner(turn)]
            events += [_Event(start, 1, owner, -size) for owner, size in by_owner(turn)]
        events += [_Event(start, 1, owner, size) for owner, size in takes]
        events += [_Event(start, 1, owner, size) for owner, size in holds]
        order = 0 if end > start else 2
        events += [_Event(end, order, owner, -size) for owner, size in holds]
        events += [_Event(end, order, owner, -size) for owner, size in gives]
    return sorted(events, key=lambda event: (event.time_s, event.order))


class _OwnerSums:
    """Bytes per owner; operations that do the same share their blocks, summed once."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Memory, Memory]] = {}

    def __call__(self, blocks: Memory) -> Memory:
        known = self._sums.get(id(blocks))
        if known is None:
            totals: dict[Owner, float] = {}
            for owner, size in blocks:
                totals[owner] = totals.get(owner, 0.0) + size
            known = self._sums[id(blocks)] = (blocks, tuple(totals.items()))
        return known[1]


def _curves(
    events: list[_Event], resident: Mapping[Owner, float]
) -> dict[Owner, NDArray[np.float64]]:
    """Bytes of each owner from the start and from each event on."""
    numbers = {owner: number for number, owner in enumerate(Owner)}
    owners = np.asarray([numbers[event.owner] for event in events], dtype=np.int64)
    changes = np.asarray([event.num_bytes for event in events])
    curves = {}
    for owner, number in numbers.items():
        steps = np.where(owners == number, changes, 0.0) if events else np.empty(0)
        curve = resident.get(owner, 0.0) + np.concatenate([[0.0], np.cumsum(steps)])
        if curve.any():
            curves[owner] = np.maximum(curve, 0.0)
    return curves
