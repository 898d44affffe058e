"""PyTorch's caching allocator as simply as can be: one list of blocks, one request a time.

And the simulator's own, asked for what it is compared in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from simulator.results.allocator import exchanges as product

MIB = 2**20


@dataclass(eq=False)
class Piece:
    """Bytes of a segment; ``number`` and ``since`` say when it became free."""

    size: int
    pool: tuple[bool, int]
    is_free: bool = False
    number: int = 0
    since: int = 0


@dataclass(eq=False)
class PlainAllocator:
    """Segments are lists of pieces."""

    expandable: bool = False
    max_split: float = math.inf
    room: float = math.inf
    collects_above: float = math.inf
    segments: list[list[Piece]] = field(default_factory=list)
    number: int = 0
    served: int = 0
    most: int = 0

    @property
    def reserved(self) -> int:
        return sum(piece.size for segment in self.segments for piece in segment)

    def take(self, num_bytes: float, stream: int = 0) -> Piece:
        size = max(512, math.ceil(num_bytes / 512) * 512)
        pool = size <= MIB, stream
        self.served += 1
        limit = size + 20 * MIB if size >= self.max_split else self.max_split
        found = [
            (piece.size, piece.number, segment, piece)
            for segment in self.segments
            for piece in segment
            if piece.is_free and piece.pool == pool and size <= piece.size < limit
        ]
        if found:
            _, _, segment, piece = min(found, key=lambda each: each[:2])
        else:
            segment, piece = self.new(size, pool)
        rest = piece.size - size
        splits = rest >= 512 if pool[0] or self.expandable else rest > MIB
        if splits and (self.expandable or piece.size < self.max_split):
            piece.size = size
            segment.insert(segment.index(piece) + 1, self.freed(Piece(rest, pool)))
        piece.is_free = False
        self.most = max(self.most, self.reserved)
        return piece

    def freed(self, piece: Piece) -> Piece:
        self.number += 1
        piece.is_free, piece.number, piece.since = True, self.number, self.served
        return piece

    def give(self, piece: Piece) -> None:
        segment = next(each for each in self.segments if piece in each)
        for other in (segment.index(piece) + 1, segment.index(piece) - 1):
            if 0 <= other < len(segment) and segment[other].is_free:
                piece.size += segment.pop(other).size
        self.freed(piece)

    def new(self, size: int, pool: tuple[bool, int]) -> tuple[list[Piece], Piece]:
        if self.expandable:
            return self.grown(size, pool)
        segment = 2 * MIB if pool[0] else 20 * MIB
        if size >= 10 * MIB:
            segment = math.ceil(size / (2 * MIB)) * 2 * MIB
        self.collect(self.reserved + segment - self.collects_above)
        if self.reserved + segment > self.room:
            self.release(segment, pool)
        self.segments.append([Piece(segment, pool)])
        return self.segments[-1], self.segments[-1][0]

    def grown(self, size: int, pool: tuple[bool, int]) -> tuple[list[Piece], Piece]:
        page = (2 if pool[0] else 20) * MIB
        segment = next((each for each in self.segments if each[0].pool == pool), None)
        if segment is None:
            segment = []
            self.segments.append(segment)
        there = segment.pop().size if segment and segment[-1].is_free else 0
        segment.append(Piece(there + max(0, math.ceil((size - there) / page)) * page, pool))
        return segment, segment[-1]

    def unused(self) -> list[list[Piece]]:
        return [each for each in self.segments if len(each) == 1 and each[0].is_free]

    def collect(self, wanted: float) -> None:
        while wanted > 0:
            large = [each for each in self.unused() if not each[0].pool[0]]
            if not large:
                return
            mean = sum(each[0].since for each in large) / len(large)
            gone = [each for each in large if each[0].since <= mean]
            self.segments = [each for each in self.segments if each not in gone]
            wanted -= sum(each[0].size for each in gone)

    def release(self, segment: int, pool: tuple[bool, int]) -> None:
        if self.max_split < math.inf:
            least = max(segment, self.max_split)
            one = [u for u in self.unused() if u[0].pool == pool and u[0].size >= least]
            if one:
                self.segments.remove(min(one, key=lambda each: (each[0].size, each[0].number)))
        if self.reserved + segment > self.room:
            unused = self.unused()
            self.segments = [each for each in self.segments if each not in unused]


def reserved_bytes(exchanges, settings, *, first=(), started=None, **limits):
    """What the simulator's allocator reserves for a step, of which the first may be another."""
    before = [started] if started else []
    asked = product.told_apart(exchanges, before=before, first=first or None)
    return product.reserved_bytes(asked, settings, **limits)
