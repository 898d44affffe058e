"""Which blocks of the KV cache are whose, and which hold a prefix that somebody may want?

PagedAttention (Kwon et al., arXiv 2309.06180, section 4): keys and values lie in blocks of a
few tokens, a request has a table of them. Full blocks are known by what they hold and by all
before them, so requests with the same beginning share them; they are never written again, so
no copy is needed. A block that nobody holds keeps what it has until it is taken for something
else: blocks without a name first, then the longest unused.

Source: vLLM 0.33.0, ``v1/core/block_pool.py`` and ``v1/core/kv_cache_manager.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from simulator.serving.request import Request

_SINGLE = 1


class BlockCache:
    """The blocks of one replica.

    Args:
        blocks: How many there are, >= 1.
        block_tokens: Tokens of each, >= 1.
        keeps_prefixes: Whether full blocks are found again.
    """

    def __init__(self, blocks: int, block_tokens: int, *, keeps_prefixes: bool) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.keeps_prefixes = keeps_prefixes
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._owners = [0] * blocks
        self._name_of: dict[int, Hashable] = {}
        self._holding: dict[Hashable, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, those that keep a prefix included."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens of one request fill."""
        return -(-tokens // self.block_tokens)

    def found(self, request: Request) -> list[int]:
        """Blocks that hold the beginning of a request already, all but its last token."""
        if not self.keeps_prefixes or not (request.prefix or request.preemptions):
            return []
        blocks = []
        for index in range((request.known_tokens - 1) // self.block_tokens):
            holders = self._holding.get(self._name(request, index))
            if holders is None:
                break
            blocks.append(holders[0])
        return blocks

    def missing_blocks(self, request: Request, tokens: int, found: Sequence[int] = ()) -> int:
        """Free blocks that a request takes to hold so many tokens, found ones included."""
        idle = sum(1 for block in found if not self._owners[block])
        new = self.blocks_for(tokens) - len(request.blocks) - len(found)
        return max(0, new) + idle

    def share(self, request: Request, found: Sequence[int]) -> None:
        """Give a request blocks that it :meth:`found`."""
        for block in found:
            if not self._owners[block]:
                del self._free[block]
            self._owners[block] += 1
        request.blocks.extend(found)

    def grow(self, request: Request, tokens: int) -> None:
        """Give a request blocks until it can hold so many tokens; they must be free."""
        for _ in range(self.blocks_for(tokens) - len(request.blocks)):
            block, _nothing = self._free.popitem(last=False)
            self._forget(block)
            self._owners[block] = _SINGLE
            request.blocks.append(block)

    def name_full(self, request: Request, tokens: int, named: int = 0) -> None:
        """Make the full blocks of a request's first tokens known, from the ``named``-th on."""
        if not self.keeps_prefixes:
            return
        for index in range(named, min(tokens // self.block_tokens, len(request.blocks))):
            block = request.blocks[index]
            if block not in self._name_of:
                name = self._name(request, index)
                self._name_of[block] = name
                self._holding.setdefault(name, []).append(block)

    def release(self, request: Request) -> None:
        """Take all blocks of a request back; the last ones are taken for others first."""
        last_first = request.blocks[::-1]
        request.blocks = []
        unnamed, named = [], []
        for block in last_first:
            self._owners[block] -= 1
            if not self._owners[block]:
                (named if block in self._name_of else unnamed).append(block)
        for block in named:
            self._free[block] = None
        for block in reversed(unnamed):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def _name(self, request: Request, index: int) -> Hashable:
        end = (index + 1) * self.block_tokens
        for part, (_key, part_end) in enumerate(request.prefix):
            if end <= part_end:
                return (tuple(key for key, _end in request.prefix[: part + 1]), index)
        return (request.number, index)

    def _forget(self, block: int) -> None:
        name = self._name_of.pop(block, None)
        if name is None:
            return
        holders = self._holding[name]
        holders.remove(block)
        if not holders:
            del self._holding[name]
