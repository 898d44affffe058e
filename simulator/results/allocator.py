"""How much memory does PyTorch's caching allocator reserve for a sequence of blocks?

Over a step, blocks are taken and given back one by one, in the order of the operations.
Microbatches repeat themselves: where the allocator is, after a number of operations, exactly where
it was before them, any further equal ones change nothing and are passed over.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.caching_allocator import Block, CachingAllocator, Request, request


class Exchange(NamedTuple):
    """Blocks that an operation takes, and those that are free after it [B].

    Attributes:
        takes, gives: Of the compute stream.
        own_stream_takes, own_stream_gives: Of another stream, whose blocks serve no other.
        buffers: Of a third stream, that weights are gathered into, taken and given back.
        lingers: Of the compute stream, taken before the others and free after them where the
            device has room; one that is full waits until they are free.
    """

    takes: tuple[float, ...]
    gives: tuple[float, ...]
    own_stream_takes: tuple[float, ...] = ()
    own_stream_gives: tuple[float, ...] = ()
    buffers: tuple[float, ...] = ()
    lingers: tuple[float, ...] = ()


_Asked = tuple[float, int]
"""Size of a block [B], and the number of its stream."""


class _Requests(dict[_Asked, Request]):
    def __missing__(self, asked: _Asked) -> Request:
        made = self[asked] = request(asked[0], stream=asked[1])
        return made


def reserved_bytes(
    exchanges: Sequence[Exchange],
    settings: AllocatorSettings,
    *,
    steps: int = 1,
    started: Exchange | None = None,
    first: Sequence[Exchange] = (),
    room_bytes: float = math.inf,
    collects_above_bytes: float = math.inf,
) -> float:
    """The most that is reserved while blocks come and go [B].

    Args:
        exchanges: Of a step, in the order of the host. Of equal blocks the last one goes first.
        settings: How the allocator is set.
        steps: How often the step runs.
        started: What is taken and given back before the first.
        first: Of the first step, where it is unlike the others.
        room_bytes: What the device has; more is reserved only where nothing can be returned.
        collects_above_bytes: Reserved at most before what is unused for long is returned.
    """
    # Without a limit nothing is ever returned, so what one pool reserves is nothing to another.
    is_free = math.isinf(min(room_bytes, collects_above_bytes))
    limits = {"room_bytes": room_bytes, "collects_above_bytes": collects_above_bytes}
    before = [] if started is None else [started]
    # Equal exchanges are often one object, which is told by its identity far sooner.
    objects = {id(each): each for each in [*before, *first, *exchanges]}
    distinct: dict[Exchange, int] = {}
    number = {key: distinct.setdefault(each, len(distinct)) for key, each in objects.items()}
    begun, *orders = (
        [number[id(each)] for each in order] for order in (before, first or exchanges, exchanges)
    )
    most_bytes, requests = 0, _Requests()
    has_room = math.isinf(room_bytes)
    whole = [_asked(each, has_room=has_room) for each in distinct]
    present = {requests[one].pool for each in whole for takes in each for one in takes}
    for pools in [{pool} for pool in present] if is_free else [present]:
        parts = [
            tuple(tuple(one for one in many if requests[one].pool in pools) for many in both)
            for both in whole
        ]
        allocator = CachingAllocator(settings, **limits)
        _Replay(orders, begun, parts, requests, allocator).run_steps(steps)
        most_bytes += allocator.most_reserved_bytes
    return float(most_bytes)


_Part = tuple[tuple[_Asked, ...], ...]
"""Blocks that are taken, and those that are free after it."""


def _asked(exchange: Exchange, *, has_room: bool) -> _Part:
    takes, gives, own_stream_takes, own_stream_gives, buffers, lingers = exchange
    lingering = lingers if has_room else ()
    both = (
        (lingering + takes, own_stream_takes, buffers),
        (lingering + gives, own_stream_gives, buffers),
    )
    return tuple(
        tuple((size, stream) for stream, sizes in enumerate(streams) for size in sizes)
        for streams in both
    )


_STAYS = -1
"""Stands for a neighbour that stays where it is."""


class _State(NamedTuple):
    """All that decides what an allocator does while some blocks stay where they are.

    Where a segment lies decides nothing, nor which block stays beside one that comes and goes:
    only the latter in the order in which they are looked at, and which of them are neighbours.

    Attributes:
        reserved_bytes: In segments [B].
        heights: Blocks that are taken, by size.
        floors: How many of them stay.
        counts: Of the others, free ones by pool and taken ones by size, how many there are.
        sizes: Of these blocks, group after group [B].
        before, after: Numbers of the neighbours of each; None at the ends of its segment.
    """

    reserved_bytes: int
    heights: list[int]
    floors: list[int]
    counts: list[int]
    sizes: list[int]
    before: list[int | None]
    after: list[int | None]


@dataclass(frozen=True)
class _Moment:
    """Where an allocator is between two exchanges.

    Attributes:
        state: What decides all that follows.
        blocks: Those that come and go, by their number.
        before, after: Those that stay beside some of them, by the number of these.
    """

    state: _State
    blocks: list[Block]
    before: dict[int, Block]
    after: dict[int, Block]


class _Replay:
    """An allocator on its way through a step."""

    def __init__(
        self, orders: Sequence[Sequence[int]], started: Sequence[int],
        parts: Sequence[_Part], requests: Mapping[_Asked, Request],
        allocator: CachingAllocator,
    ) -> None:  # fmt: skip
        known: dict[_Part, int] = {}
        number = [known.setdefault(part, len(known)) for part in parts]
        has_any = [any(part) for part in parts]
        first, self._later = [[number[n] for n in order if has_any[n]] for order in orders]
        self.numbers = first
        """What a step does; equal exchanges have equal numbers."""
        self.allocator = allocator
        self._repeats_until: dict[int, int] = {}
        """First exchange, by period, that was found to differ from the one a period before."""
        self._taken: dict[_Asked, list[Block]] = defaultdict(list)
        """Blocks of one size and stream that are taken, the last one last."""
        self._more = [Counter(takes) for takes, _ in known]
        for more, (_, gives) in zip(self._more, known, strict=True):
            more.subtract(gives)
        self._takes = [[(self._taken[one], requests[one]) for one in takes] for takes, _ in known]
        self._gives = [[self._taken[one] for one in gives] for _, gives in known]
        for each in started:
            self._exchange(number[each])

    def run_steps(self, steps: int) -> None:
        """Run the step as often as it can make a difference."""
        start = None
        for _ in range(steps):
            now = self.moment([0] * len(self._taken))
            if start is not None and now.state == start.state:
                break
            start = now
            self.run()
            self.numbers = self._later

    def run(self) -> None:
        """Do everything of a step that can make a difference.

        Equal blocks change places from microbatch to microbatch, so some may pass until the
        allocator is as it was. It is compared with one moment, and after twice as long with a
        later one (R. P. Brent, An improved Monte Carlo factorization algorithm, 1980).
        """
        self._repeats_until.clear()
        seen: dict[tuple[int, int, int], int] = {}
        mark: _Moment | None = None
        marked_at = patience = 0
        index, end = 0, len(self.numbers)
        while index < end:
            number = self.numbers[index]
            self._exchange(number)
            index += 1
            # Only where as much is taken as after an equal exchange can all be as it was then.
            books = number, self.allocator.allocated_bytes, self.allocator.reserved_bytes
            before, seen[books] = seen.get(books, index), index
            if self._repeats(index, index - before) < 2:
                continue
            period = index - marked_at
            now = self._as_at(mark, marked_at, index) if mark else None
            if mark and now and (repeats := self._repeats(index, period)):
                _move_on(mark, now, repeats)
                index += period * repeats
                mark, patience = None, 0
            elif mark is None or period >= patience:
                mark, marked_at = self.moment(self._floors(before, index)), index
                patience = 2 * patience or index - before

    def _repeats(self, index: int, period: int) -> int:
        """How often the exchanges before an index follow again, whole."""
        if not period:
            return 0
        numbers = self.numbers
        end = max(index, self._repeats_until.get(period, 0))
        if end == index:
            while end < len(numbers) and numbers[end] == numbers[end - period]:
                end += 1
            self._repeats_until[period] = end
        return (end - index) // period

    def _exchange(self, number: int) -> None:
        serve, give = self.allocator.serve, self.allocator.give
        for blocks, asked in self._takes[number]:
            blocks.append(serve(asked))
        for blocks in self._gives[number]:
            give(blocks.pop())

    def _floors(self, first: int, end: int) -> list[int]:
        """Blocks of each size that exchanges leave alone if as many are taken before as after."""
        heights = {asked: len(blocks) for asked, blocks in self._taken.items()}
        floors = dict(heights)
        for number in self.numbers[first:end]:
            for asked, more in self._more[number].items():
                heights[asked] += more
                floors[asked] = min(floors[asked], heights[asked])
        return [*floors.values()]

    def moment(self, floors: list[int]) -> _Moment:
        """Where the allocator is now, while so many blocks of each size stay."""
        stacks = self._taken.values()
        moving = [blocks[floor:] for blocks, floor in zip(stacks, floors, strict=True)]
        groups = [*self.allocator.free_blocks(), *moving]
        blocks = [*chain.from_iterable(groups)]
        number = {id(block): n for n, block in enumerate(blocks)}

        def numbers(neighbours: list[Block | None]) -> list[int | None]:
            return [None if b is None else number.get(id(b), _STAYS) for b in neighbours]

        def staying(neighbours: list[Block | None]) -> dict[int, Block]:
            return {n: b for n, b in enumerate(neighbours) if b and id(b) not in number}

        before, after = [block.before for block in blocks], [block.after for block in blocks]
        state = _State(
            self.allocator.reserved_bytes,
            [*map(len, stacks)],
            floors,
            [*map(len, groups)],
            [block.num_bytes for block in blocks],
            numbers(before),
            numbers(after),
        )
        return _Moment(state, blocks, staying(before), staying(after))

    def _as_at(self, mark: _Moment, first: int, end: int) -> _Moment | None:
        """The moment now, if the allocator goes on as it did from a mark before some exchanges."""
        heights = [*map(len, self._taken.values())]
        if (self.allocator.reserved_bytes, heights) != mark.state[:2]:
            return None
        now = self.moment(self._floors(first, end))
        return now if now.state == mark.state else None


def _move_on(past: _Moment, now: _Moment, periods: int) -> None:
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
