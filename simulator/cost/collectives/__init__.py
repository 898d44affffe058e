"""How long does a collective take on a network, and what does it move through which port?

algorithms         which algorithms there are, and what each asks of the links; lists a new one,
                   whose single transfers engine/chunk_algorithms has
closed_forms       rings, trees and direct exchanges on equal links
collective_time    hops and bytes as seconds
nccl_choice        which algorithm and protocol NCCL takes
tiers, torus       switch tiers above leafs; links to neighbours
types              the words of question and answer

Bytes follow nccl-tests: all_reduce and broadcast the buffer, all_gather the total
output, reduce_scatter the total input, all_to_all one rank's whole send buffer.

Training groups repeat over the ranks of a node: eight tensor-parallel ranks of a node
are in eight data-parallel groups that reduce at the same time. A group therefore gets
one GPU's share of the node's NICs for each rank it has there, never the idle shares of
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from types import MappingProxyType

from simulator.cost.collectives.algorithms import ALGORITHMS, GLOO_ALGORITHMS
from simulator.cost.collectives.closed_forms import (
    all_to_all_s,
    chain_broadcast_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_reduce_scatter_s,
    send_recv_s,
    tree_all_reduce_s,
)
from simulator.cost.collectives.collective_time import (
    Timing,
    demand_timing,
    links_of,
    reachable_link_share,
)
from simulator.cost.collectives.nccl_choice import chosen
from simulator.cost.collectives.tiers import Climb, climb_of, network_above
from simulator.cost.collectives.types import (
    NO_COST,
    CollectiveCost,
    CollectiveKind,
    Demand,
    Group,
)
from simulator.described.cluster.network import PAIR_PORT, Network
from simulator.errors import InputError

__all__ = [
    "ALGORITHMS",
    "NO_COST",
    "CollectiveCost",
    "CollectiveKind",
    "Group",
    "all_to_all_s",
    "chain_broadcast_s",
    "collective_cost",
    "demands_of",
    "hierarchical_exchange_cost",
    "ring_all_gather_s",
    "ring_all_reduce_s",
    "ring_reduce_scatter_s",
    "send_recv_cost",
    "send_recv_demand",
    "send_recv_s",
    "tree_all_reduce_s",
]

_LIBRARIES = MappingProxyType({"nccl": ALGORITHMS, "gloo": GLOO_ALGORITHMS})
"""Algorithms by ``network.library``."""

_SEND_RECV_SM_COUNT = 4
"""Channels per peer over a 400 Gbit/s NIC. Source: NCCL src/graph/paths.cc."""


def collective_cost(
    kind: CollectiveKind,
    num_bytes: float,
    group: Group,
    network: Network,
    *,
    algorithm: str | None = None,
) -> CollectiveCost:
    """Cost of the fastest algorithm for a collective, alone on its links.

    Args:
        kind: What is done.
        num_bytes: Message size as nccl-tests counts it [B], see the module's docstring.
        group: Who takes part.
        network: The links.
        algorithm: The only one to consider, one that the network's library has; all if None.

    Raises:
        InputError: ``algorithm`` is unknown or cannot run on this network.
    """
    if group.ranks <= 1 or num_bytes <= 0:
        return NO_COST
    climb = climb_of(kind, group, network)
    network = network_above(climb, network)
    links = links_of(network, group.local_ranks)
    timing, name, demand = min(
        (demand_timing(demand, links), name, demand)
        for name, demand in demands_of(kind, num_bytes, group, network, algorithm).items()
    )
    sm_count = _sm_count(group, network, crosses=demand.fabric_bytes > 0)
    return _cost(timing, name, demand, sm_count, climb, group.peers)


def demands_of(
    kind: CollectiveKind,
    num_bytes: float,
    group: Group,
    network: Network,
    algorithm: str | None = None,
) -> Mapping[str, Demand]:
    """What passes the ports of one rank, by algorithm that can run, or of the one that NCCL takes.

    Args:
        kind: What is done.
        num_bytes: Message size as nccl-tests counts it [B].
        group: Who takes part, more than one rank.
        network: The links.
        algorithm: The only one to consider; that of the network if None, or all.

    Raises:
        InputError: ``algorithm`` is unknown or cannot run on this network.
    """
    algorithms = _LIBRARIES[network.library][kind]
    if algorithm is None and network.algorithm in algorithms:
        algorithm = network.algorithm
    asked = {
        name: demand_of(num_bytes, group, network)
        for name, demand_of in algorithms.items()
        if algorithm in {None, name}
    }
    demands = {name: _on_ports(each, network) for name, each in asked.items() if each is not None}
    pair = chosen(kind, num_bytes, group, network, frozenset(demands))
    if pair is not None:
        return {pair[0]: demands[pair[0]]._replace(protocol=pair[1])}
    if not demands:
        known = f"use one of {', '.join(algorithms)}, if the links allow it"
        raise InputError.single("algorithm", f"cannot run {kind} here", algorithm, known)
    return demands


def send_recv_cost(num_bytes: float, group: Group, network: Network) -> CollectiveCost:
    """Cost of sending ``num_bytes`` from one rank to the next, alone on its links.

    One message and one hop. In a mesh only the link between the two carries it.

    Args:
        num_bytes: Message size [B].
        group: The two ranks, or a ring in which every rank sends to the next.
        network: The links.
    """
    if num_bytes <= 0:
        return NO_COST
    climb = climb_of(None, group, network)
    demand = send_recv_demand(num_bytes, group, network)
    timing = demand_timing(demand, links_of(network_above(climb, network), 2))
    next_peer = group.peers[:1]
    cost = _cost(timing, "send_recv", demand, _SEND_RECV_SM_COUNT, climb, next_peer)
    if network.library == "gloo":
        return replace(cost, port_bytes={**cost.port_bytes, PAIR_PORT: num_bytes}, sm_count=0)
    return cost


def send_recv_demand(num_bytes: float, group: Group, network: Network) -> Demand:
    """What a message to the next rank of the group asks of the ports."""
    crosses_fabric = group.nodes > 1
    asked = Demand(0, 1, 0.0, num_bytes) if crosses_fabric else Demand(1, 0, num_bytes, 0.0)
    return _on_ports(asked, network)


def hierarchical_exchange_cost(
    scale_up_bytes: float,
    fabric_bytes: float,
    group: Group,
    network: Network,
    *,
    handled_s: float = 0.0,
) -> CollectiveCost:
    """Cost of an exchange that crosses the fabric on one rail and goes on inside the node.

    What arrives is passed on while more arrives, so the slower of the two sets the pace; a hop
    over the fabric comes before those in the node.

    Args:
        scale_up_bytes: What a rank passes on to others of its node [B].
        fabric_bytes: What it sends to its own rail in other nodes [B].
        group: Who takes part.
        network: The links.
        handled_s: What it takes at least, however quick the links are [s].

    Source:
        DeepSeek-V3 (arXiv 2412.19437, section 3.2.2); DeepEP's normal kernels.
    """
    if group.ranks <= 1 or scale_up_bytes + fabric_bytes <= 0:
        return NO_COST
    climb = climb_of(CollectiveKind.ALL_TO_ALL, group, network)
    crosses, r = group.nodes > 1, group.local_ranks
    asked = Demand(2 if r > 1 else 0, int(crosses), scale_up_bytes, fabric_bytes)
    demand = _on_ports(asked, network)
    timing = demand_timing(demand, links_of(network_above(climb, network), r))
    sm_count = _sm_count(group, network, crosses=crosses)
    cost = _cost(timing, "hierarchical", demand, sm_count, climb, group.peers)
    waits_s = max(0.0, handled_s - cost.seconds)
    return replace(cost, seconds=cost.seconds + waits_s, latency_s=cost.latency_s + waits_s)


def _sm_count(group: Group, network: Network, *, crosses: bool) -> int:
    """Channels of a group: in a mesh, rings that the links between its members close."""
    up = network.scale_up
    if crosses:
        return network.fabric_sm_count
    if up.kind == "pcie":
        return up.sm_count
    return ceil(up.sm_count * reachable_link_share(up, group.local_ranks))


def _on_ports(demand: Demand, network: Network) -> Demand:
    """What passes the ports: over PCIe, a GPU reaches its neighbours and the NIC through one."""
    up = network.scale_up
    if up.kind != "pcie" or up.gpus == 1:
        return demand
    return demand._replace(scale_up_bytes=demand.scale_up_bytes + demand.fabric_bytes)


def _cost(
    timing: Timing,
    algorithm: str,
    demand: Demand,
    sm_count: int,
    climb: Climb,
    peers: tuple[int, ...],
) -> CollectiveCost:
    ports = {"scale_up": demand.scale_up_bytes, "fabric": demand.fabric_bytes}
    return CollectiveCost(
        seconds=timing.seconds,
        latency_s=timing.seconds - timing.transfer_s,
        algorithm=algorithm,
        protocol=timing.protocol,
        port_bytes=ports | climb.uplink_bytes(demand.fabric_bytes),
        sm_count=sm_count,
        link_bytes={peer: demand.scale_up_bytes / len(peers) for peer in peers},
    )
