"""How long do rings take?

A ring passes 1/n of the buffer to the next rank in every step. All functions are
closed forms without contention: ``num_bytes`` follows nccl-tests (see
:func:`simulator.cost.collectives.collective_cost`), ``link_bytes_per_s`` is the
slowest link of the ring, ``hop_latency_s`` the time a step takes beyond its bytes.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69 (2009), section 3.
"""

from __future__ import annotations


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
