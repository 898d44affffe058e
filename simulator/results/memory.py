"""How much memory does each rank class hold, when, and for whom?

Operations take memory at their start and give it back at their end; what they only hold
lives in between. The curve of each owner is the running sum of those events on top of
what is resident.

Three numbers, always labelled: *allocated* is the sum of the tensors; *reserved* what a
caching allocator holds for them (:mod:`simulator.results.allocator`), replayed block by
block in the order in which the host issues the operations; *device* adds the driver's context,
libraries, and the buffers of communicators.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.cluster.hardware import Device
from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.engine.timeline import Timeline
from simulator.program.ir import Kind, Memory, Operation, Owner, Program, Stream, total_bytes
from simulator.results.allocator.exchanges import Exchange, Exchanges, KeptReserves
from simulator.results.shorter_sequences import in_several_orders
from simulator.results.step import ClassMemory

_LEAST_UNUSED_SHARE = 0.04
"""Reserved beyond allocated: median of the eight different runs in
``reports/data/runs_open.csv`` that print both for a current PyTorch (2.8 to 7 %)."""


BEFORE_THE_STEP_S = -1.0
"""Stands for the moment of a peak while weights are loaded [s]."""

_STEPS = 3
"""Steps that the allocator is followed through: what it cannot reuse of one it asks for in the
next, and by the third it has come to rest."""

_OWNERS: Mapping[Owner, int] = {
    owner: number for number, owner in enumerate(Owner) if owner is not Owner.GRADIENT_SHARDS
}
_NUMBERS = {**_OWNERS, Owner.GRADIENT_SHARDS: _OWNERS[Owner.GRADIENTS]}
"""Of every owner, the number of the one that its memory is shown as."""


def class_memory(
    timeline: Timeline,
    device: Device,
    kept: KeptReserves | None = None,
    shorter: Sequence[Program] = (),
) -> tuple[ClassMemory, ...]:
    """Memory of every rank class over the step, on its own device or else on the given one.

    ``kept`` knows what programs like this one reserved; ``shorter`` run beside it.
    """
    kinds, kept = _Kinds(timeline.program), kept or KeptReserves()
    known = {id(each): _Kinds(each) for each in shorter}
    others = [known[id(each)] for each in shorter]
    return tuple(
        _one_class(timeline, index, device, kinds, kept, others)
        for index in range(len(timeline.program.classes))
    )


def _one_class(
    timeline: Timeline, index: int, device: Device, kinds: _Kinds, kept: KeptReserves,
    others: Sequence[_Kinds],
) -> ClassMemory:  # fmt: skip
    rank_class = timeline.program.classes[index]
    device = rank_class.device or device
    time_s, owner_bytes = _held_by_owner(timeline, index, kinds)
    allocated, peak_time_s, by_owner = _peak(rank_class.loading, time_s, owner_bytes)
    preallocated = timeline.program.preallocated & owner_bytes.keys()
    buffers_bytes = math.fsum(float(owner_bytes[owner].max()) for owner in preallocated)
    resident_bytes = total_bytes(rank_class.resident) + buffers_bytes
    outside = {"context": device.context_bytes, **timeline.program.outside}
    outside_bytes = math.fsum(outside.values())
    settings = timeline.program.allocator
    reserved = Reserved.mean(
        reserved_memory(
            exchanges,
            settings,
            kept,
            resident_bytes=resident_bytes - total_bytes(rank_class.first_states),
            allocated_bytes=allocated,
            least_bytes=allocated * (1 + least_unused_share(settings)),
            room_bytes=device.memory_bytes - outside_bytes,
        )
        for exchanges in in_several_orders(
            kinds.steps(index), [each.steps(index) for each in others]
        )
    )
    return ClassMemory(
        stage=rank_class.stage,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved.free_bytes,
        peak_device_bytes=reserved.free_bytes + outside_bytes,
        least_device_bytes=reserved.pressed_bytes + outside_bytes,
        peak_time_s=peak_time_s,
        by_owner=by_owner,
        time_s=time_s,
        owner_bytes=owner_bytes,
        outside=outside,
        role=rank_class.role,
        capacity_bytes=device.memory_bytes,
    )


def _held_by_owner(
    timeline: Timeline, index: int, kinds: _Kinds
) -> tuple[NDArray[np.float64], dict[Owner, NDArray[np.float64]]]:
    """Moments [s], and what each owner of a class holds from each on [B].

    Buffers that are made before the step are as large throughout as they ever are.
    """
    booked, numbers = kinds.booked(index)
    time_s, changes = _changes(timeline, booked, _events_of(numbers, kinds))
    resident: dict[Owner, float] = {}
    for owner, num_bytes in timeline.program.classes[index].resident:
        resident[owner] = resident.get(owner, 0.0) + num_bytes
    owner_bytes = _curves(len(time_s), changes, resident)
    for owner in timeline.program.preallocated & owner_bytes.keys():
        owner_bytes[owner] = np.full(len(time_s), float(owner_bytes[owner].max()))
    return time_s, owner_bytes


def _peak(
    loading: Memory,
    time_s: NDArray[np.float64],
    owner_bytes: Mapping[Owner, NDArray[np.float64]],
) -> tuple[float, float, dict[Owner, float]]:
    """The most that is allocated [B], when [s], and whose it is; it may be while weights load."""
    total = sum(owner_bytes.values(), np.zeros(len(time_s)))
    peak = int(np.argmax(total))
    allocated = float(total[peak])
    if total_bytes(loading) > allocated:
        return total_bytes(loading), BEFORE_THE_STEP_S, dict(loading)
    by_owner = {owner: float(curve[peak]) for owner, curve in owner_bytes.items() if curve[peak]}
    return allocated, float(time_s[peak]), by_owner


def least_unused_share(settings: AllocatorSettings) -> float:
    """Reserved beyond allocated memory at least: blocks within an operation are not all known.

    Segments that expand leave no less: growing ones have holes, too (a run of FSDP that has them
    reserves more than it holds, pytorch/pytorch, issue 137151). They are no exception.
    XLA prints what its placement leaves unused when a program does not fit: 0.2 to 0.4 % of what
    it places, which is ignored (erfanzar/EasyDeL#142 and #166).
    """
    return 0.0 if settings.is_planned else _LEAST_UNUSED_SHARE


class Reserved(NamedTuple):
    """What the allocator of one rank holds at its most in a step.

    Attributes:
        free_bytes: Where the device has room for it, whatever there is [B].
        pressed_bytes: Where unused segments are returned before the device is full [B].
    """

    free_bytes: float
    pressed_bytes: float

    @classmethod
    def mean(cls, all_reserved: Iterable[Reserved]) -> Reserved:
        """The mean of several."""
        return cls(*map(fmean, zip(*all_reserved, strict=True)))


def reserved_memory(
    exchanges: Exchanges,
    settings: AllocatorSettings,
    kept: KeptReserves,
    *,
    resident_bytes: float,
    allocated_bytes: float,
    least_bytes: float,
    room_bytes: float,
) -> Reserved:
    """What is reserved on a device of any size, and on one with so much room.

    Args:
        exchanges: Blocks that come and go, in the order of the host.
        settings: How the allocator is set.
        kept: What others reserved.
        resident_bytes: What is there all the time. It counts as it is: it was taken first [B].
        allocated_bytes: In tensors at the peak [B].
        least_bytes: Reserved at least where there is room [B].
        room_bytes: What the device has for the allocator [B].
    """
    if settings.is_planned:
        return Reserved(allocated_bytes, allocated_bytes)
    replayed = partial(
        kept.reserved_bytes, exchanges, settings, steps=_STEPS,
        collects_above_bytes=settings.collects_above_share * room_bytes - resident_bytes,
    )  # fmt: skip
    # What fits and is surely less than the least need not be known.
    least_asked = least_bytes - resident_bytes if least_bytes <= room_bytes else -math.inf
    pressed = replayed(least_bytes=least_asked)
    free = max(resident_bytes + pressed, least_bytes)
    if free <= room_bytes:
        return Reserved(free, free)
    # Blocks that linger only where there is room are the one other thing that a limit changes.
    lingers = any(each.lingers for each in exchanges.distinct)
    if lingers or resident_bytes + pressed > room_bytes:
        pressed = replayed(room_bytes=room_bytes - resident_bytes)
    return Reserved(free, max(resident_bytes + pressed, allocated_bytes))


def _booked(program: Program, index: int) -> list[int]:
    """Ids of the operations whose memory one class books, as its host issues them.

    What a transfer takes is booked where it starts from.
    """
    classes, operations = program.classes, program.operations
    stage = classes[index].stage
    ids = set[int]().union(*[program.lanes.get((index, stream), ()) for stream in Stream])
    of_stage = {n for n, each in enumerate(classes) if each.stage == stage}
    return [i for i in sorted(ids) if operations[i].lanes[0][0] in of_stage]


class _Kinds:
    """Operations that do the same with memory, told apart; few of those of a program differ.

    Attributes:
        program: Whose operations.
        operations: One of each kind.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._same: dict[tuple[object, ...], int] = {}
        """By the identity of their blocks: most are one object."""
        self._equal: dict[tuple[object, ...], int] = {}
        self._exchanges: dict[int, tuple[int, ...]] = {}
        self._booked: dict[int, tuple[list[int], list[int]]] = {}
        self._numbers: dict[Exchange, int] = {}
        self._events: dict[int, list[tuple[bool, int, float]]] = {}
        self.operations: list[Operation] = []

    def of(self, operation: Operation) -> int:
        """The kind of an operation."""
        stream = operation.lanes[0][1]
        same = (
            id(operation.turns), id(operation.frees), id(operation.holds), id(operation.takes),
            id(operation.gives), id(operation.lingers), id(operation.leaves),
            id(operation.by_unit), stream,
        )  # fmt: skip
        kind = self._same.get(same)
        if kind is None:
            blocks = (
                operation.turns, operation.frees, operation.holds, operation.takes,
                operation.gives, operation.lingers, operation.leaves, operation.by_unit,
            )  # fmt: skip
            kind = self._equal.setdefault((*blocks, stream), len(self.operations))
            if kind == len(self.operations):
                self.operations.append(operation)
            self._same[same] = kind
        return kind

    def booked(self, index: int) -> tuple[list[int], list[int]]:
        """Operations whose memory one class books, and the kind of each."""
        if index not in self._booked:
            operations, ids = self.program.operations, _booked(self.program, index)
            self._booked[index] = ids, [self.of(operations[i]) for i in ids]
        return self._booked[index]

    def exchanges(self, kind: int) -> tuple[int, ...]:
        """Numbers of the blocks that an operation takes, and that are free after it."""
        if kind not in self._exchanges:
            exchanges = _exchanges_of(self.operations[kind], self.program)
            self._exchanges[kind] = tuple(map(self.number, exchanges))
        return self._exchanges[kind]

    def number(self, exchange: Exchange) -> int:
        """Of equal exchanges."""
        return self._numbers.setdefault(exchange, len(self._numbers))

    def numbered(self, *orders: Sequence[int]) -> Exchanges:
        """Exchanges before the first step, of that and of each later one, by these numbers."""
        distinct = dict.fromkeys(chain(*orders))
        places = {number: place for place, number in enumerate(distinct)}
        before, first, later = (tuple(map(places.__getitem__, order)) for order in orders)
        known = [*self._numbers]
        return Exchanges(tuple([known[number] for number in distinct]), before, first, later)

    def steps(self, index: int) -> Exchanges:
        """Blocks of steps of one class, of which the first one's update makes optimizer states."""
        program, rank_class = self.program, self.program.classes[index]
        booked, numbers = self.booked(index)
        started = _exchange(rank_class.starting, rank_class.starting, program)
        kinds = [program.operations[i].kind for i in booked]
        update = kinds.index(Kind.OPTIMIZER) if Kind.OPTIMIZER in kinds else len(booked)
        found = {kind: self.exchanges(kind) for kind in dict.fromkeys(numbers)}
        before, after = (
            [*chain.from_iterable(map(found.__getitem__, some))]
            for some in (numbers[:update], numbers[update:])
        )
        states = rank_class.first_states
        made = [self.number(_exchange(states, (), program))] if states else []
        return self.numbered([self.number(started)], before + made + after, before + after)

    def events(self, kind: int) -> list[tuple[bool, int, float]]:
        """What an operation takes and gives back, in order, as rows of events."""
        if kind not in self._events:
            self._events[kind] = _events(self.operations[kind])
        return self._events[kind]


def _exchanges_of(operation: Operation, program: Program) -> Iterator[Exchange]:
    """Blocks that one operation takes, and that are free after it, in turn."""
    for turn in operation.turns:
        yield _exchange(turn, turn, program)
    if operation.frees:
        yield _exchange((), operation.frees, program)
    holds, takes, gives = operation.holds, operation.takes, operation.gives
    if operation.by_unit:
        yield _exchange(_taken_before(operation), (), program)
        for unit in operation.by_unit:
            yield _exchange(unit.takes, (), program)
            for turn in filter(None, unit.turns):
                yield _exchange(turn, turn, program)
        takes = ()
    if holds or takes or gives or operation.lingers:
        kept = "lingers" if operation.lanes[0][1] is Stream.COMPUTE else "buffers"
        lingers = _sizes(operation.lingers, program)
        yield _exchange(takes + holds, holds + gives, program)._replace(**{kept: lingers})
    if operation.leaves:
        yield _exchange(operation.leaves, (), program)


def _taken_before(operation: Operation) -> Memory:
    """What an operation takes before its first unit keeps anything."""
    kept = Counter(block for unit in operation.by_unit for block in unit.takes)
    others = []
    for block in operation.takes:
        if kept[block]:
            kept[block] -= 1
        else:
            others.append(block)
    return tuple(others)


def _exchange(takes: Memory, gives: Memory, program: Program) -> Exchange:
    return Exchange(
        _sizes(takes, program),
        _sizes(gives, program),
        _sizes(takes, program, own_stream=True),
        _sizes(gives, program, own_stream=True),
    )


def _sizes(memory: Memory, program: Program, *, own_stream: bool = False) -> tuple[float, ...]:
    preallocated, apart = program.preallocated, program.own_stream
    if not (preallocated or apart):
        return () if own_stream else tuple([size for _, size in memory])
    return tuple(
        size
        for owner, size in memory
        if owner not in preallocated and (owner in apart) == own_stream
    )


def _changes(
    timeline: Timeline, booked: Sequence[int], booked_events: tuple[NDArray[np.int64], _Events]
) -> tuple[NDArray[np.float64], dict[Owner, NDArray[np.float64]]]:
    """The start of the step and every moment at which memory changes, and by how much.

    Memory given back at one moment is free before more is taken at that moment, but an
    operation that takes no time holds what it holds for that moment.

    Returns:
        Moments of shape (changes,) [s], and for each owner what it takes or gives back at
        each of them, of the same shape [B].
    """
    start_s, end_s = timeline.operation_start_s[booked], timeline.operation_end_s[booked]
    operation, events = booked_events
    times = np.where(events.is_end, end_s[operation], start_s[operation])
    # Blocks that an operation without duration gives back are freed after all are taken.
    orders = np.where(events.is_end, np.where(end_s > start_s, 0, 2)[operation], 1)
    order = np.lexsort((np.append(-1, orders), np.append(0.0, times)))
    owner = np.append(-1, events.owner)[order]
    change_bytes = np.append(0.0, events.num_bytes)[order]
    present = set(events.owner.tolist())
    changes = {
        name: np.where(owner == number, change_bytes, 0.0)
        for name, number in _OWNERS.items()
        if number in present
    }
    return np.append(0.0, times)[order], changes


class _Events(NamedTuple):
    """What is taken, or given back where negative, columnar; each of shape (events,).

    Attributes:
        is_end: Whether it happens at the end of its operation, not at the start.
        owner: Number of the owner.
        num_bytes: How much [B].
    """

    is_end: NDArray[np.bool_]
    owner: NDArray[np.int64]
    num_bytes: NDArray[np.float64]


def _events_of(kinds_of: Sequence[int], kinds: _Kinds) -> tuple[NDArray[np.int64], _Events]:
    """Which of some operations, of these kinds, each event belongs to, and the events."""
    present = {kind: n for n, kind in enumerate(dict.fromkeys(kinds_of))}
    numbers = np.asarray([present[kind] for kind in kinds_of], dtype=np.int64)
    events = [kinds.events(kind) for kind in present]
    counts = np.asarray([len(each) for each in events], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    count = counts[numbers]
    position = np.repeat(np.arange(len(numbers)), count)
    row = np.arange(len(position)) + np.repeat(firsts[numbers] - (np.cumsum(count) - count), count)
    table = [event for each in events for event in each]
    is_end, owner, num_bytes = zip(*table, strict=True) if table else ((), (), ())
    return position, _Events(
        np.asarray(is_end, dtype=np.bool_)[row],
        np.asarray(owner, dtype=np.int64)[row],
        np.asarray(num_bytes, dtype=np.float64)[row],
    )


def _events(operation: Operation) -> list[tuple[bool, int, float]]:
    """What an operation takes and gives back, in order, as rows of events."""
    events: list[tuple[bool, int, float]] = []
    for turn in operation.turns:
        held = _by_owner(turn)
        events += [(False, owner, size) for owner, size in held]
        events += [(False, owner, -size) for owner, size in held]
    taken = [*_by_owner(operation.takes), *_by_owner(operation.holds)]
    given = [*_by_owner(operation.holds), *_by_owner(operation.gives)]
    events += [(False, owner, -size) for owner, size in _by_owner(operation.frees)]
    events += [(False, owner, size) for owner, size in taken]
    events += [(True, owner, -size) for owner, size in given]
    return events + [(True, owner, size) for owner, size in _by_owner(operation.leaves)]


def _by_owner(blocks: Memory) -> list[tuple[int, float]]:
    totals: dict[int, float] = {}
    for owner, size in blocks:
        number = _NUMBERS[owner]
        totals[number] = totals.get(number, 0.0) + size
    return list(totals.items())


def _curves(
    moments: int, changes: Mapping[Owner, NDArray[np.float64]], resident: Mapping[Owner, float]
) -> dict[Owner, NDArray[np.float64]]:
    """Bytes of each owner from each moment on; constant where nothing changes."""
    curves = {}
    for owner in _OWNERS:
        held = resident.get(owner, 0.0)
        if not held and owner not in changes:
            continue
        curve = held + np.cumsum(changes[owner]) if owner in changes else np.full(moments, held)
        if curve.any():
            curves[owner] = np.maximum(curve, 0.0)
    return curves


def peak_operation(timeline: Timeline, rank_class: int, time_s: float) -> Operation | None:
    """What the class computes at a moment; None where it waits."""
    for index in timeline.program.lanes.get((rank_class, Stream.COMPUTE), []):
        if timeline.operation_start_s[index] <= time_s < timeline.operation_end_s[index]:
            return timeline.program.operations[index]
    return None


def peak_moment(timeline: Timeline, rank_class: int, time_s: float) -> str:
    """A moment in words, such as ``backward of microbatch 3, layers 16 to 31``."""
    if time_s == BEFORE_THE_STEP_S:
        return "loading of the weights"
    operation = peak_operation(timeline, rank_class, time_s)
    if operation is None:
        return "between passes"
    words = str(operation.kind).replace("_", " ")
    if operation.microbatch >= 0:
        words += f" of microbatch {operation.microbatch}"
    first, end = operation.layers
    if first < 0:
        return words
    if first == end:
        return f"{words}, head or loss"
    return (
        f"{words}, layer {first}" if end == first + 1 else f"{words}, layers {first} to {end - 1}"
    )
