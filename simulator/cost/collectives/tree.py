"""How long do trees take?

Two complementary binary trees carry half the buffer each; every rank is a leaf of one
and an inner node of the other, so that no link carries more than the buffer each way.

Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35 (2009).
"""

from __future__ import annotations


def tree_depth(ranks: int) -> int:
    """Hops from the farthest leaf of a balanced binary tree to its root.

    The root has a single child, as in NCCL's trees, hence ceil(log2(n)).
    """
    return (ranks - 1).bit_length()


def tree_all_reduce_s(
    num_bytes: float,
    ranks: int,
    link_bytes_per_s: float,
    hop_latency_s: float,
    chunks: int = 1,
) -> float:
    """Seconds for a double-binary-tree all-reduce of ``num_bytes`` on each rank.

    Placeholder closed form: up and down 2 ceil(log2 n) hops, 2 S / B of transfer.
    """
    if ranks == 1:
        return 0.0
    return 2 * tree_depth(ranks) * hop_latency_s + 2 * num_bytes / link_bytes_per_s
