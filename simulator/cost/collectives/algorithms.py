"""Which algorithms can NCCL and gloo run for a collective, and what does each ask of the links?

An algorithm answers with a :class:`Demand`: hops in a row, and bytes through one rank's
ports. Turning that into seconds is the same for all (see
:mod:`simulator.cost.collectives.collective_time`). Here the closed forms of
:mod:`simulator.cost.collectives.closed_forms` are laid over nodes.

Gloo carries torch's messages between CPUs. Its large all_reduce and all_gather are rings like
NCCL's; the rest differs:

- reduce_scatter is an all_reduce of which each rank keeps its part, so twice the bytes;
- a pair of ranks shares one connection that moves one direction at a time, which shows where
  both have to send: an exchange of two ranks takes twice as long as its bytes need, all_gather of
  two half as long again, all_to_all of more 1.5 to 1.65 times as long;
- broadcast follows a binomial tree, whose root sends to all its children at once.

Legend: n ranks, r ranks per node, S bytes as nccl-tests counts them.

Source: NCCL's algorithms as read in its src/graph (tuning.cc, trees.cc) and transport. Gloo: torch
2.13 (``torch::distributed::c10d``, ProcessGroupGloo), measured on links of 20 to 1000 Mbit/s
between 2 to 4 ranks, 1 to 16 MiB: bytes that were sent, and time over that of the bytes (1.97, 1.50
and 1.64 for all_to_all of 2, 3 and 4 ranks on slow links, where nothing else takes time; 1.48 and
1.00 to 1.05 for all_gather of 2 and more; 1.0, 2.0 and 2.6 to 3.0 for broadcast). More ranks than 4
are taken to be as 4 (assumption).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from types import MappingProxyType

from simulator.cost.collectives.closed_forms import tree_depth
from simulator.cost.collectives.torus import all_to_all_share, ring_hops, ring_link_share
from simulator.cost.collectives.types import Algorithm, CollectiveKind, Demand, Group
from simulator.described.cluster.network import Fabric, Network, Torus

TREE_EFFICIENCY = 0.92 * 0.85
"""Rate of an in-node tree over that of a ring. Source: NCCL src/graph/tuning.cc."""

PAT_EFFICIENCY = 0.75
"""Rate of PAT over that of a ring. Source: NCCL src/graph/tuning.cc."""

IN_SWITCH_CHANNELS = 16
"""Channels of in-switch reduction on Hopper. Source: NCCL src/transport/nvls.cc."""

_LARGE_CHUNK_BYTES, _USUAL_CHUNK_BYTES, _SMALL_CHUNK_BYTES = 131072.0, 65536.0, 32768.0
_MANY_NODES = 4
_FEW_CHUNKS = 4
_MIN_IN_SWITCH_RANKS = 3
_LEAST_NODES = 2


def _ring(num_bytes: float, group: Group, rounds: int, torus: Torus | None) -> Demand:
    """A ring through all ranks, node after node.

    Each step passes S/n to the next rank. One rank of a node passes it over the fabric;
    NCCL turns its rings so that the ranks of a node take this role equally. A rank works
    once more than it sends: first it only sends and last it only receives, and its own
    part goes from its input to its output (NCCL src/device/all_gather.h). In a torus all its
    dimensions pass on parts at once, so fewer hops follow each other.
    """
    n, r, nodes = group.ranks, group.ranks_per_node, group.nodes
    fabric_hops = rounds * (nodes - 1)
    link_bytes = rounds * num_bytes * (n - 1) / n
    out = 1 / r if nodes > 1 else 0.0
    hops = n - nodes if torus is None else nodes * ring_hops(group.local_ranks, torus)
    return Demand(
        rounds * hops,
        fabric_hops,
        link_bytes * (1 - out),
        link_bytes * out,
        copied_bytes=num_bytes / n,
        hop_bytes=num_bytes / n,
    )


def ring_all_reduce(num_bytes: float, group: Group, network: Network) -> Demand:
    """Twice around the ring: reduce-scatter, then all-gather."""
    return _ring(num_bytes, group, 2, network.scale_up.torus)


def ring_once(num_bytes: float, group: Group, network: Network) -> Demand:
    """Once around the ring: all-gather, or backwards reduce-scatter."""
    return _ring(num_bytes, group, 1, network.scale_up.torus)


def chain(num_bytes: float, group: Group, network: Network) -> Demand:
    """From rank to rank, the whole buffer: broadcast, or backwards reduce."""
    n = group.ranks
    torus = network.scale_up.torus
    return _ring(num_bytes * n / (n - 1), group, 1, torus)._replace(copied_bytes=0.0)


def tree_all_reduce(num_bytes: float, group: Group, network: Network) -> Demand:
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
        hop_bytes=num_bytes,
        fabric_efficiency=_tree_efficiency(group, network.fabric),
        is_tree=True,
    )


def _tree_efficiency(group: Group, fabric: Fabric) -> float:
    """Rate of a tree between two nodes over that of their NICs.

    A channel carries a part of the buffer up and down, so it adds up half of what it carries. That
    is less than a fast NIC passes, and a ring of few ranks is then faster.
    Source: NCCL src/graph/tuning.cc: bus bandwidth of trees, half of which is the buffer's.
    """
    if fabric.tree_channel_bytes_per_s is None or group.nodes != _LEAST_NODES:
        return 1.0
    return min(1.0, fabric.tree_channel_bytes_per_s / (2 * fabric.nic_bytes_per_s))


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
    return Demand(
        0,
        hops,
        num_bytes * (1 + 1 / r),
        fabric_bytes,
        in_switch=True,
        is_tree=True,
        piece_share=in_switch_chunk_bytes(num_bytes, group) / _USUAL_CHUNK_BYTES,
    )


def in_switch_chunk_bytes(num_bytes: float, group: Group) -> float:
    """What a channel passes on at a time where trees join in-switch reductions [B].

    Source: NCCL src/enqueue.cc (calcCollChunking, NVLSTree): 128 KiB, or 64 from four nodes on,
    and less where the buffer has few chunks of all channels of all ranks of a node.
    """
    at_once = IN_SWITCH_CHANNELS * group.local_ranks
    chunk = _LARGE_CHUNK_BYTES if group.nodes < _MANY_NODES else _USUAL_CHUNK_BYTES
    if num_bytes < _FEW_CHUNKS * at_once * chunk:
        chunk = min(chunk, _USUAL_CHUNK_BYTES)
    return min(chunk, _SMALL_CHUNK_BYTES) if num_bytes < at_once * chunk else chunk


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


def pairwise_all_to_all(num_bytes: float, group: Group, network: Network) -> Demand:
    """Every rank sends S/n to every other at once, limited by its own ports.

    In the node a hop says that the buffer is ready and one brings the data; over the
    fabric, receivers announce buffers ahead. A rank waits for the last of all its partners: a small
    message takes a hop more for each doubling of them, and every one part of a hop for each node
    beyond the first partner, where that is known. Its own S/n a rank copies. Through a torus, what
    goes far takes links of those between.

    Source: small all_to_alls of 2, 4 and 8 A100, H100, B200, B300, GB200, L40S and RTX PRO 6000
    take 1.7, 2.8 and 3.7 of their hops in rings, in the mean (ai-dynamo/aiconfigurator); those of
    1 MB hardly grow with the ranks. More ranks are taken to go on so (assumption). Of nodes:
    ``Fabric.late_node_hop``.
    """
    n, r, torus = group.ranks, group.local_ranks, network.scale_up.torus
    late_nodes = max(0, group.nodes - 2)
    share = 1.0 if torus is None else all_to_all_share(r, torus) / ring_link_share(r, torus)
    return Demand(
        2 if r > 1 else 0,
        1 + network.fabric.late_node_hop * late_nodes if n > r else 0,
        num_bytes * (r - 1) / n,
        num_bytes * (n - r) / n,
        copied_bytes=num_bytes / n,
        scale_up_efficiency=share,
        late_hops=log2(r / 2) if r > 1 and torus is None else 0.0,
    )


ALGORITHMS: Mapping[CollectiveKind, Mapping[str, Algorithm]] = {
    CollectiveKind.ALL_REDUCE: {
        "ring": ring_all_reduce,
        "tree": tree_all_reduce,
        "in_switch": in_switch_all_reduce,
        "in_network": in_network_all_reduce,
    },
    CollectiveKind.ALL_GATHER: {"ring": ring_once, "pat": pat},
    CollectiveKind.REDUCE_SCATTER: {"ring": ring_once, "pat": pat},
    CollectiveKind.BROADCAST: {"chain": chain},
    CollectiveKind.REDUCE: {"chain": chain},
    CollectiveKind.ALL_TO_ALL: {"pairwise": pairwise_all_to_all},
}
"""Every algorithm by collective and name; the fastest that can run is used."""


_GLOO_PAIR = 2
_GLOO_PAIR_GATHER = 1.5
_GLOO_EXCHANGE: Mapping[int, float] = {2: 2.0, 3: 1.5}
_GLOO_EXCHANGE_OF_MANY = 1.65
"""Time of all_to_all over that of its bytes, by ranks: some pairs happen to send one way while
others send the other."""


def gloo_all_gather(num_bytes: float, group: Group, network: Network) -> Demand:
    """A ring; two ranks send to each other over one connection."""
    factor = _GLOO_PAIR_GATHER if group.ranks == _GLOO_PAIR else 1.0
    return _times(factor, ring_once(num_bytes, group, network))


def gloo_all_to_all(num_bytes: float, group: Group, network: Network) -> Demand:
    """Direct exchanges of all pairs, each in one direction at a time."""
    factor = _GLOO_EXCHANGE.get(group.ranks, _GLOO_EXCHANGE_OF_MANY)
    direct = pairwise_all_to_all(num_bytes, group, network)
    demand = direct._replace(late_hops=0.0, fabric_hops=float(group.nodes > 1))
    return _times(factor, demand)


def gloo_broadcast(num_bytes: float, group: Group, network: Network) -> Demand:
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


GLOO_ALGORITHMS: Mapping[CollectiveKind, Mapping[str, Algorithm]] = {
    CollectiveKind.ALL_REDUCE: MappingProxyType({"ring": ring_all_reduce}),
    CollectiveKind.ALL_GATHER: MappingProxyType({"ring": gloo_all_gather}),
    CollectiveKind.REDUCE_SCATTER: MappingProxyType({"all_reduce": ring_all_reduce}),
    CollectiveKind.BROADCAST: MappingProxyType({"binomial": gloo_broadcast}),
    CollectiveKind.REDUCE: MappingProxyType({"chain": chain}),
    CollectiveKind.ALL_TO_ALL: MappingProxyType({"pairwise": gloo_all_to_all}),
}
"""The algorithm of gloo for every collective."""
