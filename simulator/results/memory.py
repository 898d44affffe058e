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

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import Timeline
from simulator.program.ir import Memory, Operation, Owner, Program, Stream, total_bytes
from simulator.results.reserved import Exchange, reserved_bytes
from simulator.results.step import ClassMemory
from simulator.spec.hardware import Device

_LEAST_UNUSED_SHARE = 0.04
"""Reserved beyond allocated: median of the eight different runs in
``reports/data/runs_open.csv`` that print both for a current PyTorch (2.8 to 7 %)."""


_OWNERS = {owner: number for number, owner in enumerate(Owner)}


def class_memory(timeline: Timeline, device: Device) -> tuple[ClassMemory, ...]:
    """Memory of every rank class over the step, on its own device or else on the given one."""
    return tuple(
        _one_class(timeline, index, device) for index in range(len(timeline.program.classes))
    )


def _one_class(timeline: Timeline, index: int, device: Device) -> ClassMemory:
    rank_class = timeline.program.classes[index]
    device = rank_class.device or device
    booked = _booked(timeline.program, index)
    time_s, changes = _changes(timeline, booked)
    owner_bytes = _curves(changes, dict(rank_class.resident))
    preallocated = timeline.program.preallocated & owner_bytes.keys()
    buffers_bytes = {owner: float(owner_bytes[owner].max()) for owner in preallocated}
    for owner, num_bytes in buffers_bytes.items():
        owner_bytes[owner] = np.full(len(time_s), num_bytes)
    total = sum(owner_bytes.values(), np.zeros(len(time_s)))
    peak = int(np.argmax(total))
    by_owner = {owner: float(curve[peak]) for owner, curve in owner_bytes.items() if curve[peak]}
    allocated = float(total[peak])
    resident_bytes = total_bytes(rank_class.resident) + sum(buffers_bytes.values())
    outside_bytes = device.context_bytes + timeline.program.communicator_bytes
    room_bytes = device.memory_bytes - outside_bytes
    reserved = _reserved(timeline.program, booked, resident_bytes, allocated, room_bytes)
    return ClassMemory(
        stage=rank_class.stage,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=reserved + outside_bytes,
        peak_time_s=float(time_s[peak]),
        by_owner=by_owner,
        time_s=time_s,
        owner_bytes=owner_bytes,
        role=rank_class.role,
        capacity_bytes=device.memory_bytes,
    )


def _reserved(
    program: Program,
    booked: Sequence[int],
    resident_bytes: float,
    allocated_bytes: float,
    room_bytes: float,
) -> float:
    """What the allocator of one rank holds at its most in a step [B].

    What is resident counts as it is: it was taken first and stays, as buffers do. Blocks that
    come and go within an operation are not all known; they leave a share unused at least, unless
    the device is full, and unused segments are returned to it.
    """
    exchanges = _exchanges([program.operations[i] for i in booked], program)
    is_expandable = program.expandable_segments
    replayed = resident_bytes + reserved_bytes(
        exchanges, expandable_segments=is_expandable, room_bytes=room_bytes - resident_bytes
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


def _exchanges(operations: Iterable[Operation], program: Program) -> list[Exchange]:
    """Blocks that operations take, and that are free after them; those that have none left out.

    Args:
        operations: What takes and gives back.
        program: Says which blocks lie in buffers or come from a stream of their own.
    """
    known: dict[tuple[int, int, int], Exchange] = {}
    exchanges = []
    for operation in operations:
        exchanges += [_exchange(turn, turn, program) for turn in operation.turns]
        holds, takes, gives = operation.holds, operation.takes, operation.gives
        if not (holds or takes or gives):
            continue
        key = id(holds), id(takes), id(gives)
        if key not in known:
            known[key] = _exchange(takes + holds, holds + gives, program)
        exchanges.append(known[key])
    return exchanges


def _exchange(takes: Memory, gives: Memory, program: Program) -> Exchange:
    def sizes(memory: Memory, *, is_apart: bool) -> tuple[float, ...]:
        return tuple(
            size
            for owner, size in memory
            if owner not in program.preallocated and (owner in program.own_stream) == is_apart
        )

    return Exchange(
        sizes(takes, is_apart=False),
        sizes(gives, is_apart=False),
        sizes(takes, is_apart=True),
        sizes(gives, is_apart=True),
    )


def _changes(
    timeline: Timeline, booked: Sequence[int]
) -> tuple[NDArray[np.float64], dict[Owner, NDArray[np.float64]]]:
    """The start of the step and every moment at which memory changes, and by how much.

    Memory given back at one moment is free before more is taken at that moment, but an
    operation that takes no time holds what it holds for that moment.

    Returns:
        Moments of shape (changes,) [s], and for each owner what it takes or gives back at
        each of them, of the same shape [B].
    """
    program, by_owner = timeline.program, _OwnerSums()
    starts_s = timeline.operation_start_s[booked].tolist()
    ends_s = timeline.operation_end_s[booked].tolist()
    times: list[float] = [0.0]
    orders, owners, sizes = [-1], [-1], [0.0]
    for number, start, end in zip(booked, starts_s, ends_s, strict=True):
        operation = program.operations[number]
        for turn in operation.turns:
            held = by_owner(turn)
            times += [start] * 2 * len(held)
            orders += [1] * 2 * len(held)
            owners += [owner for owner, _ in held] * 2
            sizes += [size for _, size in held] + [-size for _, size in held]
        if not (operation.takes or operation.holds or operation.gives):
            continue
        taken = [*by_owner(operation.takes), *by_owner(operation.holds)]
        given = [*by_owner(operation.holds), *by_owner(operation.gives)]
        times += [start] * len(taken) + [end] * len(given)
        orders += [1] * len(taken) + [0 if end > start else 2] * len(given)
        owners += [owner for owner, _ in taken] + [owner for owner, _ in given]
        sizes += [size for _, size in taken] + [-size for _, size in given]
    time_s, owner = np.asarray(times), np.asarray(owners)
    order = np.lexsort((np.asarray(orders), time_s))
    owner, change_bytes = owner[order], np.asarray(sizes)[order]
    changes = {
        name: np.where(owner == number, change_bytes, 0.0) for name, number in _OWNERS.items()
    }
    return time_s[order], changes


class _OwnerSums:
    """Bytes per owner's number; operations that do the same share their blocks, summed once."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Memory, list[tuple[int, float]]]] = {}

    def __call__(self, blocks: Memory) -> list[tuple[int, float]]:
        known = self._sums.get(id(blocks))
        if known is None:
            totals: dict[int, float] = {}
            for owner, size in blocks:
                number = _OWNERS[owner]
                totals[number] = totals.get(number, 0.0) + size
            known = self._sums[id(blocks)] = (blocks, list(totals.items()))
        return known[1]


def _curves(
    changes: Mapping[Owner, NDArray[np.float64]], resident: Mapping[Owner, float]
) -> dict[Owner, NDArray[np.float64]]:
    """Bytes of each owner from each moment on."""
    curves = {}
    for owner, change in changes.items():
        curve = resident.get(owner, 0.0) + np.cumsum(change)
        if curve.any():
            curves[owner] = np.maximum(curve, 0.0)
    return curves
