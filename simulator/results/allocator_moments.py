"""Where is an allocator, and is it where it was before, whatever lies where in memory?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from simulator.results.caching_allocator import CachingAllocator
from simulator.results.free_blocks import Block

_STAYS = -1
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
        before, after: Numbers of the neighbours of each; None at the ends of its segment.
    """

    reserved_bytes: int
    heights: list[int]
    floors: list[int]
    counts: list[int]
    segments: list[int]
    sizes: list[int]
    before: list[int | None]
    after: list[int | None]


@dataclass(frozen=True)
class Moment:
    """Where an allocator is between two exchanges.

    Attributes:
        state: What decides all that follows.
        blocks: Those parts of segments that come and go, by their number.
        before, after: Those that stay beside some of them, by the number of these.
    """

    state: State
    blocks: list[Block]
    before: dict[int, Block]
    after: dict[int, Block]


def moment(allocator: CachingAllocator, taken: Sequence[list[Block]], floors: list[int]) -> Moment:
    """Where an allocator is now.

    Args:
        allocator: Which one.
        taken: Blocks that are taken, by size, the last one last.
        floors: How many of them stay.
    """
    blocks: list[Block] = []
    segments: list[int] = []
    counts: list[int] = []
    for free in allocator.pools():
        for size, each in free:
            if isinstance(each, int):
                segments += (len(blocks), size, each)
            else:
                blocks.append(each)
        counts += (len(blocks), len(segments))
    for stack, floor in zip(taken, floors, strict=True):
        for block, equal in groupby(stack[floor:] if floor else stack):
            if block.before is block.after:
                segments += (len(blocks), block.num_bytes, sum(1 for _ in equal))
            else:
                blocks.append(block)
        counts += (len(blocks), len(segments))
    number = {id(block): n for n, block in enumerate(blocks)}
    before, after = [block.before for block in blocks], [block.after for block in blocks]
    state = State(
        allocator.reserved_bytes,
        [*map(len, taken)],
        floors,
        counts,
        segments,
        [block.num_bytes for block in blocks],
        _numbers(before, number),
        _numbers(after, number),
    )
    return Moment(state, blocks, _staying(before, number), _staying(after, number))


def _numbers(neighbours: list[Block | None], number: Mapping[int, int]) -> list[int | None]:
    return [None if b is None else number.get(id(b), _STAYS) for b in neighbours]


def _staying(neighbours: list[Block | None], number: Mapping[int, int]) -> dict[int, Block]:
    return {n: b for n, b in enumerate(neighbours) if b is not None and id(b) not in number}


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


def move_on(past: Moment, now: Moment, periods: int) -> None:
    """Put blocks where they are after so many more periods like the one since a past moment.

    What came and went beside one block that stays does so beside another a period later, and
    after each further period moves on from there in the same way.
    """
    for was, neighbours, forwards in (
        (past.before, now.before, False),
        (past.after, now.after, True),
    ):
        moved = _repeated({was[n]: block for n, block in neighbours.items()}, periods)
        for n, neighbour in neighbours.items():
            block, beside = now.blocks[n], moved[neighbour]
            if forwards:
                block.after, beside.before = beside, block
            else:
                block.before, beside.after = beside, block


def _repeated(moves: Mapping[Block, Block], times: int) -> dict[Block, Block]:
    """Where each block comes to by so many equal moves."""
    moved = {block: block for block in moves}
    while times:
        if times % 2:
            moved = {block: moves[place] for block, place in moved.items()}
        moves = {block: moves[place] for block, place in moves.items()}
        times //= 2
    return moved
