"""How do the hops and bytes of an algorithm become seconds?

Three protocols, as in NCCL:

- ``low_latency`` (LL) flags every word: short hops, a share of the bandwidth;
- ``lines`` (LL128) flags lines of 128 bytes: longer hops, 120/128 of the bandwidth;
- ``simple`` synchronises whole chunks: long hops, all of the bandwidth.

Where it is known which one the library takes (:mod:`simulator.cost.collectives.nccl_choice`), the
time is latency, and transfer at the rate of the busiest port of one rank; a ring in LL passes the
first word of every thread in its latency, and a kernel of several channels starts later. Elsewhere
the faster of the first and the last is taken, and a chunk pipeline has to fill, as it has where
trees, or Simple's rings, cross the fabric.

Ignores: discrete chunk sizes, congestion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, sqrt
from typing import Any, NamedTuple

from simulator.cost.collectives.torus import ring_link_share
from simulator.cost.collectives.types import Demand, Protocol
from simulator.described.cluster.network import Network, ScaleUp
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

LINE_SHARE = 120 / 128
"""Data in what LL128 sends. Source: NCCL src/include/device.h."""

TREE_LINE_HOP = 1.25 / 1.9
"""A hop of a tree in LL128 inside a node over that of a ring. Source: NCCL src/graph/tuning.cc."""

FABRIC_LINE_HOP = 1.6
"""A hop over the fabric in LL128 over one in LL. Source: NCCL src/graph/tuning.cc: 8.5 over 5.0 us
in trees, 4.0 over 2.7 us in rings; 256 KiB to 2 MiB between two nodes of H100 take 48.7, 71.9 and
76.2 us (NVIDIA/nccl-tests issue #309)."""

FULL_HOP_BYTES = 4096
"""What a channel passes in one LL hop where each of its threads has a word: 512 of 8 bytes. A
message gets another channel for each. Source: NCCL src/include/device.h, src/enqueue.cc."""

WIDE_HOP_BYTES = 2 * FULL_HOP_BYTES
"""What a rank passes on in one hop from which on the kernel has several channels."""

PCIE_CHANNELS = 2
"""Channels that NCCL opens over PCIe: one, which it doubles. Source: NCCL src/graph/connect.cc."""

_PAIR = 2
_LEAST_BYTES = 1e-9
"""No part of a message is as small."""


class Timing(NamedTuple):
    """Time of a demand under one protocol.

    Attributes:
        seconds: Total [s].
        transfer_s: Part in which the busiest port is busy [s].
        protocol: ``low_latency``, ``lines`` or ``simple``.
    """

    seconds: float
    transfer_s: float
    protocol: str


class Arithmetic(NamedTuple):
    """How numbers, or arrays of them, are compared and chosen from.

    Attributes:
        larger: Of two.
        where: The second if the first is true, else the third.
        root: Square root.
    """

    larger: Callable[..., Any]
    where: Callable[..., Any]
    root: Callable[..., Any]


NUMBERS = Arithmetic(max, lambda condition, yes, no: yes if condition else no, sqrt)


class Links(NamedTuple):
    """What of a network decides on times: numbers, or arrays with a value for each demand.

    Attributes:
        launch_s, in_switch_latency_s: Before the first hop, and of in-switch reduction [s].
        wide_launch_s: What the start takes more where a kernel has several channels [s].
        scale_up_hop_s, scale_up_line_hop_s, scale_up_chunk_hop_s: By protocol [s].
        scale_up_bulk_hop_s: Of large messages where the protocol is not known [s].
        scale_up_loaded_s: What a hop of LL takes more with 4 KiB per channel [s].
        fabric_hop_s, fabric_bulk_hop_s: The same on the fabric [s].
        scale_up_low_latency_share, fabric_low_latency_share: Share of the rate that is left.
        scale_up_fill, fabric_fill: Weight of filling the pipeline.
        scale_up_slowness, fabric_slowness: Factors of own runs.
        scale_up_bytes_per_s: Rate of a GPU's port in rings; infinite where there is none [B/s].
        reachable_share: Share of it that leads to the group.
        ring_share: Share of that rate that is left to rings.
        in_switch_bytes_per_s: Rate of in-switch reduction [B/s].
        free_share: What other traffic leaves of the links.
        copy_bytes_per_s: Rate of a rank's own part; infinite where it is no limit [B/s].
        fabric_bytes_per_s: A GPU's share of the NICs; infinite where there are none [B/s].
        tree_piece_bytes, ring_piece_bytes: See ``Fabric`` [B].
        channels: Of NCCL, inside a scale-up domain.
    """

    launch_s: float
    wide_launch_s: float
    in_switch_latency_s: float
    scale_up_hop_s: float
    scale_up_loaded_s: float
    scale_up_line_hop_s: float
    scale_up_chunk_hop_s: float
    scale_up_bulk_hop_s: float
    fabric_hop_s: float
    fabric_bulk_hop_s: float
    scale_up_low_latency_share: float
    fabric_low_latency_share: float
    scale_up_fill: float
    fabric_fill: float
    scale_up_slowness: float
    fabric_slowness: float
    scale_up_bytes_per_s: float
    reachable_share: float
    ring_share: float
    in_switch_bytes_per_s: float
    free_share: float
    copy_bytes_per_s: float
    fabric_bytes_per_s: float
    tree_piece_bytes: float
    ring_piece_bytes: float
    channels: float


def links_of(network: Network, local_ranks: int) -> Links:
    """The links as a group sees them that has so many ranks in one scale-up domain."""
    up, fabric = network.scale_up, network.fabric
    return Links(
        up.launch_s,
        up.wide_launch_s,
        up.in_switch_latency_s,
        up.latency_s,
        up.loaded_latency_s,
        up.line_latency_s,
        up.chunk_latency_s,
        up.bulk_latency_s,
        fabric.latency_s,
        fabric.bulk_latency_s,
        up.low_latency_share,
        fabric.low_latency_share,
        up.pipeline_fill,
        fabric.pipeline_fill,
        up.slowness,
        fabric.slowness,
        network.scale_up_bytes_per_s or inf,
        reachable_link_share(up, local_ranks),
        up.host_ring_share if local_ranks > network.gpus_per_node else 1.0,
        up.bandwidth_bytes_per_s * up.in_switch_efficiency,
        1 - up.background_load,
        up.local_copy_bytes_per_s or inf,
        network.fabric_bytes_per_s or inf,
        fabric.tree_piece_bytes,
        fabric.ring_piece_bytes or _LEAST_BYTES,
        _channels(up, local_ranks),
    )


def _channels(up: ScaleUp, ranks: int) -> float:
    if up.kind == "pcie":
        return PCIE_CHANNELS
    return max(1.0, up.sm_count * reachable_link_share(up, ranks))


def pipeline_fill_s(
    latency_s: float, transfer_s: float, fill: float, root: Callable[..., Any] = sqrt
) -> float:
    """Seconds that a message needs beyond latency and transfer to flow in chunks over hops.

    With b seconds of bytes in k pieces over hops of x seconds each, a in total, all
    pieces are through after (a / x + k) (x + b / k) seconds. The best k leaves
    a + b + 2 sqrt(a b). ``fill`` weighs the last term: channels beside one another hide
    part of it (below 1), unfit chunk sizes add to it (above 1).

    Example:
        >>> pipeline_fill_s(1.0, 4.0, fill=1.0)
        4.0
    """
    filled: float = 2 * fill * root(latency_s * transfer_s)
    return filled


def demand_timing(demand: Demand, links: Links) -> Timing:
    """Time of ``demand`` alone on the links, under the faster protocol.

    Raises:
        InputError: Bytes must cross the fabric, and the network has none.
    """
    if demand.fabric_bytes and links.fabric_bytes_per_s == inf:
        raise InputError.single(
            "cluster.network.fabric",
            "has no NICs, but ranks of different nodes must communicate",
            0,
            "set nics_per_node and nic, or keep every group inside a node",
        )
    return min(protocol_timings(demand, links))


def protocol_timings(
    demand: Demand, links: Links, by: Arithmetic = NUMBERS
) -> tuple[Timing, Timing, Timing]:
    """Times of a demand, or of arrays of them, by protocol; infinite where it cannot run.

    Args:
        demand: What an algorithm asks of the links.
        links: The links.
        by: Arithmetic of numbers, or of the arrays that both hold.
    """
    up_s, fabric_s = _scale_up_s(demand, links, by), _fabric_s(demand, links)
    crosses = demand.fabric_bytes > 0
    is_known = demand.protocol > Protocol.FASTEST
    slowness = by.where(crosses, links.fabric_slowness, links.scale_up_slowness)
    fill = by.where(crosses, links.fabric_fill, links.scale_up_fill)
    # Rings whose protocol is known start as many chunks as they have channels, all at once; only
    # Simple's whole chunks are too few for that where they cross the fabric.
    starts_all = by.where(crosses, False, is_known)
    line_fill = by.where(is_known, 0.0, fill)
    chunk_fill = by.where(demand.in_switch, fill, by.where(starts_all, 0.0, fill))

    def timing(
        name: str, runs: Any, inside_s: float, hops_s: float, transfer_s: float, fill: Any
    ) -> Timing:
        latency_s = (
            links.launch_s
            + _width(demand, by) * links.wide_launch_s
            + inside_s
            + hops_s
            + by.where(demand.in_switch, links.in_switch_latency_s, 0.0)
        )
        # The levels of a tree between nodes pass on one piece at a time. In all else every rank
        # sends from the start, and what is left is the cost of many short chunks.
        fill_s = by.where(
            crosses & demand.is_tree,
            _tree_fill_s(demand, links, by),
            pipeline_fill_s(latency_s, transfer_s, fill, by.root),
        )
        seconds = by.where(runs, slowness * (latency_s + transfer_s + fill_s), inf)
        return Timing(seconds, slowness * transfer_s, name)

    hops, is_any = demand.scale_up_hops, demand.protocol == Protocol.FASTEST
    simple = timing(
        "simple",
        is_any | (demand.protocol == Protocol.SIMPLE),
        by.where(
            starts_all,
            _chunk_hops(demand, by) * links.scale_up_chunk_hop_s,
            hops * links.scale_up_bulk_hop_s,
        ),
        demand.fabric_hops * _bulk_hop_s(demand, links, by),
        by.larger(up_s, fabric_s),
        chunk_fill,
    )
    lines = timing(
        "lines",
        demand.protocol == Protocol.LINES,
        hops * links.scale_up_line_hop_s * by.where(demand.is_tree, TREE_LINE_HOP, 1.0),
        demand.fabric_hops * FABRIC_LINE_HOP * links.fabric_hop_s,
        by.larger(up_s, fabric_s) / LINE_SHARE,
        line_fill,
    )
    low_latency = timing(
        "low_latency",
        # In-switch reduction is written for one protocol.
        by.where(demand.in_switch, False, is_any) | (demand.protocol == Protocol.LOW_LATENCY),
        hops * (links.scale_up_hop_s + _load(demand, by) * links.scale_up_loaded_s)
        + demand.late_hops * links.scale_up_hop_s,
        demand.fabric_hops * links.fabric_hop_s,
        by.larger(
            up_s * _beyond_first_words(demand, links, by) / links.scale_up_low_latency_share,
            fabric_s / links.fabric_low_latency_share,
        ),
        line_fill,
    )
    return simple, lines, low_latency


def _chunk_hops(demand: Demand, by: Arithmetic) -> float:
    """Hops of whole chunks: every rank waits once more, for what it works on at the last."""
    hops: float = demand.scale_up_hops + by.where(demand.scale_up_hops > 0, 1.0, 0.0)
    return hops


def _is_ring(demand: Demand, by: Arithmetic) -> Any:
    return by.where(demand.is_tree, False, demand.hop_bytes < inf)


def _load(demand: Demand, by: Arithmetic) -> float:
    """How full a hop of a ring or a tree is in LL, 0 to 1."""
    share: float = by.where(
        demand.hop_bytes < FULL_HOP_BYTES, demand.hop_bytes / FULL_HOP_BYTES, 1.0
    )
    load: float = by.where(demand.protocol > Protocol.FASTEST, share, 0.0)
    return load


def _width(demand: Demand, by: Arithmetic) -> float:
    """How far a ring's kernel is from one channel to several, 0 to 1.

    Source: all_gather of 2, 4 and 8 A100 takes 3.4, 4.6 and 6.2 us longer, over 1, 3 and 7 hops,
    where each passes on 8 KiB than where it passes on 1 KiB (ai-dynamo/aiconfigurator): 3 us of it
    do not grow with the hops.
    """
    share: float = by.where(
        demand.hop_bytes < WIDE_HOP_BYTES, demand.hop_bytes / WIDE_HOP_BYTES, 1.0
    )
    is_ring = _is_ring(demand, by)
    width: float = by.where(is_ring & (demand.protocol > Protocol.FASTEST), share, 0.0)
    return width


def _beyond_first_words(demand: Demand, links: Links, by: Arithmetic) -> float:
    """Share of a ring's bytes for which hops in LL take time beside their latency.

    Of each hop every thread of every channel passes its first word at once, in the hop's latency.
    Source: NCCL src/device/prims_ll.h; all_gather of 8 H100 takes 13.1 us at 32 kB, 13.6 at 256 kB
    and 22.2 at 2 MB (ai-dynamo/aiconfigurator).
    """
    first = links.channels * FULL_HOP_BYTES
    left = by.larger(0.0, 1 - first / demand.hop_bytes)
    is_ring = _is_ring(demand, by)
    share: float = by.where(is_ring & (demand.protocol > Protocol.FASTEST), left, 1.0)
    return share


def _bulk_hop_s(demand: Demand, links: Links, by: Arithmetic) -> float:
    """Latency of a hop of a large message over the fabric, which a short part does not reach."""
    bulk_s = links.fabric_bulk_hop_s
    share = demand.hop_bytes / links.ring_piece_bytes
    is_whole = by.where(demand.is_tree, True, demand.hop_bytes >= links.ring_piece_bytes)
    hop_s: float = by.where(
        is_whole,
        bulk_s,
        by.larger(links.fabric_hop_s, share * bulk_s),
    )
    return hop_s


def _tree_fill_s(demand: Demand, links: Links, by: Arithmetic) -> float:
    """Seconds in which the levels of a tree between nodes fill."""
    whole, piece = demand.fabric_bytes, demand.piece_share * links.tree_piece_bytes
    passed_bytes = by.where(whole < piece, whole, piece)
    filled: float = demand.fabric_hops * passed_bytes / links.fabric_bytes_per_s
    return filled


def _fabric_s(demand: Demand, links: Links) -> float:
    return demand.fabric_bytes / (links.fabric_bytes_per_s * demand.fabric_efficiency)


def _scale_up_s(demand: Demand, links: Links, by: Arithmetic) -> float:
    feeding = by.where(demand.fabric_bytes > 0, IN_SWITCH_TREE_EFFICIENCY, 1.0)
    rate = by.where(
        demand.in_switch,
        links.in_switch_bytes_per_s * feeding * links.free_share,
        links.scale_up_bytes_per_s
        * demand.scale_up_efficiency
        * links.reachable_share
        * by.where(_is_ring(demand, by), links.ring_share, 1.0),
    )
    moved_s = demand.scale_up_bytes / rate + demand.copied_bytes / links.copy_bytes_per_s
    seconds: float = by.where(demand.scale_up_bytes > 0, moved_s, 0.0)
    return seconds


def reachable_link_share(up: ScaleUp, ranks: int) -> float:
    """Share of a GPU's scale-up links that lead to the other ``ranks`` of its group.

    A switch gives all of them to any peer. In a full mesh every peer has its own link, and a GPU
    alone in its node has no peer. Over PCIe more GPUs crowd what joins their slots. In a torus it
    depends on the block that they form.
    """
    if up.torus is not None:
        return ring_link_share(ranks, up.torus)
    if up.kind == "pcie":
        share: float = (2 / max(2, ranks)) ** up.crowding
        return share * _socket_share(up, ranks)
    if up.kind == "full-mesh":
        return min(1.0, (ranks - 1) / (up.gpus - 1)) if min(ranks, up.gpus) > 1 else 1.0
    if up.kind == "hybrid-cube-mesh":
        return HYBRID_CUBE_MESH_RINGS.get(ranks, NVLINKS_PER_V100) / NVLINKS_PER_V100
    return 1.0


def _socket_share(up: ScaleUp, ranks: int) -> float:
    """Share of the rate of two GPUs that is left to each of more, whose ring crosses sockets.

    NCCL opens as many channels as the slowest link of its ring has use for. Source: NCCL
    src/graph/topo.h (links between processors), search.cc and connect.cc. Eight RTX PRO 6000 on two
    sockets pass 22.2 GB/s each with the channels that it opens, and 37.6 with eight (voipmonitor/
    rtx6kpro, hardware/pcie-bandwidth.md).

    Ignores: which cards share a socket.
    """
    if ranks <= _PAIR or up.socket_link_bytes_per_s is None:
        return 1.0
    return min(1.0, up.socket_link_bytes_per_s / (up.bandwidth_bytes_per_s * up.efficiency))
