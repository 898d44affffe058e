"""Which prefixes does a radix tree keep, and what is thrown out first?

SGLang's cache (Zheng et al., arXiv 2312.07104, section 3): prompts and answers are paths of
a tree, whoever begins alike shares the path. Tokens, not blocks, are counted. Leaves that no
running request needs are thrown out, the longest unused first, when memory is wanted.

Ignores: the split of a node inside a part that the workload names as one.

Source: SGLang 0.5.23, ``mem_cache/radix_cache.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field

from simulator.serving.requests import Request


@dataclass(slots=True, eq=False)
class Node:
    """A part of prompts: so many tokens after its parent's."""

    key: Hashable
    tokens: int
    parent: Node | None
    children: dict[Hashable, Node] = field(default_factory=dict)
    users: int = 0
    last_use: int = 0


class RadixCache:
    """Tokens of one replica's cache.

    Args:
        tokens: How many it holds.
        keeps_prefixes: Whether anything is found again.
    """

    def __init__(self, tokens: int, *, keeps_prefixes: bool = True) -> None:
        self.tokens = tokens
        self.keeps_prefixes = keeps_prefixes
        self.free_tokens: float = tokens
        self.evictable_tokens = 0
        self._root = Node(None, 0, None)
        self._paths: dict[Request, list[Node]] = {}
        self._clock = 0
        self._idle: list[tuple[int, int, Node]] = []
        self._entries = 0

    @property
    def available_tokens(self) -> float:
        """Tokens that are free, or kept for nobody who runs."""
        return self.free_tokens + self.evictable_tokens

    def found_tokens(self, request: Request) -> int:
        """Tokens of a request's beginning that the tree has, all but its last at most."""
        path = self._path(request)
        return int(min(sum(node.tokens for node in path), request.known_tokens - 1))

    def lock(self, request: Request) -> None:
        """Keep the path of a request until it is unlocked."""
        path = self._path(request)
        self._paths[request] = path
        self._clock += 1
        for node in path:
            if node.users == 0:
                self.evictable_tokens -= node.tokens
            node.users += 1
            node.last_use = self._clock

    def take(self, tokens: float) -> bool:
        """Take tokens, throwing out what nobody needs; False if there are not enough."""
        if tokens > self.available_tokens:
            return False
        while tokens > self.free_tokens:
            self._evict()
        self.free_tokens -= tokens
        return True

    def give_back(self, tokens: float) -> None:
        """Make tokens free that were taken."""
        self.free_tokens += tokens

    def keep(self, request: Request) -> None:
        """Put the shared parts of a computed prompt into the tree, and lock them.

        Their tokens were taken by the request; those that the tree has already are freed.
        """
        if not self.keeps_prefixes or not request.prefix:
            return
        path = self._paths.get(request, [])
        node, start = (path[-1] if path else self._root), sum(n.tokens for n in path)
        for key, end in request.prefix[len(path) :]:
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(key, end - start, node)
            else:
                self.free_tokens += child.tokens
                if child.users == 0:
                    self.evictable_tokens -= child.tokens
            child.users += 1
            child.last_use = self._clock
            path.append(child)
            node, start = child, end
        self._paths[request] = path

    def locked_tokens(self, request: Request) -> int:
        """Tokens of the request's path in the tree."""
        return sum(node.tokens for node in self._paths.get(request, ()))

    def unlock(self, request: Request) -> None:
        """Need the path of a request no longer."""
        self._clock += 1
        for node in self._paths.pop(request, ()):
            node.users -= 1
            node.last_use = self._clock
            if node.users == 0:
                self.evictable_tokens += node.tokens
                self._await_eviction(node)

    def _path(self, request: Request) -> list[Node]:
        path: list[Node] = []
        if self.keeps_prefixes:
            node = self._root
            for key, _end in request.prefix:
                child = node.children.get(key)
                if child is None:
                    break
                path.append(child)
                node = child
        return path

    def _await_eviction(self, node: Node) -> None:
        if not node.children:
            self._entries += 1
            heapq.heappush(self._idle, (node.last_use, self._entries, node))

    def _evict(self) -> None:
        last_use, _entry, node = heapq.heappop(self._idle)
        parent = node.parent
        is_gone = parent is None or parent.children.get(node.key) is not node
        if is_gone or node.users or node.children or node.last_use != last_use:
            return
        assert parent is not None
        del parent.children[node.key]
        self.evictable_tokens -= node.tokens
        self.free_tokens += node.tokens
        if parent is not self._root and parent.users == 0:
            self._await_eviction(parent)
