"""How do the hops and bytes of an algorithm become seconds?

Two protocols compete, as in NCCL, and the faster one is taken:

- ``low_latency`` (LL, LL128) flags every word: short hops, a share of the bandwidth;
- ``simple`` synchronises whole chunks: long hops, all of the bandwidth.

Either way the time is latency, transfer at the rate of the busiest port of one rank, and
the filling of a chunk pipeline.

Ignores: the number of channels, discrete chunk sizes, congestion.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

from simulator.cost.collectives.torus import ring_link_share
from simulator.cost.collectives.types import Demand
from simulator.described.cluster.network import Fabric, Network, ScaleUp
from simulator.errors import InputError

NVLINKS_PER_V100 = 6

HYBRID_CUBE_MESH_RINGS: Mapping[int, int] = {2: 1, 3: 2, 4: 4, 5: 2, 6: 2, 7: 4, 8: 6}
"""NVLinks per GPU, of six, that the first so many GPUs of a DGX-1 can use at once.

Source: directed rings through the first GPUs of the DGX-1 (V100) link graph; five have
no ring, there the count is the one that the measured rate of NCCL implies.
"""

IN_SWITCH_TREE_EFFICIENCY = 0.9
"""Rate of in-switch reduction that feeds trees between nodes over its rate alone. Source: NCCL
src/graph/tuning.cc, NVLSTree on two nodes of Hopper (8 channels of 57.7 GB/s) over NVLS."""


class Timing(NamedTuple):
    """Time of a demand under the faster protocol.

    Attributes:
        seconds: Total [s].
        transfer_s: Part in which the busiest port is busy [s].
        protocol: ``low_latency`` or ``simple``.
    """

    seconds: float
    transfer_s: float
    protocol: str


def pipeline_fill_s(latency_s: float, transfer_s: float, fill: float) -> float:
    """Seconds that a message needs beyond latency and transfer to flow in chunks over hops.

    With b seconds of bytes in k pieces over hops of x seconds each, a in total, all
    pieces are through after (a / x + k) (x + b / k) seconds. The best k leaves
    a + b + 2 sqrt(a b). ``fill`` weighs the last term: channels beside one another hide
    part of it (below 1), unfit chunk sizes add to it (above 1).

    Example:
        >>> pipeline_fill_s(1.0, 4.0, fill=1.0)
        4.0
    """
    return 2 * fill * sqrt(latency_s * transfer_s)


class _Protocol(NamedTuple):
    """How data pass a link.

    Attributes:
        name: ``low_latency`` or ``simple``.
        scale_up_hop_s, fabric_hop_s: Latency of a hop on either [s].
        scale_up_share, fabric_share: Share of the rate of either that carries data.
    """

    name: str
    scale_up_hop_s: float
    fabric_hop_s: float
    scale_up_share: float = 1.0
    fabric_share: float = 1.0


def demand_timing(demand: Demand, local_ranks: int, network: Network) -> Timing:
    """Time of ``demand`` alone on the links, under the faster protocol.

    Args:
        demand: What an algorithm asks of the links.
        local_ranks: Ranks of the group in one scale-up domain.
        network: The links.

    Raises:
        InputError: Bytes must cross the fabric, and the network has none.
    """
    up, fabric = network.scale_up, network.fabric
    protocols = [_Protocol("simple", up.bulk_latency_s, _bulk_hop_s(demand, fabric))]
    if not demand.in_switch:
        low_latency = up.low_latency_share, fabric.low_latency_share
        protocols.append(_Protocol("low_latency", up.latency_s, fabric.latency_s, *low_latency))
    up_s, fabric_s = _scale_up_s(demand, local_ranks, network), _fabric_s(demand, network)
    timings = []
    for protocol in protocols:
        latency_s = (
            up.launch_s
            + demand.scale_up_hops * protocol.scale_up_hop_s
            + demand.fabric_hops * protocol.fabric_hop_s
            + (up.in_switch_latency_s if demand.in_switch else 0.0)
        )
        transfer_s = max(up_s / protocol.scale_up_share, fabric_s / protocol.fabric_share)
        fill_s = _fill_s(demand, latency_s, transfer_s, network)
        slowness = (fabric if demand.fabric_bytes else up).slowness
        seconds = slowness * (latency_s + transfer_s + fill_s)
        timings.append(Timing(seconds, slowness * transfer_s, protocol.name))
    return min(timings)


def _bulk_hop_s(demand: Demand, fabric: Fabric) -> float:
    """Latency of a hop of a large message over the fabric, which a short part does not reach."""
    if demand.hop_bytes >= fabric.ring_piece_bytes:
        return fabric.bulk_latency_s
    share = demand.hop_bytes / fabric.ring_piece_bytes
    return max(fabric.latency_s, share * fabric.bulk_latency_s)


def _fill_s(demand: Demand, latency_s: float, transfer_s: float, network: Network) -> float:
    """Seconds in which a pipeline of chunks fills and drains.

    The levels of a tree between nodes pass on one piece at a time. In all else every rank
    sends from the start, and what is left is the cost of many short chunks.
    """
    fabric = network.fabric
    if not demand.fabric_bytes:
        return pipeline_fill_s(latency_s, transfer_s, network.scale_up.pipeline_fill)
    if not demand.is_tree:
        return pipeline_fill_s(latency_s, transfer_s, fabric.pipeline_fill)
    piece_bytes = min(demand.fabric_bytes, fabric.tree_piece_bytes)
    return demand.fabric_hops * piece_bytes / _fabric_bytes_per_s(network)


def _fabric_s(demand: Demand, network: Network) -> float:
    if not demand.fabric_bytes:
        return 0.0
    return demand.fabric_bytes / (_fabric_bytes_per_s(network) * demand.fabric_efficiency)


def _fabric_bytes_per_s(network: Network) -> float:
    rate = network.fabric_bytes_per_s
    if rate <= 0:
        raise InputError.single(
            "cluster.network.fabric",
            "has no NICs, but ranks of different nodes must communicate",
            network.fabric.nics_per_node,
            "set nics_per_node and nic, or keep every group inside a node",
        )
    return rate


def _scale_up_s(demand: Demand, local_ranks: int, network: Network) -> float:
    if not demand.scale_up_bytes:
        return 0.0
    port_s = demand.scale_up_bytes / _scale_up_bytes_per_s(demand, local_ranks, network)
    copy_rate = network.scale_up.local_copy_bytes_per_s
    return port_s + (demand.copied_bytes / copy_rate if copy_rate else 0.0)


def _scale_up_bytes_per_s(demand: Demand, local_ranks: int, network: Network) -> float:
    up = network.scale_up
    if demand.in_switch:
        feeding = IN_SWITCH_TREE_EFFICIENCY if demand.fabric_bytes else 1.0
        free = 1 - up.background_load
        return up.bandwidth_bytes_per_s * up.in_switch_efficiency * feeding * free
    rate = network.scale_up_bytes_per_s * demand.scale_up_efficiency
    return rate * reachable_link_share(up, local_ranks)


def reachable_link_share(up: ScaleUp, ranks: int) -> float:
    """Share of a GPU's scale-up links that lead to the other ``ranks`` of its group.

    A switch gives all of them to any peer. In a full mesh every peer has its own link. Over PCIe
    more GPUs crowd what joins their slots. In a torus it depends on the block that they form.
    """
    if up.torus is not None:
        return ring_link_share(ranks, up.torus)
    if up.kind == "pcie":
        share: float = (2 / max(2, ranks)) ** up.crowding
        return share
    if up.kind == "full-mesh":
        return min(1.0, (ranks - 1) / (up.gpus - 1)) if ranks > 1 else 1.0
    if up.kind == "hybrid-cube-mesh":
        return HYBRID_CUBE_MESH_RINGS.get(ranks, NVLINKS_PER_V100) / NVLINKS_PER_V100
    return 1.0
