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
from bisect import bisect_right
from typing import NamedTuple

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.free_blocks import Block, FreeBlocks, Pool

_ROUND_BYTES = 512
_SMALL_BYTES = 2**20
_SMALL_SEGMENT_BYTES = 2 * 2**20
_MEDIUM_BYTES = 10 * 2**20
LARGE_SEGMENT_BYTES = 20 * 2**20
_SEGMENT_ROUND_BYTES = 2 * 2**20


class Request(NamedTuple):
    """What is asked of the allocator: bytes, rounded up, and the pool that serves them."""

    num_bytes: int
    pool: Pool


def request(num_bytes: float, *, stream: int = 0) -> Request:
    """The request for so many bytes, on the compute stream or another one."""
    size = max(_ROUND_BYTES, math.ceil(num_bytes / _ROUND_BYTES) * _ROUND_BYTES)
    return Request(size, Pool(size <= _SMALL_BYTES, stream))


class CachingAllocator:
    """Blocks and segments of one device.

    Attributes:
        allocated_bytes: In blocks that are taken [B].
        reserved_bytes: In segments [B].
        most_reserved_bytes: In segments, at most [B].
        segments_are_alike: Whether nothing tells free segments of one size apart.
        has_limits: Whether segments may be returned.
        segments_serve_again: Whether a new segment that is free again serves an equal request.
        turn: When it is, for those who compare choices with segments made: ascending.
        choices: When something was first taken out of free blocks or segments of a size: of
            (size asked, least size of another one that would not have been taken instead).
        made: When the latest segment of each size was made, and how many were.
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
        self.turn = 0
        self.choices: dict[tuple[int, int], int] = {}
        self.made: dict[int, tuple[int, int]] = {}
        self.has_limits = math.isfinite(min(room_bytes, collects_above_bytes))
        self._room_bytes = room_bytes
        self._collects_above_bytes = collects_above_bytes
        self._expandable = settings.expandable_segments
        self._max_split_bytes = math.inf if self._expandable else settings.max_split_bytes
        self.segments_are_alike = not self._expandable and math.isinf(collects_above_bytes)
        self.segments_serve_again = (
            self.segments_are_alike and not self.has_limits and math.isinf(self._max_split_bytes)
        )
        self._served = 0
        self._free: dict[Pool, FreeBlocks] = {}
        self._tail: dict[FreeBlocks, Block] = {}
        """Last block of each pool's expandable segment."""

    def take(self, num_bytes: float) -> Block:
        """A block for a request of so many bytes on the compute stream."""
        asked = request(num_bytes)
        block = self.serve(asked.num_bytes, self.pool(asked.pool))
        assert block is not None  # There is no limit.
        return block

    def pool(self, pool: Pool) -> FreeBlocks:
        """The free blocks of a pool."""
        if pool not in self._free:
            splits_all = pool.is_small or self._expandable
            kept_whole_bytes = 0 if splits_all else _SMALL_BYTES
            self._free[pool] = FreeBlocks(pool, kept_whole_bytes)
        return self._free[pool]

    def serve(self, size: int, free: FreeBlocks, below_bytes: float = math.inf) -> Block | None:
        """A block for a request; None where only one of some size or more would serve [B]."""
        self._served += 1
        queue = free.queues.get(size)
        while queue:
            head = queue[0]
            if isinstance(head, int):
                if head == 1:
                    queue.popleft()
                else:
                    queue[0] = head - 1
                self.allocated_bytes += size
                return free.segments[size]
            queue.popleft()
            if head.is_free:
                head.is_free = False
                self.allocated_bytes += size
                self.choices.setdefault((size, size + 1), self.turn)
                return head
        return self._serve_larger(size, free, below_bytes)

    def _serve_larger(self, size: int, free: FreeBlocks, below_bytes: float) -> Block | None:
        limit = self._max_split_bytes
        if size >= limit:
            limit = size + LARGE_SEGMENT_BYTES
        queues, sizes = free.queues, free.sizes
        index = bisect_right(sizes, size)
        block = None
        while index < len(sizes) and (found := sizes[index]) < limit:
            if found >= below_bytes:
                if free.has_any(found):
                    return None
            elif (block := free.pop(queues[found], found)) is not None:
                break
            # Nothing is left of this size.
            del sizes[index], queues[found]
        else:
            if below_bytes < math.inf:
                return None
            block = self._new_space(size, free)
            found = block.num_bytes
        before, after = block.before, block.after
        is_whole = before is after  # both None
        self.choices.setdefault((size, found if is_whole else found + 1), self.turn)
        rest_bytes = found - size
        if rest_bytes > free.kept_whole_bytes and found < self._max_split_bytes:
            if is_whole and self.segments_are_alike:
                block = Block(size, free)
            rest = Block(rest_bytes, free, True, block, after, self._served)
            if after is not None:
                after.before = rest
            elif self._expandable:
                self._tail[free] = rest
            block.num_bytes, block.after = size, rest
            found = size
            free.add(rest)
        block.is_free = False
        self.allocated_bytes += found
        return block

    def give(self, block: Block) -> int:
        """Make a block free again, joined with free neighbours.

        Returns:
            How large the free block is; 0 if it is a segment like others of its size [B].
        """
        size, free = block.num_bytes, block.free
        self.allocated_bytes -= size
        before, after = block.before, block.after
        # Those that were free are no more; this also takes them out of their queues.
        if after is not None and after.is_free:
            after.is_free = False
            size += after.num_bytes
            after = block.after = after.after
            if after is not None:
                after.before = block
            elif self._expandable:
                self._tail[free] = block
        if before is not None and before.is_free:
            before.is_free = False
            size += before.num_bytes
            before = block.before = before.before
            if before is not None:
                before.after = block
        if before is after and self.segments_are_alike:
            free.add_segments(size, 1)
            return 0
        block.num_bytes, block.is_free, block.free_since = size, True, self._served
        free.add(block)
        return size

    def pools(self) -> list[FreeBlocks]:
        """The free blocks of each pool that anything was asked of."""
        return [*self._free.values()]

    def makes_whole_segments(self, size: int, free: FreeBlocks) -> bool:
        """Whether each request of a size gets a new segment for itself, whatever others leave.

        What smaller requests leave of their new segments is less than 20 MiB.
        """
        return (
            size >= LARGE_SEGMENT_BYTES
            and not self.has_limits
            and self.segments_are_alike
            and not self._is_split(_segment_bytes(size, free), size, free)
            and not free.has_any(size)
            and not free.has_larger(size)
        )

    def _is_split(self, segment: int, size: int, free: FreeBlocks) -> bool:
        return segment - size > free.kept_whole_bytes and segment < self._max_split_bytes

    def take_segments(self, size: int, free: FreeBlocks, count: int) -> Block:
        """What stands for each of so many whole segments, for requests of a size.

        They are the first free ones of this size, or else all of them are made.
        """
        if free.segments_first(size) >= count:
            self.allocated_bytes += size * count
            return free.pop_segments(size, count)
        segment = _segment_bytes(size, free)
        self.choices.setdefault((size, segment), self.turn)
        self._reserve(segment, count)
        self.allocated_bytes += segment * count
        return free.segment(segment)

    def give_segments(self, segment: Block, count: int) -> None:
        """Make so many segments free again, each of which is one such block."""
        self.allocated_bytes -= segment.num_bytes * count
        segment.free.add_segments(segment.num_bytes, count)

    def _new_space(self, size: int, free: FreeBlocks) -> Block:
        if self._expandable:
            return self._expanded(size, free)
        segment = _segment_bytes(size, free)
        if self.reserved_bytes + segment > self._collects_above_bytes:
            self._collect(self.reserved_bytes + segment - self._collects_above_bytes)
        if self.reserved_bytes + segment > self._room_bytes:
            self._release(segment, free)
        self._reserve(segment, 1)
        return free.segment(segment) if self.segments_are_alike else Block(segment, free)

    def _reserve(self, num_bytes: int, count: int) -> None:
        self.made[num_bytes] = self.turn, self.made.get(num_bytes, (0, 0))[1] + count
        self.reserved_bytes += num_bytes * count
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)

    def _collect(self, wanted_bytes: float) -> None:
        """Return large segments that have been unused for longer than the mean, again if needed."""
        large = [blocks for pool, blocks in self._free.items() if not pool.is_small]
        while wanted_bytes > 0:
            turns = [since for each in large for since in each.segments_free_since()]
            if not turns:
                return
            returned = sum(each.remove_segments(sum(turns) / len(turns)) for each in large)
            self.reserved_bytes -= returned
            wanted_bytes -= returned

    def _release(self, segment: int, free: FreeBlocks) -> None:
        """Make room for a segment: by one that is never split, or else by all that are unused."""
        if self._max_split_bytes < math.inf:
            self.reserved_bytes -= free.remove_segment(max(segment, self._max_split_bytes))
        if self.reserved_bytes + segment <= self._room_bytes:
            return
        self.reserved_bytes -= sum(blocks.remove_segments() for blocks in self._free.values())

    def _expanded(self, size: int, free: FreeBlocks) -> Block:
        """The end of the pool's segment, as much longer as the request needs."""
        tail = self._tail.get(free)
        page = _SMALL_SEGMENT_BYTES if free.pool.is_small else LARGE_SEGMENT_BYTES
        if tail is not None and tail.is_free:
            tail.is_free = False
            grown = _rounded(size - tail.num_bytes, page)
            new = Block(tail.num_bytes + grown, free, before=tail.before)
        else:
            grown = _rounded(size, page)
            new = Block(grown, free, before=tail)
        if new.before is not None:
            new.before.after = new
        self._tail[free] = new
        self._reserve(grown, 1)
        return new


def _segment_bytes(size: int, free: FreeBlocks) -> int:
    """Of the segment that is made for a request [B]."""
    if free.pool.is_small:
        return _SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if size < _MEDIUM_BYTES else _rounded(size, _SEGMENT_ROUND_BYTES)


def _rounded(num_bytes: int, multiple: int) -> int:
    return -(-num_bytes // multiple) * multiple
