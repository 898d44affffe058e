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
  2 MiB (small) or 20 MiB (large), so that any free space in it can serve any request, but for what
  ``max_split_size_mb`` forbids, which then takes more at the end (pytorch/pytorch, issue 123548);
  all blocks are split;
- what is asked for on another stream has pools of its own (FSDP of PyTorch 2.0 gathers whole
  weights there; FSDP2 takes them and the buffers of reductions on the compute stream, shards of
  gradients on that of reductions; outputs of gathers, gone once copied, are ignored).

Ignored: that unused pages of an expandable segment go back to a full device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator.free_blocks import NOTHING, Blocks, FreeBlocks, Pool

_ROUND_BYTES = 512
_SMALL_BYTES = 2**20
SMALL_SEGMENT_BYTES = 2 * 2**20
_MEDIUM_BYTES = 10 * 2**20
_LARGE_SEGMENT_BYTES = 20 * 2**20
_SEGMENT_ROUND_BYTES = 2 * 2**20


class Request(NamedTuple):
    """What is asked of the allocator: bytes, rounded up, and the pool that serves them."""

    num_bytes: int
    pool: Pool


def request(num_bytes: float, *, stream: int = 0) -> Request:
    """The request for so many bytes, on the compute stream or another one."""
    size = max(_ROUND_BYTES, math.ceil(num_bytes / _ROUND_BYTES) * _ROUND_BYTES)
    return Request(size, Pool(size <= _SMALL_BYTES, stream))


class Stack:
    """Blocks that were taken for equal requests, by their number, the last one last.

    Attributes:
        size: Of the requests [B].
        free: The blocks that may serve them.
        below_bytes: Free blocks of this size and more may not [B].
        segment_bytes: Of the segment that is made for one [B].
        is_whole: Whether it is all given to the request, and larger than what others leave.
        taken: Those that serve them.
    """

    __slots__ = ("below_bytes", "free", "is_whole", "segment_bytes", "size", "taken")

    def __init__(self, size: int, free: FreeBlocks, max_split_bytes: float) -> None:
        self.size = size
        self.free = free
        is_split = size < max_split_bytes
        self.below_bytes = max_split_bytes if is_split else size + _LARGE_SEGMENT_BYTES
        self.segment_bytes = _segment_bytes(size, free)
        self.is_whole = (
            size >= _LARGE_SEGMENT_BYTES and self.segment_bytes - size <= free.kept_whole_bytes
        )
        self.taken: list[int] = []


class CachingAllocator:
    """Blocks and segments of one device.

    Attributes:
        blocks: All blocks.
        reserved_bytes: In segments [B].
        most_reserved_bytes: In segments, at most [B].
        segments_are_alike: Whether nothing tells free segments of one size apart.
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
        self.blocks = Blocks()
        self.reserved_bytes = 0
        self.most_reserved_bytes = 0
        self.turn = 0
        self.choices: dict[tuple[int, int], int] = {}
        self.made: dict[int, tuple[int, int]] = {}
        self._has_limits = math.isfinite(min(room_bytes, collects_above_bytes))
        self._room_bytes = room_bytes
        self._collects_above_bytes = collects_above_bytes
        self._expandable = settings.expandable_segments
        self._max_split_bytes = settings.max_split_bytes
        self._unsplit_bytes = math.inf if self._expandable else settings.max_split_bytes
        self.segments_are_alike = not self._expandable and math.isinf(collects_above_bytes)
        self.segments_serve_again = (
            self.segments_are_alike and not self._has_limits and math.isinf(self._max_split_bytes)
        )
        self._served = 0
        self._free: dict[Pool, FreeBlocks] = {}
        self._tail: dict[FreeBlocks, int] = {}
        """Last block of each pool's expandable segment."""

    def stack(self, asked: Request) -> Stack:
        """Where blocks for equal requests are put."""
        pool = asked.pool
        if pool not in self._free:
            splits_all = pool.is_small or self._expandable
            self._free[pool] = FreeBlocks(
                self.blocks,
                pool,
                kept_whole_bytes=0 if splits_all else _SMALL_BYTES,
                least_segment_bytes=SMALL_SEGMENT_BYTES if pool.is_small else _MEDIUM_BYTES,
            )
        return Stack(asked.num_bytes, self._free[pool], self._max_split_bytes)

    def pools(self) -> list[FreeBlocks]:
        """The free blocks of each pool that anything was asked of."""
        return [*self._free.values()]

    def take(self, stacks: Sequence[Stack]) -> None:  # noqa: PLR0912, PLR0915 - a call costs more
        """Put a block for its request on each stack, one after another.

        Blocks are mostly cut out of what the last one left, which is offered at the end only.
        Where a whole segment is made, none is free that is as large, and what is left of others
        is smaller, so equal requests of these stacks get one of their own, too.
        """
        blocks = self.blocks
        size_bytes, is_free = blocks.size_bytes, blocks.is_free
        befores, afters = blocks.before, blocks.after
        choices, turn = self.choices, self.turn
        are_alike, unsplit_bytes = self.segments_are_alike, self._unsplit_bytes
        fresh: dict[Stack, int] = {}
        rest, rest_bytes, rest_of = NOTHING, 0, None
        for stack in stacks:
            size, free = stack.size, stack.free
            queue = free.queues.get(size)
            while queue:
                block = queue[0]
                if block < 0:
                    if block < -1:
                        queue[0] = block + 1
                    else:
                        del queue[0]
                    block = free.segments[size]
                    break
                del queue[0]
                if is_free[block]:
                    is_free[block] = False
                    if size >= free.least_segment_bytes:
                        choices.setdefault((size, size + 1), turn)
                    break
            else:
                if stack in fresh:
                    fresh[stack] += 1
                    continue
                if (
                    free is not rest_of
                    or not size <= rest_bytes < stack.below_bytes
                    or not free.is_next(size, rest_bytes)
                ):
                    if rest_of is not None:
                        self._offer(rest, rest_bytes, rest_of)
                    rest, rest_of = free.pop_larger(size, stack.below_bytes), free
                    if rest == NOTHING:
                        if stack.is_whole and self.segments_serve_again:
                            fresh[stack], rest_of = 1, None
                            continue
                        rest = self._new_space(stack)
                    rest_bytes = size_bytes[rest]
                before = befores[rest]
                is_segment = before == afters[rest]
                if rest_bytes >= free.least_segment_bytes:
                    choices.setdefault((size, rest_bytes + (not is_segment)), turn)
                if rest_bytes - size <= free.kept_whole_bytes or rest_bytes >= unsplit_bytes:
                    block, rest_of = rest, None
                    size_bytes[block] = rest_bytes
                else:
                    if is_segment and are_alike:
                        rest = blocks.new(rest_bytes)
                    block = len(size_bytes)
                    size_bytes.append(size)
                    befores.append(before)
                    afters.append(rest)
                    is_free.append(False)
                    if before != NOTHING:
                        afters[before] = block
                    befores[rest] = block
                    rest_bytes -= size
            stack.taken.append(block)
        if rest_of is not None:
            self._offer(rest, rest_bytes, rest_of)
        for stack, count in fresh.items():
            self._reserve(stack.segment_bytes, count)
            stack.taken += [stack.free.segment(stack.segment_bytes, count)] * count
        self._served += len(stacks)

    def _offer(self, rest: int, num_bytes: int, free: FreeBlocks) -> None:
        self.blocks.size_bytes[rest], self.blocks.is_free[rest] = num_bytes, True
        free.queue(num_bytes).append(rest)

    def give(self, stacks: Sequence[Stack]) -> None:
        """Make the last block of each stack free again, joined with free neighbours."""
        blocks = self.blocks
        size_bytes, is_free = blocks.size_bytes, blocks.is_free
        befores, afters = blocks.before, blocks.after
        are_alike = self.segments_are_alike
        for stack in stacks:
            block, free = stack.taken.pop(), stack.free
            size = size_bytes[block]
            before, after = befores[block], afters[block]
            if before != after:
                # Those that were free are no more; this also takes them out of their queues.
                if after != NOTHING and is_free[after]:
                    is_free[after] = False
                    size += size_bytes[after]
                    after = afters[block] = afters[after]
                    if after != NOTHING:
                        befores[after] = block
                    elif self._expandable:
                        self._tail[free] = block
                if before != NOTHING and is_free[before]:
                    is_free[before] = False
                    size += size_bytes[before]
                    before = befores[block] = befores[before]
                    if before != NOTHING:
                        afters[before] = block
                size_bytes[block] = size
            queue = free.queues.get(size)
            if queue is None:
                queue = free.queue(size)
            if before == after:
                free.segments.setdefault(size, block)
                if are_alike:
                    if queue and queue[-1] < 0:
                        queue[-1] -= 1
                    else:
                        queue.append(-1)
                    continue
                blocks.free_since[block] = self._served
            is_free[block] = True
            queue.append(block)

    def _new_space(self, stack: Stack) -> int:
        """A block that was not there: a segment, or the end of one that grows."""
        if self._expandable:
            return self._expanded(stack.size, stack.free)
        segment = stack.segment_bytes
        if self._has_limits:
            self._make_room(segment, stack.free)
        self._reserve(segment)
        return stack.free.segment(segment) if self.segments_are_alike else self.blocks.new(segment)

    def _reserve(self, num_bytes: int, count: int = 1) -> None:
        _, before = self.made.get(num_bytes, (0, 0))
        self.made[num_bytes] = self.turn, before + count
        self.reserved_bytes += num_bytes * count
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)

    def _make_room(self, segment: int, free: FreeBlocks) -> None:
        """Return segments where a further one would be too much."""
        if self.reserved_bytes + segment > self._collects_above_bytes:
            self._collect(self.reserved_bytes + segment - self._collects_above_bytes)
        if self.reserved_bytes + segment > self._room_bytes:
            self._release(segment, free)

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

    def _expanded(self, size: int, free: FreeBlocks) -> int:
        """The end of the pool's segment, as much longer as the request needs."""
        blocks = self.blocks
        tail = self._tail.get(free, NOTHING)
        page = SMALL_SEGMENT_BYTES if free.pool.is_small else _LARGE_SEGMENT_BYTES
        there, before = 0, tail
        if tail != NOTHING and blocks.is_free[tail]:
            blocks.is_free[tail] = False
            there, before = blocks.size_bytes[tail], blocks.before[tail]
        grown = max(0, _rounded(size - there, page))
        new = self._tail[free] = blocks.new(there + grown, before)
        if before != NOTHING:
            blocks.after[before] = new
        self._reserve(grown)
        return new


def _segment_bytes(size: int, free: FreeBlocks) -> int:
    """Of the segment that is made for a request [B]."""
    if free.pool.is_small:
        return SMALL_SEGMENT_BYTES
    return _LARGE_SEGMENT_BYTES if size < _MEDIUM_BYTES else _rounded(size, _SEGMENT_ROUND_BYTES)


def _rounded(num_bytes: int, multiple: int) -> int:
    return -(-num_bytes // multiple) * multiple
