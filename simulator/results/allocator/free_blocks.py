"""Which free block of a pool comes next?

The smallest that is large enough, and of equal ones the first that became free. Steps of thousands
of layers leave as many blocks of few sizes, so each size has its queue. Most of them are whole
segments, which nothing tells apart: a queue counts those that follow each other.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

NOTHING = -1
"""Stands for a neighbour at the end of a segment."""


class Blocks:
    """All blocks of an allocator, columnar: pieces of segments by their number.

    A block without neighbours may stand for all segments of its size.

    Attributes:
        size_bytes: How large each is [B].
        before, after: Neighbours in its segment.
        is_free: Whether it is offered. One that was joined with another is not.
        free_since: How many had been asked for when it became free, where that decides.
    """

    __slots__ = ("after", "before", "free_since", "is_free", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
        self.is_free: list[bool] = []
        self.free_since: dict[int, int] = {}

    def new(self, size: int, before: int = NOTHING, after: int = NOTHING) -> int:
        """The number of one more block, which is taken."""
        self.size_bytes.append(size)
        self.before.append(before)
        self.after.append(after)
        self.is_free.append(False)
        return len(self.size_bytes) - 1

    def is_segment(self, block: int) -> bool:
        """Whether a block is all of its segment."""
        return self.before[block] == self.after[block]  # Both are none.


class Pool(NamedTuple):
    """Blocks that may serve each other.

    Attributes:
        is_small: Whether requests of up to 1 MiB share its segments.
        stream: Which stream they are asked for on; 0 is the compute stream.
    """

    is_small: bool
    stream: int = 0


class FreeBlocks:
    """The free blocks of a pool.

    Attributes:
        blocks: All blocks.
        pool: Which one.
        kept_whole_bytes: The most that a request is given beyond what it asked for [B].
        least_segment_bytes: No segment is smaller [B].
        sizes: Those of which there are, or recently were, blocks: ascending [B].
        queues: Of each of them, blocks in order; below zero, that many segments that nothing
            tells apart. Blocks that are free no more are passed over.
        segments: The block that stands for all segments of a size.
        made: How many segments of each size were made, where nothing tells them apart.
    """

    __slots__ = (
        "blocks", "kept_whole_bytes", "least_segment_bytes", "made", "pool", "queues", "segments",
        "sizes",
    )  # fmt: skip

    def __init__(
        self, blocks: Blocks, pool: Pool, *, kept_whole_bytes: int, least_segment_bytes: int
    ) -> None:
        self.blocks = blocks
        self.pool = pool
        self.kept_whole_bytes = kept_whole_bytes
        self.least_segment_bytes = least_segment_bytes
        self.sizes: list[int] = []
        self.queues: dict[int, list[int]] = {}
        self.segments: dict[int, int] = {}
        self.made: dict[int, int] = {}

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Size and block, or segments below zero, in the order in which they are looked at."""
        is_free = self.blocks.is_free
        for size in self.sizes:
            segments = 0
            for each in self.queues[size]:
                if each < 0:
                    segments += each
                elif is_free[each]:
                    if segments:
                        yield size, segments
                        segments = 0
                    yield size, each
            if segments:
                yield size, segments

    def segment(self, size: int, count: int = 1) -> int:
        """The block that stands for all segments of a size, of which there are so many more."""
        if size not in self.segments:
            self.segments[size] = self.blocks.new(size)
        self.made[size] = self.made.get(size, 0) + count
        return self.segments[size]

    def whole(self, size: int) -> int:
        """How many segments of a size nothing lies in and nothing tells apart."""
        return -sum([each for each in self.queues.get(size, ()) if each < 0])

    def empty(self) -> None:
        """Offer all segments that were made: nothing lies in any."""
        self.queues = {size: [-count] for size, count in self.made.items()}
        self.sizes = sorted(self.made)

    def queue(self, size: int) -> list[int]:
        """The blocks of a size."""
        queue = self.queues.get(size)
        if queue is None:
            insort(self.sizes, size)
            queue = self.queues[size] = []
        return queue

    def pop_larger(self, size: int, below: float) -> int:
        """The first block of the least size above one; nothing if that is not below a limit."""
        sizes = self.sizes
        index = bisect_right(sizes, size)
        while index < len(sizes) and sizes[index] < below:
            found = sizes[index]
            block = self.first(self.queues[found], found)
            if block != NOTHING:
                return block
            del self.queues[found], sizes[index]
        return NOTHING

    def first(self, queue: list[int], size: int) -> int:
        """Withdraw the first block of the queue of a size; nothing if all are free no more."""
        is_free = self.blocks.is_free
        while queue:
            head = queue[0]
            if head < -1:
                queue[0] = head + 1
            else:
                del queue[0]
            if head < 0:
                return self.segments[size]
            if is_free[head]:
                is_free[head] = False
                return head
        return NOTHING

    def is_next(self, size: int, num_bytes: int) -> bool:
        """Whether what is that large would be cut first, were it offered last."""
        index = bisect_right(self.sizes, size)
        return index == len(self.sizes) or self.sizes[index] > num_bytes

    def segments_free_since(self) -> list[int]:
        """When each segment that nothing lies in became free."""
        blocks = self.blocks
        return [
            blocks.free_since[each]
            for size in self.segments
            for each in self.queues.get(size, ())
            if blocks.is_free[each] and blocks.is_segment(each)
        ]

    def remove_segments(self, until: float = math.inf) -> int:
        """Offer no longer what has been all of its segment since a turn; how much that is [B]."""
        removed = 0
        for size in self.segments:
            queue = self.queues.get(size)
            if not queue:
                continue
            kept = []
            for each in queue:
                if each < 0:
                    removed -= size * each
                elif self.blocks.is_free[each] and self._is_unused(each, until):
                    removed += size
                elif self.blocks.is_free[each]:
                    kept.append(each)
            queue.clear()
            queue.extend(kept)
        return removed

    def _is_unused(self, block: int, until: float) -> bool:
        blocks = self.blocks
        return blocks.is_segment(block) and blocks.free_since.get(block, 0) <= until

    def remove_segment(self, least_bytes: float) -> int:
        """Offer no longer the smallest segment of at least a size; how large it is [B]."""
        for size in sorted(each for each in self.segments if each >= least_bytes):
            queue = self.queues.get(size, [])
            for index, each in enumerate(queue):
                if each < -1:
                    queue[index] = each + 1
                    return size
                if each < 0 or (self.blocks.is_free[each] and self.blocks.is_segment(each)):
                    del queue[index]
                    return size
        return 0
