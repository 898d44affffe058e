"""How much does the allocator of a rank reserve over a step?

Blocks are taken and given back one by one, in the order of the operations. Microbatches repeat
themselves: where the allocator is, after a stretch of operations, exactly where it was before
it, any further equal stretches change nothing and are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from simulator.results.memory.allocator import Block, CachingAllocator, Request, request


class Exchange(NamedTuple):
    """Blocks that an operation takes, and those that are free after it [B].

    Attributes:
        takes, gives: Of the compute stream.
        takes_apart, gives_apart: Of a stream whose blocks serve no other.
    """

    takes: tuple[float, ...]
    gives: tuple[float, ...]
    takes_apart: tuple[float, ...] = ()
    gives_apart: tuple[float, ...] = ()


_Asked = tuple[float, bool]
"""Size of a block [B], and whether it is of the stream apart."""


def reserved_bytes(
    exchanges: Sequence[Exchange], *, expandable_segments: bool, room_bytes: float = math.inf
) -> float:
    """The most that is reserved while blocks come and go [B].

    Args:
        exchanges: In the order of the host. Of equal blocks the last one goes first.
        expandable_segments: How the allocator is set.
        room_bytes: What the device has; more is reserved only where nothing can be returned.
    """
    allocator = CachingAllocator(expandable_segments=expandable_segments, room_bytes=room_bytes)
    replay = _Replay(exchanges, allocator)
    replay.run()
    return float(allocator.most_reserved_bytes)


class _Replay:
    """An allocator on its way through a step."""

    def __init__(self, exchanges: Sequence[Exchange], allocator: CachingAllocator) -> None:
        known: dict[Exchange, int] = {}
        self.numbers = [known.setdefault(exchange, len(known)) for exchange in exchanges]
        """Equal exchanges have equal numbers."""
        self.allocator = allocator
        self._taken: dict[_Asked, list[Block]] = {}
        takes = [_asked(one.takes, one.takes_apart) for one in known]
        gives = [_asked(one.gives, one.gives_apart) for one in known]
        requests = {
            asked: request(asked[0], is_apart=asked[1])
            for asked in dict.fromkeys(asked for each in takes for asked in each)
        }
        self._takes: list[list[tuple[list[Block], Request]]] = [
            [(self._stack(asked), requests[asked]) for asked in each] for each in takes
        ]
        self._gives = [[self._stack(asked) for asked in each] for each in gives]

    def run(self) -> None:
        """Do everything that can make a difference."""
        seen: dict[tuple[int, int, int], int] = {}
        index, end = 0, len(self.numbers)
        while index < end:
            number = self.numbers[index]
            self._exchange(number)
            index += 1
            # Only where as much is taken as at another time after an equal exchange can
            # everything be as it was then.
            books = number, self.allocator.allocated_bytes, self.allocator.reserved_bytes
            before, seen[books] = seen.get(books, index), index
            repeats = self._repeats(index, index - before)
            if repeats > 1:
                index = self._passed_over(index, index - before, repeats)

    def _repeats(self, index: int, period: int) -> int:
        """How often the exchanges before an index follow again, whole."""
        numbers = self.numbers
        if not period or numbers[index : index + period] != numbers[index - period : index]:
            return 0
        last = index + period
        while last < len(numbers) and numbers[last] == numbers[last - period]:
            last += 1
        return (last - index) // period

    def _passed_over(self, index: int, period: int, repeats: int) -> int:
        """Run a period; where it leads is after all repeats, if it leads back."""
        before = self._state()
        for number in self.numbers[index : index + period]:
            self._exchange(number)
        return index + period * (repeats if self._state() == before else 1)

    def _exchange(self, number: int) -> None:
        serve, give = self.allocator.serve, self.allocator.give
        for blocks, asked in self._takes[number]:
            blocks.append(serve(asked))
        for blocks in self._gives[number]:
            give(blocks.pop())

    def _stack(self, asked: _Asked) -> list[Block]:
        """Blocks of one size and stream that are taken, the last one last."""
        return self._taken.setdefault(asked, [])

    def _state(self) -> object:
        """All that decides what the allocator does next.

        Where a segment lies decides nothing: the blocks in the order of their turn, and which
        one each of them follows in its segment.
        """
        groups = [*self.allocator.free_blocks(), *self._taken.values()]
        blocks = [*chain.from_iterable(groups)]
        number = dict(zip(map(id, blocks), range(len(blocks)), strict=True))
        neighbours = [*map(number.get, map(id, map(attrgetter("before"), blocks)))]
        sizes = [*map(attrgetter("num_bytes"), blocks)]
        return self.allocator.reserved_bytes, [*map(len, groups)], sizes, neighbours


def _asked(sizes: Sequence[float], apart: Sequence[float]) -> list[_Asked]:
    return [*((size, False) for size in sizes), *((size, True) for size in apart)]
