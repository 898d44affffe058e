"""Which memory does PyTorch's caching allocator ask the driver for, and which does it use again?

The allocator asks the driver for segments and cuts blocks out of them. A freed block stays
in its segment, joined with free neighbours, for the next request that fits. So what it
reserves is the most that it ever needed at once, plus what it could not reuse.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp``:

- requests are rounded up to 512 B;
- up to 1 MiB they share segments of 2 MiB; up to 10 MiB, segments of 20 MiB; larger ones get
  a segment of their own, rounded up to 2 MiB;
- the smallest free block that is large enough is taken, of the request's pool (small or
  large); it is split where at least 512 B (small) or more than 1 MiB (large) would be left;
- where the device has no room for a segment, those that nothing lies in are returned first;
- with ``max_split_size_mb`` blocks of that size and more are not split, nor taken for smaller
  requests, and one for a request as large is less than 20 MiB larger; a device that has no room
  gets back one that is large enough, if that helps;
- with ``garbage_collection_threshold``, large segments that were unused for longer than others
  are returned where more than that share of the device would be reserved;
- with ``expandable_segments`` each pool is one segment that grows at its end in pages of
  2 MiB (small) or 20 MiB (large), so that any free space in it can serve any request;
- what is asked for on another stream has pools of its own (FSDP of PyTorch 2.0 gathers whole
  weights there; FSDP2 takes them and the buffers of reductions on the compute stream, shards of
  gradients on that of reductions; outputs of gathers, gone once copied, are ignored).

Ignored: that unused pages of an expandable segment go back to a full device.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from simulator.described.plan.plan_blocks import AllocatorSettings

_ROUND_BYTES = 512
_SMALL_BYTES = 2**20
_SMALL_SEGMENT_BYTES = 2 * 2**20
_MEDIUM_BYTES = 10 * 2**20
_LARGE_SEGMENT_BYTES = 20 * 2**20
_SEGMENT_ROUND_BYTES = 2 * 2**20


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
    """A piece of a segment.

    Attributes:
        before, after: Neighbours in its segment.
        free_since: Blocks that had been asked for when it became free.
    """

    num_bytes: int
    pool: Pool
    is_free: bool = True
    before: Block | None = None
    after: Block | None = None
    free_since: int = 0


class Request(NamedTuple):
    """What is asked of the allocator: bytes, rounded up, and the pool that serves them."""

    num_bytes: int
    pool: Pool


def request(num_bytes: float, *, stream: int = 0) -> Request:
    """The request for so many bytes, on the compute stream or another one."""
    size = max(_ROUND_BYTES, math.ceil(num_bytes / _ROUND_BYTES) * _ROUND_BYTES)
    return Request(size, Pool(size <= _SMALL_BYTES, stream))


class _FreeBlocks:
    """The free blocks of a pool, smallest first, and of equal ones the first that became free.

    Steps of thousands of layers leave as many blocks of few sizes, so each size has its queue.

    Attributes:
        segments: Those that are all of their segment, in the order in which they became free.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []
        """Those of which there are blocks, ascending."""
        self._queues: dict[int, OrderedDict[Block, None]] = defaultdict(OrderedDict)
        self.segments: dict[Block, None] = {}

    def __iter__(self) -> Iterator[Block]:
        return chain.from_iterable(self._queues[size] for size in self._sizes)

    def pop(self, size: int, limit: float = math.inf) -> Block | None:
        """The smallest one of at least so many bytes and less than a limit."""
        sizes, queue = self._sizes, self._queues.get(size)
        if not queue:
            index = bisect_left(sizes, size)
            if index == len(sizes) or sizes[index] >= limit:
                return None
            queue = self._queues[sizes[index]]
        block, _ = queue.popitem(last=False)
        if not queue:
            del sizes[bisect_left(sizes, block.num_bytes)]
        if block.before is block.after:  # both None
            del self.segments[block]
        return block

    def add(self, block: Block) -> None:
        """Offer a block, after all of its size."""
        queue = self._queues[block.num_bytes]
        if not queue:
            insort(self._sizes, block.num_bytes)
        queue[block] = None
        if block.before is block.after:
            self.segments[block] = None

    def remove(self, block: Block) -> None:
        """Offer a block no longer."""
        queue = self._queues[block.num_bytes]
        del queue[block]
        if not queue:
            del self._sizes[bisect_left(self._sizes, block.num_bytes)]
        if block.before is block.after:
            del self.segments[block]

    def remove_segments(self, until: float = math.inf) -> int:
        """Offer no longer what has been all of its segment since a turn; how much that is [B]."""
        segments = [block for block in self.segments if block.free_since <= until]
        for block in segments:
            self.remove(block)
        return sum(block.num_bytes for block in segments)

    def remove_segment(self, least_bytes: float) -> int:
        """Offer no longer the smallest segment of at least a size; how large it is [B]."""
        large = (block for block in self.segments if block.num_bytes >= least_bytes)
        block = min(large, key=lambda block: block.num_bytes, default=None)
        if block is None:
            return 0
        self.remove(block)
        return block.num_bytes


class CachingAllocator:
    """Blocks and segments of one device.

    Attributes:
        allocated_bytes: In blocks that are taken [B].
        reserved_bytes: In segments [B].
        most_reserved_bytes: In segments, at most [B].
    """

    def __init__(
        self,
        settings: AllocatorSettings = AllocatorSettings(),  # noqa: B008
        *,
        room_bytes: float = math.inf,
        collects_above_bytes: float = math.inf,
    ) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.most_reserved_bytes = 0
        self._room_bytes = room_bytes
        self._collects_above_bytes = collects_above_bytes
        self._expandable = settings.expandable_segments
        self._max_split_bytes = math.inf if self._expandable else settings.max_split_bytes
        self._turn = 0
        self._free: dict[Pool, _FreeBlocks] = defaultdict(_FreeBlocks)
        self._tail: dict[Pool, Block] = {}
        """Last block of each pool's expandable segment."""

    def take(self, num_bytes: float) -> Block:
        """A block for a request of so many bytes on the compute stream."""
        return self.serve(request(num_bytes))

    def serve(self, asked: Request) -> Block:
        """A block for a request."""
        size, pool = asked
        self._turn += 1
        is_large = size >= self._max_split_bytes
        limit = size + _LARGE_SEGMENT_BYTES if is_large else self._max_split_bytes
        block = self._free[pool].pop(size, limit) or self._new_space(size, pool)
        rest = block.num_bytes - size
        if rest and block.num_bytes < self._max_split_bytes:
            splits_all = pool.is_small or self._expandable
            if rest >= _ROUND_BYTES if splits_all else rest > _SMALL_BYTES:
                self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.num_bytes
        return block

    def give(self, block: Block) -> None:
        """Make a block free again and join it with free neighbours."""
        self.allocated_bytes -= block.num_bytes
        free = self._free[block.pool]
        before, after = block.before, block.after
        if after is not None and after.is_free:
            free.remove(after)
            self._join(block, after)
        if before is not None and before.is_free:
            free.remove(before)
            self._join(before, block)
            block = before
        block.is_free, block.free_since = True, self._turn
        free.add(block)

    def free_blocks(self) -> list[list[Block]]:
        """The free blocks of each pool in the order in which they are looked at."""
        return [*map(list, self._free.values())]

    def _new_space(self, size: int, pool: Pool) -> Block:
        if self._expandable:
            return self._expanded(size, pool)
        if pool.is_small:
            segment = _SMALL_SEGMENT_BYTES
        elif size < _MEDIUM_BYTES:
            segment = _LARGE_SEGMENT_BYTES
        else:
            segment = _rounded(size, _SEGMENT_ROUND_BYTES)
        if self.reserved_bytes + segment > self._collects_above_bytes:
            self._collect(self.reserved_bytes + segment - self._collects_above_bytes)
        if self.reserved_bytes + segment > self._room_bytes:
            self._release(segment, pool)
        self._reserve(segment)
        return Block(segment, pool)

    def _reserve(self, num_bytes: int) -> None:
        self.reserved_bytes += num_bytes
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)

    def _collect(self, wanted_bytes: float) -> None:
        """Return large segments that have been unused for longer than the mean, again if needed."""
        large = [blocks for pool, blocks in self._free.items() if not pool.is_small]
        while wanted_bytes > 0 and any(each.segments for each in large):
            turns = [block.free_since for each in large for block in each.segments]
            returned = sum(each.remove_segments(sum(turns) / len(turns)) for each in large)
            self.reserved_bytes -= returned
            wanted_bytes -= returned

    def _release(self, segment: int, pool: Pool) -> None:
        """Make room for a segment: by one that is never split, or else by all that are unused."""
        if self._max_split_bytes < math.inf:
            self.reserved_bytes -= self._free[pool].remove_segment(
                max(segment, self._max_split_bytes)
            )
        if self.reserved_bytes + segment <= self._room_bytes:
            return
        self.reserved_bytes -= sum(blocks.remove_segments() for blocks in self._free.values())

    def _expanded(self, size: int, pool: Pool) -> Block:
        """The end of the pool's segment, as much longer as the request needs."""
        tail = self._tail.get(pool)
        page = _SMALL_SEGMENT_BYTES if pool.is_small else _LARGE_SEGMENT_BYTES
        if tail is not None and tail.is_free:
            self._free[pool].remove(tail)
            grown = _rounded(size - tail.num_bytes, page)
            tail.num_bytes += grown
        else:
            grown = _rounded(size, page)
            new = Block(grown, pool, before=tail)
            if tail is not None:
                tail.after = new
            tail = self._tail[pool] = new
        self._reserve(grown)
        return tail

    def _split(self, block: Block, size: int) -> None:
        """Leave ``size`` bytes of a block and offer the rest."""
        after = block.after
        rest = Block(block.num_bytes - size, block.pool, before=block, after=after)
        if after is not None:
            after.before = rest
        elif self._expandable:
            self._tail[block.pool] = rest
        rest.free_since = self._turn
        block.num_bytes, block.after = size, rest
        self._free[block.pool].add(rest)

    def _join(self, first: Block, second: Block) -> None:
        first.num_bytes += second.num_bytes
        after = first.after = second.after
        if after is not None:
            after.before = first
        elif self._expandable:
            self._tail[first.pool] = first


def _rounded(num_bytes: int, multiple: int) -> int:
    return math.ceil(num_bytes / multiple) * multiple
