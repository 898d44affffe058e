"""How much memory does each rank class hold, when, and for whom?

Operations take memory at their start and give it back at their end; what they only hold
lives in between. The curve of each owner is the running sum of those events on top of
what is resident.

Reserved memory is the allocated peak rounded as a caching allocator does it, with the
share that fragmentation leaves unused; device memory adds the context and libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import Timeline
from simulator.program.ir import Owner, Stream
from simulator.results.step import ClassMemory
from simulator.spec.hardware import Device

_FRAGMENTATION_SHARE = 0.04
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
    total = sum(owner_bytes.values(), np.zeros(len(time_s)))
    peak = int(np.argmax(total))
    by_owner = {owner: float(curve[peak]) for owner, curve in owner_bytes.items() if curve[peak]}
    allocated = float(total[peak])
    reserved = allocated * (1 + _FRAGMENTATION_SHARE)
    return ClassMemory(
        stage=rank_class.stage,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=reserved + device.context_bytes,
        peak_time_s=float(time_s[peak]),
        by_owner=by_owner,
        time_s=time_s,
        owner_bytes=owner_bytes,
    )


def _events(timeline: Timeline, index: int) -> list[_Event]:
    events = []
    program = timeline.program
    stage = program.classes[index].stage
    ids = {i for stream in Stream for i in program.lanes.get((index, stream), ())}
    for operation_id in ids:
        operation = program.operations[operation_id]
        # What a transfer takes is booked where it starts from.
        if program.classes[operation.lanes[0][0]].stage != stage:
            continue
        start = float(timeline.operation_start_s[operation_id])
        end = float(timeline.operation_end_s[operation_id])
        events += [_Event(start, 1, owner, size) for owner, size in operation.takes]
        events += [_Event(start, 1, owner, size) for owner, size in operation.holds]
        order = 0 if end > start else 2
        events += [_Event(end, order, owner, -size) for owner, size in operation.holds]
        events += [_Event(end, order, owner, -size) for owner, size in operation.gives]
    return sorted(events, key=lambda event: (event.time_s, event.order))


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
