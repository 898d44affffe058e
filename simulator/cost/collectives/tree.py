"""How long do trees take, and who is whose parent?

Two complementary binary trees carry half the buffer each. A rank that has children in
one is a leaf in the other, so that no port carries more than 2 S each way.

Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35 (2009).
"""

from __future__ import annotations

from collections.abc import Callable


def tree_depth(ranks: int) -> int:
    """Hops from the farthest leaf of a tree to its root: ceil(log2(n))."""
    return (ranks - 1).bit_length()


def double_tree_parents(ranks: int) -> tuple[list[int], list[int]]:
    """Parent of every rank in both trees, -1 for the root.

    The first tree has rank 0 as its root and odd ranks as its leaves. The second is its
    mirror image, or, where that has the same leaves (odd sizes), shifted by one rank.
    """
    first = [_parent(rank, ranks) for rank in range(ranks)]
    if ranks % 2 == 0:
        return first, [_moved(first[~rank], lambda p: ranks - 1 - p) for rank in range(ranks)]
    return first, [_moved(first[rank - 1], lambda p: (p + 1) % ranks) for rank in range(ranks)]


def _moved(parent: int, renamed: Callable[[int], int]) -> int:
    return parent if parent < 0 else renamed(parent)


def _parent(rank: int, ranks: int) -> int:
    """In-order binary tree: a rank's height is the number of trailing zero bits."""
    if rank == 0:
        return -1
    low = rank & -rank
    above = (rank - low) | (2 * low)
    return above if above < ranks else rank - low


def tree_all_reduce_s(
    num_bytes: float,
    ranks: int,
    link_bytes_per_s: float,
    hop_latency_s: float,
    chunks: int = 1,
) -> float:
    """Seconds for a double-binary-tree all-reduce of ``num_bytes`` on each rank.

    Every piece of 1/(2 c) of the buffer takes d = ceil(log2(n)) hops up and d down its
    tree; the others follow one step apart: 2 d alpha + (2 d + c - 1) S / (2 c B).
    ``link_bytes_per_s`` is one link of one tree. Where a rank's links share a port, that
    port passes up to 2 S each way.

    Example:
        >>> tree_all_reduce_s(4e9, ranks=4, link_bytes_per_s=1e9, hop_latency_s=0.5, chunks=1)
        10.0
    """
    depth = tree_depth(ranks)
    if depth == 0:
        return 0.0
    piece_s = num_bytes / (2 * chunks * link_bytes_per_s)
    return 2 * depth * hop_latency_s + (2 * depth + chunks - 1) * piece_s
