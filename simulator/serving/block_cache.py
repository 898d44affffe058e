"""Which blocks of the KV cache are whose, and which hold a prefix that somebody may want?

PagedAttention (Kwon et al., arXiv 2309.06180, section 4): keys and values lie in blocks of a
few tokens, a request has a table of them. Full blocks are known by what they hold and by all
before them, so requests with the same beginning share them; they are never written again, so
no copy is needed. A block that nobody holds keeps what it has until it is taken for something
else: blocks without a name first, then the longest unused.

Only blocks that somebody may look for get a name here: shared beginnings, and all of a request
that was preempted. Others take the same place in the queue without one.

Source: vLLM 0.33.0, ``v1/core/block_pool.py`` and ``v1/core/kv_cache_manager.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

from simulator.errors import DoesNotFitError
from simulator.serving.requests import Request

_QUEUED_AT_ONCE = 1024


class BlockCache:
    """The blocks of one replica.

    Args:
        blocks: How many there are, >= 1.
        block_tokens: Tokens of each, >= 1.
        keeps_prefixes: Whether full blocks are found again.
        host_blocks: Blocks of host memory that requests may move to.
    """

    def __init__(
        self, blocks: int, block_tokens: int, *, keeps_prefixes: bool, host_blocks: int = 0
    ) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.keeps_prefixes = keeps_prefixes
        self.free_blocks = blocks
        """Blocks that nobody holds, those that keep a prefix included."""
        self.host_blocks = host_blocks
        self.on_host: dict[Request, int] = {}
        """Blocks of requests that moved to the host, in the order in which they did."""
        # Free blocks in the order in which they are taken: the queue, those that nobody has had
        # yet, and those that were released to be taken last.
        self._queue: deque[int] = deque()
        self._untouched = range(blocks)
        self._last: deque[int] = deque()
        # Entries of the queue that no longer hold, by block: it was found and taken.
        self._stale: dict[int, int] = {}
        self._name_of: dict[int, Hashable] = {}
        self._holding: dict[Hashable, list[int]] = {}
        self._users: dict[int, int] = {}

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens of one request fill."""
        return -(-tokens // self.block_tokens)

    def found(self, request: Request) -> Sequence[int]:
        """Blocks that hold the beginning of a request already, all but its last token."""
        if not self._holding or not (request.prefix or request.preemptions):
            return ()
        blocks = []
        for index in range((request.known_tokens - 1) // self.block_tokens):
            holders = self._holding.get(self._name(request, index))
            if holders is None:
                break
            blocks.append(holders[0])
        return blocks

    def missing_blocks(self, request: Request, tokens: int, found: Sequence[int] = ()) -> int:
        """Free blocks that a request takes to hold so many tokens, idle found ones included."""
        new = self.blocks_for(tokens) - len(request.blocks) - len(found)
        if not found:
            return max(0, new)
        return max(0, new) + sum(1 for block in found if not self._users[block])

    def share(self, request: Request, found: Sequence[int]) -> None:
        """Give a request blocks that it :meth:`found`."""
        for block in found:
            if not self._users[block]:
                self._stale[block] = self._stale.get(block, 0) + 1
                self.free_blocks -= 1
            self._users[block] += 1
        request.blocks.extend(found)

    def grow(self, request: Request, tokens: int) -> None:
        """Give a request blocks until it can hold so many tokens; they must be free."""
        new = self.blocks_for(tokens) - len(request.blocks)
        if new <= 0:
            return
        self.free_blocks -= new
        while self._untouched and len(self._queue) < new:
            self._queue_untouched()
        take = self._queue.popleft if not self._name_of else self._take
        request.blocks.extend([take() for _ in range(new)])

    def grow_by_block(self, request: Request) -> None:
        """Give a request one more block; it must be free."""
        self.free_blocks -= 1
        request.blocks.append(self._take() if self._name_of else self._next_free())

    def name_full(self, request: Request, tokens: int, named: int = 0) -> None:
        """Make the full blocks of a request's first tokens known, from the ``named``-th on."""
        if not self.keeps_prefixes:
            return
        for index in range(named, min(tokens // self.block_tokens, len(request.blocks))):
            block = request.blocks[index]
            if block not in self._name_of:
                name = self._name(request, index)
                self._name_of[block] = name
                self._users[block] = 1
                self._holding.setdefault(name, []).append(block)

    def release(self, request: Request) -> None:
        """Take all blocks of a request back; the last ones are taken for others first."""
        blocks, request.blocks = request.blocks, []
        full = request.named_tokens // self.block_tokens if self.keeps_prefixes else 0
        if self._users:
            self._drop_named(blocks, full)
            return
        self.free_blocks += len(blocks)
        self._last.extend(reversed(blocks[:full]))
        self._queue.extendleft(blocks[full:])

    def swap_out(self, request: Request) -> None:
        """Move a request's blocks to the host.

        Raises:
            DoesNotFitError: The host has no room; vLLM's engine ends there, too.
        """
        blocks = len(request.blocks)
        if sum(self.on_host.values()) + blocks > self.host_blocks:
            raise DoesNotFitError(
                f"the {self.host_blocks} blocks of host memory have no room for the {blocks} of a "
                "preempted request, which ends vLLM: give deployment.swap more memory"
            )
        self.on_host[request] = blocks
        self.release(request)

    def swap_in(self, request: Request) -> int:
        """Move a request's blocks back from the host; returns how many, which must be free."""
        blocks = self.on_host.pop(request)
        self.grow(request, blocks * self.block_tokens)
        return blocks

    def _drop_named(self, blocks: Sequence[int], full: int) -> None:
        """As :meth:`release`, where some blocks may have names and other users."""
        users = self._users
        last: list[int] = []
        first: list[int] = []
        for index, block in enumerate(blocks):
            if block in users:
                users[block] -= 1
                if users[block]:
                    continue
                last.append(block)
            else:
                (last if index < full else first).append(block)
        self.free_blocks += len(last) + len(first)
        self._last.extend(reversed(last))
        self._queue.extendleft(first)

    def _next_free(self) -> int:
        if not self._queue:
            self._queue_untouched()
        return self._queue.popleft()

    def _queue_untouched(self) -> None:
        """Queue the next blocks that nobody has had; a large cluster never touches most of them."""
        self._queue.extend(self._untouched[:_QUEUED_AT_ONCE])
        self._untouched = self._untouched[_QUEUED_AT_ONCE:]
        if not self._untouched:
            self._queue.extend(self._last)
            self._last = self._queue

    def _take(self) -> int:
        block = self._next_free()
        while self._stale.get(block):
            self._stale[block] -= 1
            if not self._stale[block]:
                del self._stale[block]
            block = self._next_free()
        name = self._name_of.pop(block, None)
        if name is not None:
            del self._users[block]
            holders = self._holding[name]
            holders.remove(block)
            if not holders:
                del self._holding[name]
        return block

    def _name(self, request: Request, index: int) -> Hashable:
        end = (index + 1) * self.block_tokens
        for part, (_key, part_end) in enumerate(request.prefix):
            if end <= part_end:
                return (tuple(key for key, _end in request.prefix[: part + 1]), index)
        return (request.number, index)
