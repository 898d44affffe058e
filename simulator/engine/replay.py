"""When does everything happen if nothing is ever in the way of anything else?

The longest path over the program: every operation starts as soon as it heads all its
lanes and its dependencies have ended. Shared ports and streaming multiprocessors are
ignored, so the answer is a lower bound of the simulation's (:mod:`simulator.engine.des`)
and equals it where nothing is shared.
"""

from __future__ import annotations

import itertools

import numpy as np

from simulator.engine.dependencies import Dependencies, deadlock_error, dependencies
from simulator.engine.timeline import Timeline
from simulator.program.ir import Program

_UNKNOWN_S = -1.0
"""Stands for the end of what has not been visited [s]."""


def replay(program: Program) -> Timeline:
    """Timeline of the program without contention.

    Cost is one visit per operation, lane and dependency, and one more where a visit came too early.
    """
    seconds = [operation.work.seconds for operation in program.operations]
    waits_for = [operation.after for operation in program.operations]
    for lane in program.lanes.values():
        for before, index in itertools.pairwise(lane):
            waits_for[index] += (before,)
    start_s = [0.0] * len(seconds)
    end_s = [_UNKNOWN_S] * len(seconds)
    for operation in range(len(seconds)):
        visited = [operation] if end_s[operation] == _UNKNOWN_S else []
        while visited:
            index, start = visited[-1], 0.0
            for before in waits_for[index]:
                end = end_s[before]
                if end == _UNKNOWN_S:
                    visited.append(before)
                    break
                if end > start:  # noqa: PLR1730 - a call costs more
                    start = end
            else:
                visited.pop()
                start_s[index], end_s[index] = start, start + seconds[index]
            if len(visited) > len(seconds):
                # It waits for itself: this says so.
                _runnable(program)
    return Timeline(program, np.asarray(start_s), np.asarray(end_s))


def remaining_s(program: Program, known: Dependencies | None = None) -> list[float]:
    """How long the program goes on from the start of each operation at least [s].

    The longest of them is the replayed step, but for rounding. ``known`` are the program's
    dependencies, where somebody has them.
    """
    order, followers = _runnable(program, known)
    operations = program.operations
    left_s = [0.0] * len(operations)
    for index in reversed(order):
        behind_s = 0.0
        for follower in followers[index]:
            if left_s[follower] > behind_s:  # noqa: PLR1730 - a call costs more
                behind_s = left_s[follower]
        left_s[index] = operations[index].work.seconds + behind_s
    return left_s


def _runnable(
    program: Program, known: Dependencies | None = None
) -> tuple[list[int], list[list[int]]]:
    """The operations in an order in which each can run, and who waits for each."""
    counts, followers = known or dependencies(program)
    waits_for = counts.copy()
    ready = [index for index, count in enumerate(waits_for) if count == 0]
    order = []
    while ready:
        index = ready.pop()
        order.append(index)
        for follower in followers[index]:
            waits_for[follower] -= 1
            if waits_for[follower] == 0:
                ready.append(follower)
    if len(order) < len(program.operations):
        raise deadlock_error(program, [i for i, count in enumerate(waits_for) if count])
    return order, followers


def is_timed_alike(one: Program, other: Program) -> bool:
    """Whether engines give both programs the same times to the last bit.

    They do if they have the same operations in the same order, of the same durations, on the same
    ports, and if equal operations share their work in the same way, by which engines know what
    repeats itself. What they hold in memory may differ.
    """
    if (
        len(one.operations) != len(other.operations)
        or [*one.lanes.items()] != [*other.lanes.items()]
        or one.ports != other.ports
        or len(one.classes) != len(other.classes)
        or one.device != other.device
        or one.common != other.common
        or any(
            (mine.port_shares, mine.device) != (theirs.port_shares, theirs.device)
            for mine, theirs in zip(one.classes, other.classes, strict=True)
        )
    ):
        return False
    # Operations that do the same share their work, so few pairs of works are different ones.
    known: dict[tuple[int, int], bool] = {}
    for mine, theirs in zip(one.operations, other.operations, strict=True):
        if (
            mine.lanes != theirs.lanes or mine.after != theirs.after
            or mine.kind is not theirs.kind or mine.chunk != theirs.chunk
        ):  # fmt: skip
            return False
        pair = (id(mine.work), id(theirs.work))
        if pair not in known:
            known[pair] = (
                mine.work.seconds == theirs.work.seconds
                and mine.work.traffic == theirs.work.traffic
            )
        if not known[pair]:
            return False
    return len({mine for mine, _ in known}) == len(known) == len({theirs for _, theirs in known})
