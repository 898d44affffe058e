"""Which algorithms can run a collective, and what does each ask of the links?

An algorithm answers with a :class:`Demand`: hops in a row, and bytes through one rank's
ports. Turning that into seconds is the same for all (see
:mod:`simulator.cost.collectives.collective_time`). The closed forms of rings, trees and
exchanges on equal links are in the files of those names; here they are laid over nodes.

Legend: n ranks, r ranks per node, S bytes as nccl-tests counts them.
Source: NCCL's algorithms as read in its src/graph (tuning.cc, trees.cc) and transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.cost.collectives.tree import tree_depth
from simulator.cost.collectives.types import CollectiveKind, Group
from simulator.described.cluster.network import Network

TREE_EFFICIENCY = 0.92 * 0.85
"""Rate of an in-node tree over that of a ring. Source: NCCL src/graph/tuning.cc."""

PAT_EFFICIENCY = 0.75
"""Rate of PAT over that of a ring. Source: NCCL src/graph/tuning.cc."""

_MIN_IN_SWITCH_RANKS = 3


class Demand(NamedTuple):
    """What one algorithm asks of the links.

    Attributes:
        scale_up_hops: Hops in a row on scale-up links.
        fabric_hops: Hops in a row on the fabric.
        scale_up_bytes: Bytes through one rank's scale-up port, one direction [B].
        fabric_bytes: Bytes through one rank's share of the fabric, one direction [B].
        copied_bytes: A rank's own part, copied from its input to its output [B].
        scale_up_efficiency: Rate on the scale-up port, relative to a ring.
        fabric_efficiency: Rate on the fabric, relative to a ring.
        in_switch: The scale-up switch reduces.
        is_tree: Nodes receive a piece from those below before they pass it on.
    """

    scale_up_hops: float
    fabric_hops: float
    scale_up_bytes: float
    fabric_bytes: float
    copied_bytes: float = 0.0
    scale_up_efficiency: float = 1.0
    fabric_efficiency: float = 1.0
    in_switch: bool = False
    is_tree: bool = False


Algorithm = Callable[[float, Group, Network], Demand | None]
"""(bytes, group, network) -> its demand, or None where it cannot run."""


def _ring(num_bytes: float, group: Group, rounds: int) -> Demand:
    """A ring through all ranks, node after node.

    Each step passes S/n to the next rank. One rank of a node passes it over the fabric;
    NCCL turns its rings so that the ranks of a node take this role equally. A rank works
    once more than it sends: first it only sends and last it only receives, and its own
    part goes from its input to its output (NCCL src/device/all_gather.h).
    """
    n, r, nodes = group.ranks, group.ranks_per_node, group.nodes
    fabric_hops = rounds * (nodes - 1)
    link_bytes = rounds * num_bytes * (n - 1) / n
    out = 1 / r if nodes > 1 else 0.0
    return Demand(
        rounds * (n - 1) - fabric_hops,
        fabric_hops,
        link_bytes * (1 - out),
        link_bytes * out,
        copied_bytes=num_bytes / n,
    )


def ring_all_reduce(num_bytes: float, group: Group, _: Network) -> Demand:
    """Twice around the ring: reduce-scatter, then all-gather."""
    return _ring(num_bytes, group, rounds=2)


def ring_once(num_bytes: float, group: Group, _: Network) -> Demand:
    """Once around the ring: all-gather, or backwards reduce-scatter."""
    return _ring(num_bytes, group, rounds=1)


def chain(num_bytes: float, group: Group, _: Network) -> Demand:
    """From rank to rank, the whole buffer: broadcast, or backwards reduce."""
    n = group.ranks
    return _ring(num_bytes * n / (n - 1), group, rounds=1)._replace(copied_bytes=0.0)


def tree_all_reduce(num_bytes: float, group: Group, _: Network) -> Demand:
    """A chain inside each node, a double binary tree between nodes, up and down."""
    r = group.local_ranks
    up_bytes = 2 * num_bytes if r > 1 else 0.0
    hops, fabric_bytes = _tree_between_nodes(num_bytes, group)
    return Demand(
        2 * (r - 1),
        hops,
        up_bytes,
        fabric_bytes,
        scale_up_efficiency=TREE_EFFICIENCY,
        is_tree=True,
    )


def _tree_between_nodes(num_bytes: float, group: Group) -> tuple[int, float]:
    """Hops in a row, and bytes through one rank's share of the fabric.

    A node's NICs carry half the buffer per tree edge and direction. Two nodes have one
    edge per tree, so S passes; the busiest node of a larger tree passes 2 S.
    """
    nodes = group.nodes
    if nodes == 1:
        return 0, 0.0
    passes = 1 if nodes == 2 else 2
    return 2 * tree_depth(nodes), passes * num_bytes / group.ranks_per_node


def in_switch_all_reduce(num_bytes: float, group: Group, network: Network) -> Demand | None:
    """The scale-up switch adds and multicasts (NVLS); trees join several domains.

    A rank sends its buffer once for the reduction and its 1/r of the result once for the
    multicast: (1 + 1/r) S each way. A ring moves less for r <= 2.
    """
    r = group.local_ranks
    if not network.scale_up.in_switch_reduction or r < _MIN_IN_SWITCH_RANKS:
        return None
    hops, fabric_bytes = _tree_between_nodes(num_bytes, group)
    return Demand(0, hops, num_bytes * (1 + 1 / r), fabric_bytes, in_switch=True, is_tree=True)


def in_network_all_reduce(num_bytes: float, group: Group, network: Network) -> Demand | None:
    """The fabric's switches add (CollNet over SHARP).

    Ranks of a node scatter the buffer among them, each sends its 1/r up to the switches and
    gets the sum back, and the node gathers: S / r through each share of the NICs, whatever
    the number of nodes. Source: NCCL src/graph/tuning.cc, CollNetDirect.
    """
    r = group.local_ranks
    if not network.fabric.in_network_reduction or group.nodes == 1:
        return None
    return Demand(
        2 if r > 1 else 0,
        2,
        2 * num_bytes * (r - 1) / r,
        num_bytes / group.ranks_per_node,
        copied_bytes=num_bytes / r,
    )


def pat(num_bytes: float, group: Group, network: Network) -> Demand | None:
    """All-gather, or backwards reduce-scatter, along binomial trees: log2(n) hops.

    Moves the bytes of a ring. Source: NCCL src/graph/tuning.cc, parallel aggregated trees;
    only where a group has one rank per node.
    """
    n = group.ranks
    if not network.fabric.pat or group.ranks_per_node > 1:
        return None
    return Demand(0, tree_depth(n), 0.0, num_bytes * (n - 1) / n, fabric_efficiency=PAT_EFFICIENCY)


def pairwise_all_to_all(num_bytes: float, group: Group, _: Network) -> Demand:
    """Every rank sends S/n to every other at once, limited by its own ports.

    In the node a hop says that the buffer is ready and one brings the data; over the
    fabric, receivers announce buffers ahead. Its own S/n a rank copies.
    """
    n, r = group.ranks, group.local_ranks
    return Demand(
        2 if r > 1 else 0,
        1 if n > r else 0,
        num_bytes * (r - 1) / n,
        num_bytes * (n - r) / n,
        copied_bytes=num_bytes / n,
    )


ALGORITHMS: Mapping[CollectiveKind, Mapping[str, Algorithm]] = MappingProxyType(
    {
        CollectiveKind.ALL_REDUCE: MappingProxyType(
            {
                "ring": ring_all_reduce,
                "tree": tree_all_reduce,
                "in_switch": in_switch_all_reduce,
                "in_network": in_network_all_reduce,
            }
        ),
        CollectiveKind.ALL_GATHER: MappingProxyType({"ring": ring_once, "pat": pat}),
        CollectiveKind.REDUCE_SCATTER: MappingProxyType({"ring": ring_once, "pat": pat}),
        CollectiveKind.BROADCAST: MappingProxyType({"chain": chain}),
        CollectiveKind.REDUCE: MappingProxyType({"chain": chain}),
        CollectiveKind.ALL_TO_ALL: MappingProxyType({"pairwise": pairwise_all_to_all}),
    }
)
"""Every algorithm by collective and name; the fastest that can run is used."""
