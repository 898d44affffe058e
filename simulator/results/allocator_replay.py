"""What does an allocator do in steps that repeat themselves?

Microbatches repeat themselves: where the allocator is, after a number of operations, exactly where
it was before them, any further equal ones change nothing and are passed over. So is a step that
would find all segments that the last one made, and make none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from simulator.results.allocator_moments import Moment, State, moment, move_on, without_segments
from simulator.results.caching_allocator import CachingAllocator, Request
from simulator.results.free_blocks import Block, FreeBlocks

Asked = tuple[float, int]
"""Size of a block [B], and the number of its stream."""

Part = tuple[tuple[Asked, ...], ...]
"""Blocks that are taken, and those that are free after it."""

_LARGEST_BYTES = 2.0**62
"""More than any block [B]."""


class _Stack:
    """Blocks of one size and stream that are taken, the last one last."""

    __slots__ = ("blocks", "free", "size")

    def __init__(self, size: int, free: FreeBlocks) -> None:
        self.size = size
        self.free = free
        self.blocks: list[Block] = []


class _Blocks:
    """Blocks that are taken, or given back, one after another.

    Attributes:
        order: The stack of each.
        counts: How many there are of each stack that may hold whole segments, and of which no
            other has blocks as large.
    """

    def __init__(self, order: list[_Stack]) -> None:
        self.order = order
        sizes = Counter((stack.size, stack.free) for stack in set(order))
        self.counts = [
            (stack, count)
            for stack, count in Counter(order).items()
            if not stack.free.pool.is_small and sizes[stack.size, stack.free] == 1
        ]
        self._others: dict[tuple[_Stack, ...], list[tuple[int, _Stack]]] = {}

    def others(self, some: list[tuple[_Stack, int]]) -> list[tuple[int, _Stack]]:
        """Place and stack of those that are not of some stacks."""
        key = tuple([stack for stack, _ in some])
        if key not in self._others:
            places = enumerate(self.order)
            self._others[key] = [(place, stack) for place, stack in places if stack not in key]
        return self._others[key]


class Replay:
    """An allocator on its way through a step."""

    def __init__(
        self, orders: Sequence[Sequence[int]], started: Sequence[int],
        parts: Sequence[Part], requests: Mapping[Asked, Request],
        allocator: CachingAllocator,
    ) -> None:  # fmt: skip
        known: dict[Part, int] = {}
        number = [known.setdefault(part, len(known)) for part in parts]
        has_any = [any(part) for part in parts]
        first, self._later = [[number[n] for n in order if has_any[n]] for order in orders]
        self.numbers = first
        """What a step does; equal exchanges have equal numbers."""
        self.allocator = allocator
        self._repeats_until: dict[int, int] = {}
        """First exchange, by period, that was found to differ from the one a period before."""
        stacks: dict[Asked, _Stack] = {}
        for asked in (asked for part in known for side in part for asked in side):
            if asked not in stacks:
                size, pool = requests[asked]
                stacks[asked] = _Stack(size, allocator.pool(pool))
        self._taken = [stack.blocks for stack in stacks.values()]
        place = {asked: n for n, asked in enumerate(stacks)}
        self._more = [_more(part, place) for part in known]
        self._takes = [_Blocks([stacks[one] for one in takes]) for takes, _ in known]
        self._gives = [_Blocks([stacks[one] for one in gives]) for _, gives in known]
        for each in started:
            self._exchange(number[each])

    def run_steps(self, steps: int) -> None:
        """Run the step as often as it can make a difference."""
        start: State | None = None
        is_like_next = False
        for _ in range(steps):
            now = self._moment([0] * len(self._taken)).state
            if start is not None and (
                now == start or (is_like_next and self._makes_no_more(start, now))
            ):
                break
            start = now
            self.allocator.choices.clear()
            self.allocator.made.clear()
            self.run()
            is_like_next = self.numbers == self._later
            self.numbers = self._later

    def _makes_no_more(self, start: State, now: State) -> bool:
        """Whether an equal step finds the segments that the last one made, and uses them so.

        That step begins as the last one did, with those segments beside. They come first among
        segments of their size, which nothing tells apart. So each request gets the same as in
        the last step, unless one of these would have served it better before it was made; and
        where the last step made one, it is there.
        """
        allocator = self.allocator
        if not allocator.segments_serve_again:
            return False
        for (least, below), first in allocator.choices.items():
            for size, (last, _) in allocator.made.items():
                if least <= size < below and first <= last:
                    return False
        made = {size: count for size, (_, count) in allocator.made.items()}
        return without_segments(now, made) == start

    def run(self) -> None:
        """Do everything of a step that can make a difference.

        Equal blocks change places from microbatch to microbatch, so some may pass until the
        allocator is as it was. It is compared with one moment, and after twice as long with a
        later one (R. P. Brent, An improved Monte Carlo factorization algorithm, 1980).
        """
        self._repeats_until.clear()
        seen: dict[tuple[int, int, int], int] = {}
        mark: Moment | None = None
        marked_at = patience = 0
        index, end = 0, len(self.numbers)
        while index < end:
            number = self.numbers[index]
            self.allocator.turn = index
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
                move_on(mark, now, repeats)
                index += period * repeats
                mark, patience = None, 0
            elif mark is None or period >= patience:
                mark, marked_at = self._moment(self._floors(before, index)), index
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
        self._take(self._takes[number])
        self._give(self._gives[number])

    def _take(self, blocks: _Blocks) -> None:
        """Take blocks; those that get whole segments whatever the others get, all at once."""
        order = blocks.order
        if self.allocator.segments_are_alike and len(order) > 2:
            whole = [each for each in blocks.counts if self._gets_segments(*each)]
            if whole:
                place = self._take_others(blocks.others(whole), whole)
                if place is None:
                    for stack, count in whole:
                        self._take_segments(stack, count)
                    return
                before = Counter(order[:place])
                for stack, _ in whole:
                    self._take_segments(stack, before[stack])
                order = order[place:]
        serve = self.allocator.serve
        for stack in order:
            block = serve(stack.size, stack.free)
            assert block is not None  # There is no limit.
            stack.blocks.append(block)

    def _take_others(
        self, others: list[tuple[int, _Stack]], whole: list[tuple[_Stack, int]]
    ) -> int | None:
        """Take the others until one could get what is meant for those; returns its place."""
        serve = self.allocator.serve
        most = _LARGEST_BYTES if self.allocator.has_limits else math.inf
        below: dict[_Stack, float] = {}
        for place, stack in others:
            limit = below.get(stack)
            if limit is None:
                larger = (s.size for s, _ in whole if s.free is stack.free and s.size > stack.size)
                limit = below[stack] = min(
                    (size for size in larger if stack.free.segments_first(size)), default=most
                )
            block = serve(stack.size, stack.free, limit)
            if block is None:
                return place
            stack.blocks.append(block)
        return None

    def _gets_segments(self, stack: _Stack, count: int) -> bool:
        """Whether so many requests of a size get whole segments, free ones or new ones."""
        if stack.free.segments_first(stack.size) >= count:
            return True
        return self.allocator.makes_whole_segments(stack.size, stack.free)

    def _take_segments(self, stack: _Stack, count: int) -> None:
        if count:
            take = self.allocator.take_segments
            stack.blocks += [take(stack.size, stack.free, count)] * count

    def _give(self, blocks: _Blocks) -> None:
        """Give blocks back; whole segments all at once, for nothing can be joined with them."""
        give, order = self.allocator.give, blocks.order
        if self.allocator.segments_are_alike and len(order) > 2:
            whole = [each for each in blocks.counts if _are_segments(*each)]
            if whole:
                first = self._give_others(blocks.others(whole), whole)
                if first is None:
                    for stack, count in whole:
                        self._give_segments(stack, count)
                    return
                place, block = first
                block.free.withdraw_last(block.num_bytes)
                before = Counter(order[:place])
                for stack, _ in whole:
                    self._give_segments(stack, before[stack])
                block.free.add(block)
                order = order[place + 1 :]
        for stack in order:
            give(stack.blocks.pop())

    def _give_others(
        self, others: list[tuple[int, _Stack]], whole: list[tuple[_Stack, int]]
    ) -> tuple[int, Block] | None:
        """Give the others back until one is free beside segments of its size: its place, and it.

        Segments that are given back before it come before it in the queue.
        """
        give = self.allocator.give
        sizes = {stack.blocks[-1].num_bytes for stack, _ in whole}
        for place, stack in others:
            block = stack.blocks.pop()
            if give(block) in sizes:
                return place, block
        return None

    def _give_segments(self, stack: _Stack, count: int) -> None:
        if count:
            self.allocator.give_segments(stack.blocks[-1], count)
            del stack.blocks[-count:]

    def _floors(self, first: int, end: int) -> list[int]:
        """Blocks of each size that exchanges leave alone if as many are taken before as after."""
        heights = [*map(len, self._taken)]
        floors = [*heights]
        for number in self.numbers[first:end]:
            for n, more in self._more[number]:
                heights[n] += more
                floors[n] = min(floors[n], heights[n])
        return floors

    def _moment(self, floors: list[int]) -> Moment:
        return moment(self.allocator, self._taken, floors)

    def _as_at(self, mark: Moment, first: int, end: int) -> Moment | None:
        """The moment now, if the allocator goes on as it did from a mark before some exchanges."""
        heights = [*map(len, self._taken)]
        if (self.allocator.reserved_bytes, heights) != mark.state[:2]:
            return None
        now = self._moment(self._floors(first, end))
        return now if now.state == mark.state else None


def _more(part: Part, place: Mapping[Asked, int]) -> list[tuple[int, int]]:
    """Place of each size, and how many more of it are taken after an exchange."""
    takes, gives = part
    more = Counter(takes)
    more.subtract(gives)
    return [(place[asked], count) for asked, count in more.items() if count]


def _are_segments(stack: _Stack, count: int) -> bool:
    """Whether the last blocks of a stack are whole segments of one size."""
    last = stack.blocks[-1]
    if last.before is not last.after:
        return False
    return count == 1 or stack.blocks[-count:].count(last) == count
