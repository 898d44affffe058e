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
from dataclasses import dataclass
from typing import NamedTuple


class Pool(NamedTuple):
    """Blocks that may serve each other.

    Attributes:
        is_small: Whether requests of up to 1 MiB share its segments.
        stream: Which stream they are asked for on; 0 is the compute stream.
    """

    is_small: bool
    stream: int = 0


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment, or all of one; then it may stand for all segments of its size.

    Attributes:
        free: Free blocks of its pool.
        is_free: Whether it is one of them. One that was joined with another is none.
        before, after: Neighbours in its segment.
        free_since: Blocks that had been asked for when it became free.
    """

    num_bytes: int
    free: FreeBlocks
    is_free: bool = False
    before: Block | None = None
    after: Block | None = None
    free_since: int = 0


class FreeBlocks:
    """The free blocks of a pool.

    Attributes:
        pool: Which one.
        kept_whole_bytes: The most that a request is given beyond what it asked for [B].
        sizes: Those of which there are, or recently were, blocks: ascending [B].
        queues: Of each of them, blocks in order; a number stands for so many segments. Blocks
            that are free no more are passed over.
        segments: The block that stands for all segments of a size.
    """

    __slots__ = ("kept_whole_bytes", "pool", "queues", "segments", "sizes")

    def __init__(self, pool: Pool, kept_whole_bytes: int) -> None:
        self.pool = pool
        self.kept_whole_bytes = kept_whole_bytes
        self.sizes: list[int] = []
        self.queues: dict[int, deque[Block | int]] = {}
        self.segments: dict[int, Block] = {}

    def __iter__(self) -> Iterator[tuple[int, Block | int]]:
        """Size and block, or number of segments, in the order in which they are looked at."""
        for size in self.sizes:
            segments = 0
            for each in self.queues[size]:
                if type(each) is int:
                    segments += each
                elif isinstance(each, Block) and each.is_free:
                    if segments:
                        yield size, segments
                        segments = 0
                    yield size, each
            if segments:
                yield size, segments

    def segment(self, size: int) -> Block:
        """The block that stands for all segments of a size."""
        if size not in self.segments:
            self.segments[size] = Block(size, self)
        return self.segments[size]

    def pop(self, queue: deque[Block | int], size: int) -> Block | None:
        """The first one of a size."""
        while queue:
            head = queue[0]
            if isinstance(head, int):
                if head == 1:
                    queue.popleft()
                else:
                    queue[0] = head - 1
                return self.segments[size]
            queue.popleft()
            if head.is_free:
                return head
        return None

    def add(self, block: Block) -> None:
        """Offer a block, after all of its size."""
        size = block.num_bytes
        queue = self.queues.get(size)
        if queue is None:
            insort(self.sizes, size)
            queue = self.queues[size] = deque()
        queue.append(block)
        if block.before is block.after and size not in self.segments:
            self.segments[size] = block

    def add_segments(self, size: int, count: int) -> None:
        """Offer so many segments of a size, after all of it."""
        queue = self.queues.get(size)
        if queue is None:
            insort(self.sizes, size)
            queue = self.queues[size] = deque()
        if queue and isinstance(last := queue[-1], int):
            queue[-1] = last + count
        else:
            queue.append(count)
        if size not in self.segments:
            self.segment(size)

    def has_any(self, size: int) -> bool:
        """Whether there is a block of exactly this size."""
        queue = self.queues.get(size)
        while queue:
            head = queue[0]
            if isinstance(head, int) or head.is_free:
                return True
            queue.popleft()
        return False

    def has_larger(self, size: int) -> bool:
        """Whether there is a block of more than this size."""
        sizes = self.sizes
        index = bisect_right(sizes, size)
        while index < len(sizes):
            if self.has_any(sizes[index]):
                return True
            del self.queues[sizes[index]], sizes[index]
        return False

    def segments_first(self, size: int) -> int:
        """How many segments come before any other block of a size."""
        queue = self.queues.get(size)
        if not queue or not self.has_any(size):
            return 0
        return head if isinstance(head := queue[0], int) else 0

    def pop_segments(self, size: int, count: int) -> Block:
        """The block that stands for each of the first so many, which are segments."""
        queue = self.queues[size]
        head = queue[0]
        assert isinstance(head, int)
        if head == count:
            queue.popleft()
        else:
            queue[0] = head - count
        return self.segments[size]

    def withdraw_last(self, size: int) -> None:
        """Offer the last one of a size no longer."""
        self.queues[size].pop()

    def segments_free_since(self) -> list[int]:
        """When each segment that nothing lies in became free."""
        return [
            each.free_since
            for size in self.segments
            for each in self.queues.get(size, ())
            if isinstance(each, Block) and each.is_free and each.before is each.after
        ]

    def remove_segments(self, until: float = math.inf) -> int:
        """Offer no longer what has been all of its segment since a turn; how much that is [B]."""
        removed = 0
        for size in self.segments:
            queue = self.queues.get(size)
            if not queue:
                continue
            kept: list[Block | int] = []
            for each in queue:
                if isinstance(each, int):
                    removed += size * each
                elif each.is_free and each.before is each.after and each.free_since <= until:
                    removed += size
                elif each.is_free:
                    kept.append(each)
            queue.clear()
            queue.extend(kept)
        return removed

    def remove_segment(self, least_bytes: float) -> int:
        """Offer no longer the smallest segment of at least a size; how large it is [B]."""
        for size in sorted(each for each in self.segments if each >= least_bytes):
            queue = self.queues.get(size, deque())
            for index, each in enumerate(queue):
                if isinstance(each, int):
                    if each > 1:
                        queue[index] = each - 1
                    else:
                        del queue[index]
                    return size
                if each.is_free and each.before is each.after:
                    del queue[index]
                    return size
        return 0
