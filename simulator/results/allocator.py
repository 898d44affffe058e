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
- with ``expandable_segments`` each pool is one segment that grows at its end in pages of
  2 MiB (small) or 20 MiB (large), so that any free space in it can serve any request.

Ignored: that each stream has free blocks of its own (FSDP2 takes whole weights and the buffers
of reductions on the compute stream; only the outputs of its gathers, gone once copied, come
from another), and that cached segments go back to the driver when it runs out of memory.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass

_ROUND_BYTES = 512
_SMALL_BYTES = 2**20
_SMALL_SEGMENT_BYTES = 2 * 2**20
_MEDIUM_BYTES = 10 * 2**20
_LARGE_SEGMENT_BYTES = 20 * 2**20
_SEGMENT_ROUND_BYTES = 2 * 2**20


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment.

    Attributes:
        num_bytes: Size [B].
        is_small: Which pool it belongs to.
        is_free: Whether a request may take it.
        before, after: Neighbours in its segment.
    """

    num_bytes: int
    is_small: bool
    is_free: bool = True
    before: Block | None = None
    after: Block | None = None


class CachingAllocator:
    """Blocks and segments of one device.

    Attributes:
        allocated_bytes: In blocks that are taken [B].
        reserved_bytes: In segments [B].
    """

    def __init__(self, *, expandable_segments: bool = False) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self._expandable = expandable_segments
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        """Free blocks of each pool, smallest first; the second number only breaks ties."""
        self._tail: dict[bool, Block] = {}
        """Last block of each pool's expandable segment."""
        self._count = 0

    def take(self, num_bytes: float) -> Block:
        """A block for a request of so many bytes."""
        size = max(_ROUND_BYTES, math.ceil(num_bytes / _ROUND_BYTES) * _ROUND_BYTES)
        is_small = size <= _SMALL_BYTES
        block = self._best_fit(size, is_small) or self._new_space(size, is_small)
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

    def _best_fit(self, size: int, is_small: bool) -> Block | None:
        blocks = self._free[is_small]
        index = bisect.bisect_left(blocks, (size, 0))
        return blocks.pop(index)[2] if index < len(blocks) else None

    def _new_space(self, size: int, is_small: bool) -> Block:
        if self._expandable:
            return self._expanded(size, is_small)
        if is_small:
            segment = _SMALL_SEGMENT_BYTES
        elif size < _MEDIUM_BYTES:
            segment = _LARGE_SEGMENT_BYTES
        else:
            segment = _rounded(size, _SEGMENT_ROUND_BYTES)
        self.reserved_bytes += segment
        return Block(segment, is_small)

    def _expanded(self, size: int, is_small: bool) -> Block:
        """The end of the pool's segment, as much longer as the request needs."""
        tail = self._tail.get(is_small)
        page = _SMALL_SEGMENT_BYTES if is_small else _LARGE_SEGMENT_BYTES
        if tail is not None and tail.is_free:
            self._forget(tail)
            grown = _rounded(size - tail.num_bytes, page)
            tail.num_bytes += grown
        else:
            grown = _rounded(size, page)
            new = Block(grown, is_small, before=tail)
            if tail is not None:
                tail.after = new
            tail = self._tail[is_small] = new
        self.reserved_bytes += grown
        return tail

    def _split(self, block: Block, size: int) -> None:
        """Leave ``size`` bytes of a block and offer the rest."""
        rest = Block(block.num_bytes - size, block.is_small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        if self._tail.get(block.is_small) is block:
            self._tail[block.is_small] = rest
        block.num_bytes, block.after = size, rest
        self._offer(rest)

    def _joined(self, first: Block, second: Block) -> Block:
        """Two neighbours as one block, the first of them."""
        first.num_bytes += second.num_bytes
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if self._tail.get(first.is_small) is second:
            self._tail[first.is_small] = first
        return first

    def _offer(self, block: Block) -> None:
        block.is_free = True
        self._count += 1
        bisect.insort(self._free[block.is_small], (block.num_bytes, self._count, block))

    def _forget(self, block: Block) -> None:
        blocks = self._free[block.is_small]
        index = bisect.bisect_left(blocks, (block.num_bytes, 0))
        while blocks[index][2] is not block:
            index += 1
        del blocks[index]


def _rounded(num_bytes: float, multiple: int) -> int:
    return math.ceil(num_bytes / multiple) * multiple


def reserved_bytes(
    steps: Iterable[tuple[Iterable[float], Iterable[float]]], *, expandable_segments: bool
) -> float:
    """The most that is reserved while blocks come and go [B].

    Args:
        steps: Sizes of the blocks that are taken, and then of those that are given back.
        expandable_segments: How the allocator is set.
    """
    allocator = CachingAllocator(expandable_segments=expandable_segments)
    taken: dict[float, list[Block]] = {}
    for takes, gives in steps:
        for size in takes:
            taken.setdefault(size, []).append(allocator.take(size))
        for size in gives:
            allocator.give(taken[size].pop())
    return float(allocator.reserved_bytes)
