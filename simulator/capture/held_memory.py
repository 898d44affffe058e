"""Who holds how much memory when, in a captured step?

Blocks come and go in the order in which the host asks for them, as torch's caching allocator
serves it; their times are those of the compute stream. *Allocated* is the sum of the blocks,
*reserved* what the allocator holds for them when it serves the same requests, *device* adds the
driver's context and the communicators' buffers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.capture.captured_program import RankCosts
from simulator.capture.rescale import Scale
from simulator.capture.reserved_by_history import reserved_by_history_bytes
from simulator.capture.table import BlockOwner, Capture, RankTable
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.engine.timeline import Timeline
from simulator.program.ir import Owner
from simulator.program.states.library_workspace import THREADS_WITH_PRODUCTS, matrix_workspace_bytes
from simulator.program.states.outside_memory import communicator_bytes
from simulator.results.allocator.exchanges import Exchange, KeptReserves, told_apart
from simulator.results.memory import Reserved, reserved_memory
from simulator.results.step import ClassMemory

_OWNERS: Mapping[BlockOwner, Owner] = {
    BlockOwner.PARAMETER: Owner.WEIGHTS,
    BlockOwner.BUFFER: Owner.WEIGHTS,
    BlockOwner.GRADIENT: Owner.GRADIENTS,
    BlockOwner.OPTIMIZER_STATE: Owner.OPTIMIZER_STATES,
    BlockOwner.ACTIVATION: Owner.ACTIVATIONS,
    BlockOwner.RECOMPUTED: Owner.RECOMPUTE,
    BlockOwner.TEMPORARY: Owner.TEMPORARIES,
    BlockOwner.GATHERED_PARAMETER: Owner.GATHERED_WEIGHTS,
    BlockOwner.COMMUNICATION: Owner.COMMUNICATION,
}


def captured_memory(
    capture: Capture,
    ranks: tuple[RankCosts, ...],
    timeline: Timeline,
    profile: HardwareProfile,
    scale: Scale,
) -> tuple[ClassMemory, ...]:
    """Memory of every captured rank over the step."""
    return tuple(
        _rank_memory(stage, capture, ranks[stage], timeline, profile, scale)
        for stage in range(len(capture.tables))
    )


def changes_bytes(table: RankTable, shrink: float) -> NDArray[np.float64]:
    """What is taken, or given back where negative, with shards of another number of data ranks.

    Shape (changes,) [B].
    """
    return _shrunk(table, table.block, shrink) * table.change_bytes


def _shrunk(table: RankTable, block: NDArray[np.int64], shrink: float) -> NDArray[np.float64]:
    return np.where(table.block_shards[block] > 1, shrink, 1.0)


def _rank_memory(
    stage: int,
    capture: Capture,
    costs: RankCosts,
    timeline: Timeline,
    profile: HardwareProfile,
    scale: Scale,
) -> ClassMemory:
    table, device = capture.tables[stage], profile.device
    change = changes_bytes(table, scale.shrink)
    numbers = np.asarray([list(Owner).index(_OWNERS[owner]) for owner in BlockOwner])
    owners = numbers[table.block_owner][table.block]
    curves = {
        owner: np.maximum(np.cumsum(np.where(owners == number, change, 0.0)), 0.0)
        for number, owner in enumerate(Owner)
        if (owners == number).any()
    }
    workspace_bytes = matrix_workspace_bytes(device)
    workspaces_bytes = THREADS_WITH_PRODUCTS * workspace_bytes
    if workspaces_bytes:
        curves[Owner.WORKSPACES] = np.full(len(change), workspaces_bytes)
    held = np.cumsum(change) + workspaces_bytes
    peak = int(np.argmax(held))
    time_s = _times(table, costs, timeline)
    sizes = _group_sizes(capture, table, scale)
    groups = {f"communicator: group {group}": ranks for group, ranks in sizes.items()}
    common = profile.common
    communicators = {name: communicator_bytes(ranks, common) for name, ranks in groups.items()}
    outside = {"context": device.context_bytes, **communicators}
    outside_bytes = math.fsum(outside.values())
    reserved = _reserved(
        table, change, scale, workspace_bytes, room_bytes=device.memory_bytes - outside_bytes
    )
    return ClassMemory(
        stage=stage,
        peak_allocated_bytes=float(held[peak]),
        peak_reserved_bytes=reserved.free_bytes,
        peak_device_bytes=reserved.free_bytes + outside_bytes,
        least_device_bytes=reserved.pressed_bytes + outside_bytes,
        peak_time_s=float(time_s[peak]),
        by_owner={owner: float(curve[peak]) for owner, curve in curves.items() if curve[peak]},
        time_s=time_s,
        owner_bytes=curves,
        outside=outside,
        capacity_bytes=device.memory_bytes,
    )


def _reserved(
    table: RankTable,
    change: NDArray[np.float64],
    scale: Scale,
    workspace_bytes: float,
    *,
    room_bytes: float,
) -> Reserved:
    """What the allocator holds for these changes of memory, with and without a limit."""
    workspaces_bytes = THREADS_WITH_PRODUCTS * workspace_bytes
    allocated_bytes = float(np.cumsum(change).max()) + workspaces_bytes
    if len(table.past_block):
        past = _shrunk(table, table.past_block, scale.shrink) * table.past_bytes
        replayed = partial(
            reserved_by_history_bytes, table, past, change, workspace_bytes=workspace_bytes
        )
        free_bytes = max(allocated_bytes, replayed())
        fits = free_bytes <= room_bytes
        pressed_bytes = free_bytes if fits else replayed(room_bytes=room_bytes)
        return Reserved(free_bytes, max(allocated_bytes, pressed_bytes))
    comes_later = (table.moment > 0) | (change < 0)
    at_start = int(np.argmax(comes_later)) if comes_later.any() else len(change)
    started, exchanges = _repeatable(change[:at_start], change[at_start:])
    return reserved_memory(
        told_apart(exchanges, before=[started]),
        AllocatorSettings(),
        KeptReserves(),
        resident_bytes=workspaces_bytes,
        least_bytes=allocated_bytes,
        allocated_bytes=allocated_bytes,
        room_bytes=room_bytes,
    )


def _times(table: RankTable, costs: RankCosts, timeline: Timeline) -> NDArray[np.float64]:
    """When each change happens: what is taken as its kernel starts, what is given as it ends."""
    operations = costs.operation
    start_s = timeline.operation_start_s[operations]
    stretch = np.divide(
        timeline.operation_end_s[operations] - start_s,
        [timeline.program.operations[i].work.seconds or 1.0 for i in operations.tolist()],
    )
    begins_s = start_s + costs.offset_s * stretch
    ends_s = begins_s + costs.seconds * stretch
    on_compute = table.stream == 0
    begins_s, ends_s = (
        np.maximum.accumulate(np.where(on_compute, times, 0.0)) for times in (begins_s, ends_s)
    )
    before = table.moment - 1
    moment_s = np.where(table.change_bytes > 0, begins_s[before], ends_s[before])
    return np.maximum.accumulate(np.where(before < 0, 0.0, moment_s))


def _repeatable(
    start: NDArray[np.float64], changes: NDArray[np.float64]
) -> tuple[Exchange, list[Exchange]]:
    """What is held when the step begins, and all blocks that come and go in it, one by one.

    A last exchange leaves what is held as it was, so that the step can be run again.
    """
    exchanges = [
        Exchange((size,), ()) if size > 0 else Exchange((), (-size,)) for size in changes.tolist()
    ]
    taken = Counter(size for size in changes.tolist() if size > 0)
    given = Counter(-size for size in changes.tolist() if size < 0)
    gives, takes = (tuple(each.elements()) for each in (taken - given, given - taken))
    return Exchange(tuple(start.tolist()), ()), [*exchanges, Exchange(takes, gives)]


def _group_sizes(capture: Capture, table: RankTable, scale: Scale) -> dict[int, int]:
    """Ranks of every communicator that the rank uses, by the number of its group."""
    sizes: dict[int, int] = {}
    for each in table.exchanges:
        size = len(capture.groups[each.group])
        sizes[each.group] = round(size * scale.factor) if each.axis == scale.axis else size
    return sizes
