"""Where is an allocator, and is it where it was before, whatever lies where in memory?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from simulator.results.allocator.caching_allocator import CachingAllocator, Stack
from simulator.results.allocator.free_blocks import NOTHING, Blocks

_STAYS = -2
"""Stands for a neighbour that stays where it is."""


class State(NamedTuple):
    """All that decides what an allocator does while some blocks stay where they are.

    Where a segment lies decides nothing, nor which block stays beside one that comes and goes:
    only the latter in the order in which they are looked at, and which of them are neighbours.

    Attributes:
        reserved_bytes: In segments [B].
        heights: Blocks that are taken, by size.
        floors: How many of them stay.
        counts: Of the others, free ones by pool and taken ones by size, how many there are up to
            each group: parts of segments, and entries of ``segments``.
        segments: Whole segments among them, three numbers for those that follow each other:
            how many parts come before, of which size they are [B], and how many.
        sizes: Of parts of segments, group after group [B].
        before, after: Places among these of the neighbours of each.
    """

    reserved_bytes: int
    heights: list[int]
    floors: list[int]
    counts: list[int]
    segments: list[int]
    sizes: list[int]
    before: list[int]
    after: list[int]


@dataclass(frozen=True)
class Moment:
    """Where an allocator is between two exchanges.

    Attributes:
        state: What decides all that follows.
        blocks: Those parts of segments that come and go.
        before, after: Those that stay beside some of them, by the place of these.
    """

    state: State
    blocks: list[int]
    before: dict[int, int]
    after: dict[int, int]


def moment(allocator: CachingAllocator, stacks: Sequence[Stack], floors: list[int]) -> Moment:
    """Where an allocator is now.

    Args:
        allocator: Which one.
        stacks: Blocks that are taken.
        floors: How many of each stack stay.
    """
    return _moment(allocator, stacks, floors, _found(allocator, stacks, floors))


def moment_like(
    state: State, allocator: CachingAllocator, stacks: Sequence[Stack], floors: list[int]
) -> Moment | None:
    """The same if the allocator is in a state: most differ in what is simplest to see."""
    if floors != state.floors:
        return None
    found = _found(allocator, stacks, floors)
    if (found.counts, found.segments) != (state.counts, state.segments):
        return None
    now = _moment(allocator, stacks, floors, found)
    return now if now.state == state else None


class _Found(NamedTuple):
    """What comes and goes: parts of segments, and of a state ``counts`` and ``segments``."""

    parts: list[int]
    counts: list[int]
    segments: list[int]


def _found(allocator: CachingAllocator, stacks: Sequence[Stack], floors: list[int]) -> _Found:
    found = parts, counts, segments = _Found([], [], [])
    for free in allocator.pools():
        for size, each in free:
            if each < 0:
                segments += (len(parts), size, -each)
            else:
                parts.append(each)
        counts += (len(parts), len(segments))
    size_bytes = allocator.blocks.size_bytes
    befores, afters = allocator.blocks.before, allocator.blocks.after
    for stack, floor in zip(stacks, floors, strict=True):
        for block, equal in groupby(stack.taken[floor:] if floor else stack.taken):
            if befores[block] == afters[block]:
                segments += (len(parts), size_bytes[block], sum(1 for _ in equal))
            else:
                parts.append(block)
        counts += (len(parts), len(segments))
    return found


def _moment(
    allocator: CachingAllocator, stacks: Sequence[Stack], floors: list[int], found: _Found
) -> Moment:
    parts, counts, segments = found
    blocks = allocator.blocks
    place = {block: n for n, block in enumerate(parts)}
    place[NOTHING] = NOTHING
    before, after = (
        [blocks.before[block] for block in parts],
        [blocks.after[block] for block in parts],
    )
    state = State(
        allocator.reserved_bytes,
        [len(stack.taken) for stack in stacks],
        floors,
        counts,
        segments,
        [blocks.size_bytes[block] for block in parts],
        [place.get(each, _STAYS) for each in before],
        [place.get(each, _STAYS) for each in after],
    )
    staying = [
        {n: each for n, each in enumerate(side) if each not in place} for side in (before, after)
    ]
    return Moment(state, parts, *staying)


def without_segments(state: State, some: Mapping[int, int]) -> State | None:
    """A state of one pool without so many free segments of some sizes.

    None where there are not as many, or where other free blocks are as large.
    """
    parts, end = state.counts[:2]
    left = dict(some)
    segments: list[int] = []
    for n in range(0, end, 3):
        before, size, count = state.segments[n : n + 3]
        less = left.pop(size, 0)
        if less > count:
            return None
        if less < count:
            segments += (before, size, count - less)
    if left or not some.keys().isdisjoint(state.sizes[:parts]):
        return None
    fewer = end - len(segments)
    counts = [count - fewer if n % 2 else count for n, count in enumerate(state.counts)]
    return state._replace(
        reserved_bytes=state.reserved_bytes - sum(size * n for size, n in some.items()),
        counts=counts,
        segments=segments + state.segments[end:],
    )


def move_on(blocks: Blocks, past: Moment, now: Moment, periods: int) -> None:
    """Put blocks where they are after so many more periods like the one since a past moment.

    What came and went beside one block that stays does so beside another a period later, and
    after each further period moves on from there in the same way.
    """
    for was, neighbours, near, far in (
        (past.before, now.before, blocks.before, blocks.after),
        (past.after, now.after, blocks.after, blocks.before),
    ):
        moved = _repeated({was[n]: block for n, block in neighbours.items()}, periods)
        for n, neighbour in neighbours.items():
            block, beside = now.blocks[n], moved[neighbour]
            near[block], far[beside] = beside, block


def _repeated(moves: Mapping[int, int], times: int) -> dict[int, int]:
    """Where each block comes to by so many equal moves."""
    moved = {block: block for block in moves}
    while times:
        if times % 2:
            moved = {block: moves[place] for block, place in moved.items()}
        moves = {block: moves[place] for block, place in moves.items()}
        times //= 2
    return moved
