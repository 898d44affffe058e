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

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import NamedTuple

_ROUND_BYTES = 512
_SMALL_BYTES = 2**20
_SMALL_SEGMENT_BYTES = 2 * 2**20
_MEDIUM_BYTES = 10 * 2**20
_LARGE_SEGMENT_BYTES = 20 * 2**20
_SEGMENT_ROUND_BYTES = 2 * 2**20
_APART_BYTES = 2**60
"""Between the addresses of the two pools: more than any device has."""


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment.

    Attributes:
        num_bytes: Size [B].
        address: Where it begins [B]; two segments never touch.
        is_small: Which pool it belongs to.
        is_free: Whether a request may take it.
        before, after: Neighbours in its segment.
        turn: Which of the free blocks of its size goes first.
    """

    num_bytes: int
    address: int
    is_small: bool
    is_free: bool = True
    before: Block | None = None
    after: Block | None = None
    turn: int = 0


class Request(NamedTuple):
    """What is asked of the allocator.

    Attributes:
        num_bytes: Size, rounded up [B].
        is_small: Which pool serves it.
    """

    num_bytes: int
    is_small: bool


def request(num_bytes: float) -> Request:
    """The request for so many bytes."""
    size = max(_ROUND_BYTES, math.ceil(num_bytes / _ROUND_BYTES) * _ROUND_BYTES)
    return Request(size, size <= _SMALL_BYTES)


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
        """Free blocks of each pool, smallest first; the second number is their turn."""
        self._tail: dict[bool, Block] = {}
        """Last block of each pool's expandable segment."""
        self._turn = 0
        self._end = 0
        """One past the last segment."""

    def take(self, num_bytes: float) -> Block:
        """A block for a request of so many bytes."""
        return self.serve(request(num_bytes))

    def serve(self, asked: Request) -> Block:
        """A block for a request."""
        size, is_small = asked
        blocks = self._free[is_small]
        index = bisect_left(blocks, (size, 0))
        block = blocks.pop(index)[2] if index < len(blocks) else self._new_space(size, is_small)
        rest = block.num_bytes - size
        if rest and (rest >= _ROUND_BYTES if is_small or self._expandable else rest > _SMALL_BYTES):
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
            self._join(block, after)
        if before is not None and before.is_free:
            self._forget(before)
            self._join(before, block)
            block = before
        self._offer(block)

    def free_blocks(self) -> tuple[tuple[int, int], ...]:
        """Address and size of every free block, those of a pool in order of their turn [B]."""
        pools = self._free.values()
        return tuple((block.address, size) for pool in pools for size, _, block in pool)

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
        address = self._end
        self._end += segment + _ROUND_BYTES
        return Block(segment, address, is_small)

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
            address = tail.address + tail.num_bytes if tail else is_small * _APART_BYTES
            new = Block(grown, address, is_small, before=tail)
            if tail is not None:
                tail.after = new
            tail = self._tail[is_small] = new
        self.reserved_bytes += grown
        return tail

    def _split(self, block: Block, size: int) -> None:
        """Leave ``size`` bytes of a block and offer the rest."""
        after = block.after
        rest = Block(
            block.num_bytes - size, block.address + size, block.is_small,
            before=block, after=after,
        )  # fmt: skip
        if after is not None:
            after.before = rest
        elif self._expandable:
            self._tail[block.is_small] = rest
        block.num_bytes, block.after = size, rest
        self._offer(rest)

    def _join(self, first: Block, second: Block) -> None:
        """Make the first of two neighbours both of them."""
        first.num_bytes += second.num_bytes
        after = first.after = second.after
        if after is not None:
            after.before = first
        elif self._expandable:
            self._tail[first.is_small] = first

    def _offer(self, block: Block) -> None:
        block.is_free = True
        self._turn = block.turn = self._turn + 1
        insort(self._free[block.is_small], (block.num_bytes, block.turn, block))

    def _forget(self, block: Block) -> None:
        blocks = self._free[block.is_small]
        del blocks[bisect_left(blocks, (block.num_bytes, block.turn))]


def _rounded(num_bytes: int, multiple: int) -> int:
    return math.ceil(num_bytes / multiple) * multiple
