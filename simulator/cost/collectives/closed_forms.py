"""What do rings, trees and direct exchanges take on equal links, alone?

``num_bytes`` follows nccl-tests (see :func:`simulator.cost.collectives.collective_cost`),
``link_bytes_per_s`` is the slowest link, ``hop_latency_s`` the time a step takes beyond its bytes.
A ring passes 1/n of the buffer to the next rank in every step. Two complementary binary trees
carry half of the buffer each: a rank that has children in one is a leaf in the other, so that no
port carries more than 2 S each way.

Source: Patarasuk and Yuan, JPDC 69 (2009), section 3, for rings; Sanders, Speck and Traeff,
Parallel Computing 35 (2009), for trees.
"""

from __future__ import annotations

from collections.abc import Callable


def ring_reduce_scatter_s(
    num_bytes: float, ranks: int, link_bytes_per_s: float, hop_latency_s: float
) -> float:
    """Seconds for a ring reduce-scatter of ``num_bytes`` of input on each rank.

    (n-1) steps of 1/n of the input each: (n-1) (S / (n B) + alpha).
    """
    return (ranks - 1) * (num_bytes / (ranks * link_bytes_per_s) + hop_latency_s)


def ring_all_gather_s(
    num_bytes: float, ranks: int, link_bytes_per_s: float, hop_latency_s: float
) -> float:
    """Seconds for a ring all-gather with ``num_bytes`` of output on each rank.

    The mirror image of :func:`ring_reduce_scatter_s`: the same steps backwards.
    """
    return ring_reduce_scatter_s(num_bytes, ranks, link_bytes_per_s, hop_latency_s)


def ring_all_reduce_s(
    num_bytes: float, ranks: int, link_bytes_per_s: float, hop_latency_s: float
) -> float:
    """Seconds for a ring all-reduce of ``num_bytes`` on each rank.

    A reduce-scatter and an all-gather: 2 (n-1) (S / (n B) + alpha).

    Example:
        >>> ring_all_reduce_s(4e9, ranks=4, link_bytes_per_s=1e9, hop_latency_s=0.5)
        9.0
    """
    return 2 * ring_reduce_scatter_s(num_bytes, ranks, link_bytes_per_s, hop_latency_s)


def chain_broadcast_s(
    num_bytes: float,
    ranks: int,
    link_bytes_per_s: float,
    hop_latency_s: float,
    chunks: int = 1,
) -> float:
    """Seconds to pass ``num_bytes`` in ``chunks`` pieces from rank to rank along a chain.

    The first piece takes n-1 hops, the others follow one step apart:
    (n-1) alpha + (n-2+c) S / (c B). A reduction to one rank is the same backwards.
    """
    if ranks == 1:
        return 0.0
    piece_s = num_bytes / (chunks * link_bytes_per_s)
    return (ranks - 1) * hop_latency_s + (ranks - 2 + chunks) * piece_s


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


def send_recv_s(num_bytes: float, link_bytes_per_s: float, hop_latency_s: float) -> float:
    """Seconds to send ``num_bytes`` over one link: alpha + S / B."""
    return hop_latency_s + num_bytes / link_bytes_per_s


def all_to_all_s(
    num_bytes: float, ranks: int, link_bytes_per_s: float, hop_latency_s: float
) -> float:
    """Seconds for an all-to-all in which each rank sends 1/n of ``num_bytes`` to each.

    One rank's own part stays where it is; each of the n-1 others is one message:
    (n-1) (S / (n B) + alpha). Assumes ports, not the paths between them, are the limit.
    """
    return (ranks - 1) * (num_bytes / (ranks * link_bytes_per_s) + hop_latency_s)
