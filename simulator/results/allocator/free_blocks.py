"""Which free block of a pool comes next?

The smallest that is large enough, and of equal ones the first that became free. Steps of thousands
of layers leave as many blocks of few sizes, so each size has its queue. Most of them are whole
segments, which nothing tells apart: a queue counts those that follow each other.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
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
    """

    __slots__ = (
        "blocks", "kept_whole_bytes", "least_segment_bytes", "pool", "queues", "segments", "sizes",
    )  # fmt: skip

    def __init__(
        self, blocks: Blocks, pool: Pool, *, kept_whole_bytes: int, least_segment_bytes: int
    ) -> None:
        self.blocks = blocks
        self.pool = pool
        self.kept_whole_bytes = kept_whole_bytes
        self.least_segment_bytes = least_segment_bytes
        self.sizes: list[int] = []
        self.queues: dict[int, deque[int]] = {}
        self.segments: dict[int, int] = {}

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

    def segment(self, size: int) -> int:
        """The block that stands for all segments of a size."""
        if size not in self.segments:
            self.segments[size] = self.blocks.new(size)
        return self.segments[size]

    def queue(self, size: int) -> deque[int]:
        """The blocks of a size."""
        queue = self.queues.get(size)
        if queue is None:
            insort(self.sizes, size)
            queue = self.queues[size] = deque()
        return queue

    def add(self, block: int) -> None:
        """Offer a block, after all of its size."""
        size = self.blocks.size_bytes[block]
        self.queue(size).append(block)
        if self.blocks.is_segment(block):
            self.segments.setdefault(size, block)

    def add_segments(self, size: int, count: int) -> None:
        """Offer so many segments of a size, after all of it."""
        queue = self.queue(size)
        if queue and queue[-1] < 0:
            queue[-1] -= count
        else:
            queue.append(-count)
        self.segment(size)

    def pop_equal(self, queue: deque[int], size: int) -> int:
        """The first block of the queue of a size; none if all of them are free no more."""
        is_free = self.blocks.is_free
        while queue:
            head = queue[0]
            if head < -1:
                queue[0] = head + 1
            else:
                queue.popleft()
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

    def has_any(self, size: int) -> bool:
        """Whether there is a block of exactly this size."""
        queue = self.queues.get(size)
        while queue:
            if queue[0] < 0 or self.blocks.is_free[queue[0]]:
                return True
            queue.popleft()
        return False

    def next_larger(self, size: int) -> int | None:
        """The least size above one of which there is a block."""
        sizes, is_free = self.sizes, self.blocks.is_free
        index = bisect_right(sizes, size)
        while index < len(sizes):
            found = sizes[index]
            queue = self.queues[found]
            while queue:
                if queue[0] < 0 or is_free[queue[0]]:
                    return found
                queue.popleft()
            del self.queues[found], sizes[index]
        return None

    def pop(self, size: int) -> int:
        """The first block of a size of which there is one."""
        queue = self.queues[size]
        head = queue[0]
        if head < -1:
            queue[0] = head + 1
        else:
            queue.popleft()
        return head if head >= 0 else self.segments[size]

    def segments_first(self, size: int) -> int:
        """How many segments come before any other block of a size."""
        return max(0, -self.queues[size][0]) if self.has_any(size) else 0

    def pop_segments(self, size: int, count: int) -> int:
        """The block that stands for each of the first so many, which are segments."""
        queue = self.queues[size]
        if queue[0] == -count:
            queue.popleft()
        else:
            queue[0] += count
        return self.segments[size]

    def withdraw_last(self, block: int) -> None:
        """Offer a block no longer that is the last of its size."""
        self.queues[self.blocks.size_bytes[block]].pop()

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
            queue = self.queues.get(size, deque())
            for index, each in enumerate(queue):
                if each < -1:
                    queue[index] = each + 1
                    return size
                if each < 0 or (self.blocks.is_free[each] and self.blocks.is_segment(each)):
                    del queue[index]
                    return size
        return 0
