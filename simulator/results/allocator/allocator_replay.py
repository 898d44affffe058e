"""What does an allocator do in steps that repeat themselves?

Microbatches repeat themselves: where the allocator is, after a number of operations, exactly where
it was before them, any further equal ones change nothing and are passed over. So is a step that
would find all segments that the last one made, and make none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from simulator.results.allocator.allocator_moments import (
    Moment,
    State,
    moment,
    move_on,
    without_segments,
)
from simulator.results.allocator.caching_allocator import CachingAllocator, Stack

Part = tuple[tuple[int, ...], tuple[int, ...]]
"""Blocks that are taken, and those that are free after it: numbers of their sizes."""

_LARGEST_BYTES = 2.0**62
"""More than any block [B]."""


class _Blocks:
    """Blocks that are taken, or given back, one after another.

    Attributes:
        order: The stack of each.
        counts: How many there are of each stack that may hold whole segments, and of which no
            other has blocks as large.
    """

    def __init__(self, order: list[Stack]) -> None:
        self.order = order
        sizes = Counter((stack.size, stack.free) for stack in set(order))
        self.counts = [
            (stack, count)
            for stack, count in Counter(order).items()
            if not stack.free.pool.is_small and sizes[stack.size, stack.free] == 1
        ]
        self._others: dict[tuple[Stack, ...], tuple[list[int], list[Stack]]] = {}

    def others(self, some: list[tuple[Stack, int]]) -> tuple[list[int], list[Stack]]:
        """Places and stacks of those that are not of some stacks."""
        key = tuple([stack for stack, _ in some])
        if key not in self._others:
            places = [n for n, stack in enumerate(self.order) if stack not in key]
            self._others[key] = places, [self.order[n] for n in places]
        return self._others[key]


class Replay:
    """An allocator on its way through a step."""

    def __init__(
        self, orders: Sequence[Sequence[int]], started: Sequence[int],
        parts: Sequence[Part], stacks: Mapping[int, Stack], allocator: CachingAllocator,
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
        self._stacks = [*stacks.values()]
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
            now = self.moment([0] * len(self._stacks)).state
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

        Chunks of a stage take turns, so periods of few microbatches follow each other in a longer
        one, which is looked out for wherever short ones have been passed over.
        """
        self._repeats_until.clear()
        short, long = _Watch(self), _Watch(self)
        index, end = 0, len(self.numbers)
        while index < end:
            self.allocator.turn = index
            self._exchange(self.numbers[index])
            index += 1
            if passed := short.passed(index):
                index += passed
                index += long.passed(index)

    def repeats(self, index: int, period: int) -> int:
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
        allocator, order = self.allocator, blocks.order
        if blocks.counts and allocator.segments_are_alike:
            whole = [each for each in blocks.counts if self._gets_segments(*each)]
            if whole:
                places, others = blocks.others(whole)
                count = allocator.take(others, self._limits(others, whole)) if others else 0
                end = places[count] if count < len(others) else len(order)
                before = whole if end == len(order) else _counted(whole, order[:end])
                for stack, many in before:
                    allocator.take_segments(stack, many)
                order = order[end:]
        if order:
            allocator.take(order)

    def _limits(self, others: list[Stack], whole: list[tuple[Stack, int]]) -> list[float]:
        """From which size on a block is meant for those that get whole segments, for each [B]."""
        # A full device returns free segments where it has to make one.
        most = _LARGEST_BYTES if self.allocator.has_limits else math.inf
        found = {
            stack: min(
                (
                    each.size
                    for each, _ in whole
                    if each.free is stack.free
                    and each.size > stack.size
                    and each.free.segments_first(each.size)
                ),
                default=most,
            )
            for stack in set(others)
        }
        return [found[stack] for stack in others]

    def _gets_segments(self, stack: Stack, count: int) -> bool:
        """Whether so many requests of a size get whole segments, free ones or new ones."""
        queue = stack.free.queues.get(stack.size)
        if queue and -queue[0] >= count:
            return True
        return self.allocator.makes_segments(stack)

    def _give(self, blocks: _Blocks) -> None:
        """Give blocks back; whole segments all at once, for nothing can be joined with them."""
        allocator, order = self.allocator, blocks.order
        if blocks.counts and allocator.segments_are_alike:
            whole = [each for each in blocks.counts if self._are_segments(*each)]
            if whole:
                places, others = blocks.others(whole)
                sizes = {allocator.blocks.size_bytes[stack.taken[-1]] for stack, _ in whole}
                stopped = allocator.give(others, sizes) if others else None
                if stopped is None:
                    end, before = len(order), whole
                else:
                    # Segments that go before this block come before it in the queue.
                    count, block = stopped
                    end = places[count] + 1
                    before = _counted(whole, order[:end])
                    others[count].free.withdraw_last(block)
                for stack, many in before:
                    allocator.give_segments(stack, many)
                if stopped is not None:
                    others[count].free.add(block)
                order = order[end:]
        if order:
            allocator.give(order)

    def _are_segments(self, stack: Stack, count: int) -> bool:
        """Whether the last blocks of a stack are whole segments of one size."""
        last = stack.taken[-1]
        if not self.allocator.blocks.is_segment(last):
            return False
        return count == 1 or stack.taken[-count:].count(last) == count

    def floors(self, first: int, end: int) -> list[int]:
        """Blocks of each size that exchanges leave alone if as many are taken before as after."""
        heights = [len(stack.taken) for stack in self._stacks]
        floors = [*heights]
        for number in self.numbers[first:end]:
            for n, more in self._more[number]:
                heights[n] += more
                floors[n] = min(floors[n], heights[n])
        return floors

    def moment(self, floors: list[int]) -> Moment:
        """Where the allocator is now, while so many blocks of each size stay."""
        return moment(self.allocator, self._stacks, floors)

    def as_at(self, mark: Moment, first: int, end: int) -> Moment | None:
        """The moment now, if the allocator goes on as it did from a mark before some exchanges."""
        heights = [len(stack.taken) for stack in self._stacks]
        if (self.allocator.reserved_bytes, heights) != mark.state[:2]:
            return None
        now = self.moment(self.floors(first, end))
        return now if now.state == mark.state else None


class _Watch:
    """Looks out for a moment at which an allocator is as it was.

    Equal blocks change places from microbatch to microbatch, so some may pass until it is. It is
    compared with one moment, and after twice as long with a later one (R. P. Brent, An improved
    Monte Carlo factorization algorithm, 1980).
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._seen: dict[tuple[int, int, int], int] = {}
        self._mark: Moment | None = None
        self._marked_at = 0
        self._patience = 0

    def passed(self, index: int) -> int:
        """How many exchanges from here on make no difference and are passed over."""
        replay, allocator = self._replay, self._replay.allocator
        # Only where as much is taken as after an equal exchange can all be as it was then.
        books = replay.numbers[index - 1], allocator.allocated_bytes, allocator.reserved_bytes
        before, self._seen[books] = self._seen.get(books, index), index
        if replay.repeats(index, index - before) < 2:
            return 0
        mark, period = self._mark, index - self._marked_at
        now = replay.as_at(mark, self._marked_at, index) if mark else None
        if mark and now and (repeats := replay.repeats(index, period)):
            move_on(allocator.blocks, mark, now, repeats)
            self._mark, self._patience = None, 0
            return period * repeats
        if mark is None or period >= self._patience:
            self._mark, self._marked_at = replay.moment(replay.floors(before, index)), index
            self._patience = 2 * self._patience or index - before
        return 0


def _more(part: Part, place: Mapping[int, int]) -> list[tuple[int, int]]:
    """Place of each size, and how many more of it are taken after an exchange."""
    takes, gives = part
    more = Counter(takes)
    more.subtract(gives)
    return [(place[asked], count) for asked, count in more.items() if count]


def _counted(some: list[tuple[Stack, int]], order: list[Stack]) -> list[tuple[Stack, int]]:
    """Some stacks, and how often each is in an order; without those that are not."""
    return [(stack, count) for stack, _ in some if (count := order.count(stack))]
