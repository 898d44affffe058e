"""What does an allocator do in steps that repeat themselves?

Microbatches repeat themselves: where the allocator is, after a number of operations, exactly where
it was before them, any further equal ones change nothing and are passed over. So is a step that
would find all segments that the last one made, and make none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from simulator.results.allocator.allocator_moments import (
    Moment,
    State,
    moment,
    moment_like,
    move_on,
    without_segments,
)
from simulator.results.allocator.caching_allocator import CachingAllocator, Stack
from simulator.results.allocator.free_blocks import FreeBlocks

_AHEAD = 64
"""Exchanges that are compared at once; any number finds the same."""

Part = tuple[tuple[int, ...], tuple[int, ...]]
"""Blocks that are taken, and those that are free after it: numbers of their sizes."""


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
        self.taken_bytes: list[int] = []
        """More than before the step, after each exchange of it [B]."""
        self._stacks = [*stacks.values()]
        place = {asked: n for n, asked in enumerate(stacks)}
        self._more = [_more(part, place) for part in known]
        self._more_bytes = [
            sum(count * self._stacks[n].size for n, count in more) for more in self._more
        ]
        self._exchanges = [
            tuple([stacks[one] for one in side] for side in (takes, gives))
            for takes, gives in known
        ]
        for each in started:
            self._exchange(number[each])

    def run_steps(self, steps: int) -> None:
        """Run the step as often as it can make a difference."""
        start: State | None = None
        is_like_next = False
        for step in range(steps):
            now = self.moment([0] * len(self._stacks)).state
            if start is not None and (
                now == start or (is_like_next and self._makes_no_more(start, now))
            ):
                break
            start = now
            self.allocator.choices.clear()
            self.allocator.made.clear()
            self.run(is_last=step == steps - 1)
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

    def run(self, *, is_last: bool) -> None:
        """Do everything of a step that can make a difference; where the last one ends makes none.

        Chunks of a stage take turns, so periods of few microbatches follow each other in a longer
        one, which is looked out for wherever short ones have been passed over.
        """
        self._repeats_until.clear()
        self.taken_bytes = [*accumulate(map(self._more_bytes.__getitem__, self.numbers))]
        short, long = _Watch(self), _Watch(self)
        index, end = 0, len(self.numbers)
        fall = self._last_fall(is_last=is_last)
        most = self._most_taken(fall)
        while index < end:
            # Segments that lie ready serve all that is taken: none is cut or made.
            if index in fall and all(free.whole(size) >= n for (free, size), n in most.items()):
                index = fall.stop
                if index < end or not is_last:
                    self._empty()
                continue
            self.allocator.turn = index
            self._exchange(self.numbers[index])
            index += 1
            if passed := short.passed(index):
                index += passed
                index += long.passed(index)

    def _last_fall(self, *, is_last: bool) -> range:
        """Exchanges after which nothing is taken, none of which leaves more than there was.

        None where what is free then depends on more than the segments that were made, unless the
        last step ends with them: nobody asks then.
        """
        if not self.allocator.segments_serve_again or 0 not in self.taken_bytes:
            return range(0)
        start = end = len(self.taken_bytes) - self.taken_bytes[::-1].index(0)
        ends_all = is_last and end == len(self.numbers)
        if not ends_all and any(stack.taken for stack in self._stacks):
            return range(0)
        while start and all(count < 0 for _, count in self._more[self.numbers[start - 1]]):
            start -= 1
        return range(start, end)

    def _most_taken(self, some: range) -> Counter[tuple[FreeBlocks, int]]:
        """How many blocks of a size an exchange takes at most, by the free blocks."""
        most: Counter[tuple[FreeBlocks, int]] = Counter()
        for number in {*self.numbers[some.start : some.stop]}:
            most |= Counter((stack.free, stack.size) for stack in self._exchanges[number][0])
        return most

    def _empty(self) -> None:
        """Be as when all is free: whatever was taken where, each segment is one block again."""
        for stack in self._stacks:
            stack.taken.clear()
        for free in self.allocator.pools():
            free.empty()

    def repeats(self, index: int, period: int) -> int:
        """How often the exchanges before an index follow again, whole."""
        if not period:
            return 0
        numbers = self.numbers
        end = max(index, self._repeats_until.get(period, 0))
        if end == index:
            while end < len(numbers) and numbers[end] == numbers[end - period]:
                end += 1
                # Slices are compared much faster, and most of a step may repeat itself.
                while len(ahead := numbers[end : end + _AHEAD]) == _AHEAD and (
                    ahead == numbers[end - period : end - period + _AHEAD]
                ):
                    end += _AHEAD
            self._repeats_until[period] = end
        return (end - index) // period

    def _exchange(self, number: int) -> None:
        takes, gives = self._exchanges[number]
        if takes:
            self.allocator.take(takes)
        if gives:
            self.allocator.give(gives)

    def floors(self, first: int, end: int) -> list[int]:
        """Blocks of each size that exchanges leave alone if as many are taken before as after."""
        heights = [len(stack.taken) for stack in self._stacks]
        floors = [*heights]
        for number in self.numbers[first:end]:
            for n, more in self._more[number]:
                height = heights[n] = heights[n] + more
                if height < floors[n]:  # noqa: PLR1730 - a call costs more
                    floors[n] = height
        return floors

    def moment(self, floors: list[int]) -> Moment:
        """Where the allocator is now, while so many blocks of each size stay."""
        return moment(self.allocator, self._stacks, floors)

    def as_at(self, mark: Moment, first: int, end: int) -> Moment | None:
        """The moment now, if the allocator goes on as it did from a mark before some exchanges."""
        heights = [len(stack.taken) for stack in self._stacks]
        if (self.allocator.reserved_bytes, heights) != mark.state[:2]:
            return None
        floors = self.floors(first, end)
        return moment_like(mark.state, self.allocator, self._stacks, floors)


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
        last = index - 1
        books = replay.numbers[last], replay.taken_bytes[last], allocator.reserved_bytes
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
