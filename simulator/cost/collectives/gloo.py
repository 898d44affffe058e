"""Which algorithms does gloo run, and what does each ask of the links?

Gloo is the library that carries torch's messages between CPUs. Its large all_reduce and
all_gather are rings like NCCL's; the rest differs:

- reduce_scatter is an all_reduce of which each rank keeps its part, so twice the bytes;
- a pair of ranks shares one connection that moves one direction at a time, which shows where
  both have to send: an exchange of two ranks takes twice as long as its bytes need, all_gather of
  two half as long again, all_to_all of more 1.5 to 1.65 times as long;
- broadcast follows a binomial tree, whose root sends to all its children at once.

Source: torch 2.13 (``torch::distributed::c10d``, ProcessGroupGloo) and gloo, measured on links
of 20 to 1000 Mbit/s between 2 to 4 ranks, 1 to 16 MiB: bytes that were sent, and time over that
of the bytes (1.97, 1.50 and 1.64 for all_to_all of 2, 3 and 4 ranks on slow links, where nothing
else takes time; 1.48 and 1.00 to 1.05 for all_gather of 2 and more; 1.0, 2.0 and 2.6 to 3.0 for
broadcast). More ranks than 4 are taken to be as 4 (assumption).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from types import MappingProxyType

from simulator.cost.collectives.algorithms import (
    Algorithm,
    Demand,
    chain,
    pairwise_all_to_all,
    ring_all_reduce,
    ring_once,
)
from simulator.cost.collectives.types import CollectiveKind, Group
from simulator.described.cluster.network import Network

_PAIR = 2
_GATHER_OF_A_PAIR = 1.5
_EXCHANGE: Mapping[int, float] = MappingProxyType({2: 2.0, 3: 1.5})
_EXCHANGE_OF_MANY = 1.65
"""Time of all_to_all over that of its bytes, by ranks: some pairs happen to send one way while
others send the other."""


def all_gather(num_bytes: float, group: Group, network: Network) -> Demand:
    """A ring; two ranks send to each other over one connection."""
    factor = _GATHER_OF_A_PAIR if group.ranks == _PAIR else 1.0
    return _times(factor, ring_once(num_bytes, group, network))


def all_to_all(num_bytes: float, group: Group, network: Network) -> Demand:
    """Direct exchanges of all pairs, each in one direction at a time."""
    factor = _EXCHANGE.get(group.ranks, _EXCHANGE_OF_MANY)
    return _times(factor, pairwise_all_to_all(num_bytes, group, network))


def tree_broadcast(num_bytes: float, group: Group, network: Network) -> Demand:
    """A binomial tree; a rank sends to all its children at once, the most first."""
    depth = ceil(log2(group.ranks))
    copies = min(group.ranks - 1, depth * (depth + 1) // 2)
    demand = chain(num_bytes, group, network)
    inside = group.nodes == 1
    return demand._replace(
        scale_up_hops=depth if inside else 0,
        fabric_hops=0 if inside else depth,
        scale_up_bytes=copies * num_bytes if inside else 0.0,
        fabric_bytes=0.0 if inside else copies * num_bytes,
    )


def _times(factor: float, demand: Demand) -> Demand:
    return demand._replace(
        scale_up_bytes=factor * demand.scale_up_bytes, fabric_bytes=factor * demand.fabric_bytes
    )


GLOO_ALGORITHMS: Mapping[CollectiveKind, Mapping[str, Algorithm]] = MappingProxyType(
    {
        CollectiveKind.ALL_REDUCE: MappingProxyType({"ring": ring_all_reduce}),
        CollectiveKind.ALL_GATHER: MappingProxyType({"ring": all_gather}),
        CollectiveKind.REDUCE_SCATTER: MappingProxyType({"all_reduce": ring_all_reduce}),
        CollectiveKind.BROADCAST: MappingProxyType({"binomial": tree_broadcast}),
        CollectiveKind.REDUCE: MappingProxyType({"chain": chain}),
        CollectiveKind.ALL_TO_ALL: MappingProxyType({"pairwise": all_to_all}),
    }
)
"""Gloo's algorithm of every collective."""
