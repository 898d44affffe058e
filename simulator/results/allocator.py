"""How much memory does PyTorch's caching allocator reserve for a sequence of blocks?

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
- with ``expandable_segments`` each pool is one segment that grows at its end in pages of
  2 MiB (small) or 20 MiB (large), so that any free space in it can serve any request.

- every stream has blocks of its own, which serve no other one (FSDP of PyTorch 2.0 gathers
  whole weights on one of its own; FSDP2 takes them and the buffers of reductions on the compute
  stream, and only the outputs of its gathers, gone once copied, on another, which are ignored).

Ignored: that unused pages of an expandable segment go back to a full device.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_ROUND_BYTES = 512
_SMALL_BYTES = 2**20
_SMALL_SEGMENT_BYTES = 2 * 2**20
_MEDIUM_BYTES = 10 * 2**20
_LARGE_SEGMENT_BYTES = 20 * 2**20
_SEGMENT_ROUND_BYTES = 2 * 2**20


class Pool(NamedTuple):
    """Blocks that may serve each other.

    Attributes:
        stream: The stream that they were asked for on.
        is_small: Whether requests of up to 1 MiB share its segments.
    """

    stream: str
    is_small: bool


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment.

    Attributes:
        num_bytes: Size [B].
        pool: Which one it belongs to.
        is_free: Whether a request may take it.
        before, after: Neighbours in its segment.
    """

    num_bytes: int
    pool: Pool
    is_free: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def is_segment(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None


class CachingAllocator:
    """Blocks and segments of one device.

    Attributes:
        allocated_bytes: In blocks that are taken [B].
        reserved_bytes: In segments [B].
        most_reserved_bytes: In segments, at most [B].
    """

    def __init__(self, *, expandable_segments: bool = False, room_bytes: float = math.inf) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.most_reserved_bytes = 0
        self._room_bytes = room_bytes
        self._expandable = expandable_segments
        self._free: dict[Pool, list[tuple[int, int, Block]]] = {}
        """Free blocks of each pool, smallest first; the second number only breaks ties."""
        self._tail: dict[Pool, Block] = {}
        """Last block of each pool's expandable segment."""
        self._count = 0

    def take(self, num_bytes: float, stream: str = "") -> Block:
        """A block for a request of so many bytes on a stream."""
        size = max(_ROUND_BYTES, math.ceil(num_bytes / _ROUND_BYTES) * _ROUND_BYTES)
        is_small = size <= _SMALL_BYTES
        pool = Pool(stream, is_small)
        block = self._best_fit(size, pool) or self._new_space(size, pool)
        rest = block.num_bytes - size
        if rest >= _ROUND_BYTES if is_small or self._expandable else rest > _SMALL_BYTES:
            self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.num_bytes
        return block

    def give(self, block: Block) -> None:
        """Make a block free again and join it with free neighbours."""
        self.allocated_bytes -= block.num_bytes
        before, after = block.before, block.after
        if after is not None and after.is_free:
            self._forget(after)
            block = self._joined(block, after)
        if before is not None and before.is_free:
            self._forget(before)
            block = self._joined(before, block)
        self._offer(block)

    def _best_fit(self, size: int, pool: Pool) -> Block | None:
        blocks = self._free.get(pool, [])
        index = bisect.bisect_left(blocks, (size, 0))
        return blocks.pop(index)[2] if index < len(blocks) else None

    def _new_space(self, size: int, pool: Pool) -> Block:
        if self._expandable:
            return self._expanded(size, pool)
        if pool.is_small:
            segment = _SMALL_SEGMENT_BYTES
        elif size < _MEDIUM_BYTES:
            segment = _LARGE_SEGMENT_BYTES
        else:
            segment = _rounded(size, _SEGMENT_ROUND_BYTES)
        if self.reserved_bytes + segment > self._room_bytes:
            self._release()
        self._reserve(segment)
        return Block(segment, pool)

    def _reserve(self, num_bytes: int) -> None:
        self.reserved_bytes += num_bytes
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)

    def _release(self) -> None:
        """Return the segments in which no block is taken."""
        for pool, blocks in self._free.items():
            kept = [entry for entry in blocks if not entry[2].is_segment]
            unused = [entry for entry in blocks if entry[2].is_segment]
            self.reserved_bytes -= sum(size for size, _, _ in unused)
            self._free[pool] = kept

    def _expanded(self, size: int, pool: Pool) -> Block:
        """The end of the pool's segment, as much longer as the request needs."""
        tail = self._tail.get(pool)
        page = _SMALL_SEGMENT_BYTES if pool.is_small else _LARGE_SEGMENT_BYTES
        if tail is not None and tail.is_free:
            self._forget(tail)
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
        rest = Block(block.num_bytes - size, block.pool, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        if self._tail.get(block.pool) is block:
            self._tail[block.pool] = rest
        block.num_bytes, block.after = size, rest
        self._offer(rest)

    def _joined(self, first: Block, second: Block) -> Block:
        """Two neighbours as one block, the first of them."""
        first.num_bytes += second.num_bytes
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if self._tail.get(first.pool) is second:
            self._tail[first.pool] = first
        return first

    def _offer(self, block: Block) -> None:
        block.is_free = True
        self._count += 1
        entry = block.num_bytes, self._count, block
        bisect.insort(self._free.setdefault(block.pool, []), entry)

    def _forget(self, block: Block) -> None:
        blocks = self._free[block.pool]
        index = bisect.bisect_left(blocks, (block.num_bytes, 0))
        while blocks[index][2] is not block:
            index += 1
        del blocks[index]


def _rounded(num_bytes: float, multiple: int) -> int:
    return math.ceil(num_bytes / multiple) * multiple


Request = tuple[str, float]
"""A block of memory: the stream that it is asked for on, and its size [B]."""


def reserved_bytes(
    steps: Iterable[tuple[Iterable[Request], Iterable[Request]]],
    *,
    expandable_segments: bool,
    room_bytes: float = math.inf,
) -> float:
    """The most that is reserved while blocks come and go [B].

    Args:
        steps: The blocks that are taken, and then those that are given back.
        expandable_segments: How the allocator is set.
        room_bytes: What the device has; more is reserved only where nothing can be returned.
    """
    allocator = CachingAllocator(expandable_segments=expandable_segments, room_bytes=room_bytes)
    taken: dict[Request, list[Block]] = {}
    for takes, gives in steps:
        for request in takes:
            stream, size = request
            taken.setdefault(request, []).append(allocator.take(size, stream))
        for request in gives:
            allocator.give(taken[request].pop())
    return float(allocator.most_reserved_bytes)
