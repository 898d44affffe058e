"""How much can a pool of small blocks reserve at most, wherever they lie?

A segment is made for a request only where no free block is as large. So free blocks are smaller
then, and each lies beside one that is taken: a segment of 2 MiB with some taken blocks has at most
one more free one. That bounds segments by the blocks that are taken at once, however these came.
Most steps reserve so little for small blocks that the bound is all that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.results.allocator.caching_allocator import SMALL_SEGMENT_BYTES, Request
from simulator.results.allocator.free_blocks import Pool

Part = tuple[tuple[int, ...], tuple[int, ...]]
"""Blocks that are taken, and those that are free after it: numbers of their sizes."""


def most_small_bytes(
    pool: Pool, requests: Sequence[Request], parts: Sequence[Part], order: Sequence[int]
) -> float:
    """More than a pool of small blocks ever reserves, where nothing limits which block is cut [B].

    Args:
        pool: Which one.
        requests: What sizes stand for; their numbers are places in this.
        parts: Exchanges that differ.
        order: Which of them come and go, by their places.
    """
    largest = max(each.num_bytes for each in requests if each.pool == pool)
    weights = [each.num_bytes + largest if each.pool == pool else 0 for each in requests]
    takes, gives = (
        np.asarray([sum(map(weights.__getitem__, side)) for side in sides])
        for sides in zip(*parts, strict=True)
    )
    place = np.asarray(order)
    after_takes = np.cumsum((takes - gives)[place]) + gives[place]
    before_last = int(after_takes.max()) / (1 - largest / SMALL_SEGMENT_BYTES)
    # Segments that grow have one more free block, and a page more for the last request.
    return before_last + 2 * SMALL_SEGMENT_BYTES
