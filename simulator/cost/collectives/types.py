"""What is asked of, and answered by, the cost of a collective?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from math import inf
from typing import NamedTuple

from simulator.described.cluster.network import Network


class CollectiveKind(StrEnum):
    """What a group of ranks does together."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"


class Protocol(IntEnum):
    """How NCCL's ranks tell each other that data have arrived."""

    FASTEST = 0
    """Not known: the fastest is taken."""
    LOW_LATENCY = 1
    """LL: every 4 bytes carry a flag of as many."""
    LINES = 2
    """LL128: 120 of 128 bytes are data."""
    SIMPLE = 3
    """Whole chunks."""


@dataclass(frozen=True, slots=True)
class Group:
    """Who takes part.

    Attributes:
        ranks: How many ranks.
        ranks_per_node: How many of them share one scale-up domain (a node, or a rack
            for NVL72); where domains hold unequal parts, the fewest, which have the fewest
            NICs. Where it does not divide ``ranks`` otherwise, the last domain is taken as
            full.
        nodes_per_leaf: How many of its nodes have their NICs below the same leaf
            switches; 0 if all have.
        nodes_per_pod: The same for pods.
        peers: In a full mesh, where every pair has a link of its own, the others of the group
            in a rank's domain, each named by the exclusive or of the two ranks' numbers:
            both ends of a link say the same, and so do all ranks of an aligned group of
            2, 4 or 8. Empty elsewhere.
        unequal_nodes: Domains that it spans, where they hold unequal parts of it; else 0.
    """

    ranks: int
    ranks_per_node: int
    nodes_per_leaf: int = 0
    nodes_per_pod: int = 0
    peers: tuple[int, ...] = ()
    unequal_nodes: int = 0

    @property
    def local_ranks(self) -> int:
        """Ranks of the group in one domain."""
        return min(self.ranks, self.ranks_per_node)

    @property
    def nodes(self) -> int:
        """Scale-up domains that the group spans."""
        return self.unequal_nodes or -(-self.ranks // self.ranks_per_node)


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """What one collective costs when nothing else uses its links.

    Attributes:
        seconds: Total time [s].
        latency_s: The part not limited by bandwidth [s].
        algorithm: The fastest algorithm, a key of ``ALGORITHMS``.
        protocol: NCCL's protocol that goes with it.
        port_bytes: Bytes that pass the ports ``scale_up`` and ``fabric`` of one rank, and
            its share of ``leaf_uplink`` and ``pod_uplink`` where any climb that far, one
            direction [B].
        sm_count: Streaming multiprocessors that its kernel holds.
        link_bytes: Of what passes ``scale_up``, the part on the link to each of the group's
            ``peers`` [B].
    """

    seconds: float
    latency_s: float
    algorithm: str
    protocol: str
    port_bytes: Mapping[str, float]
    sm_count: int
    link_bytes: Mapping[int, float] = field(default_factory=dict)


NO_COST = CollectiveCost(0.0, 0.0, "none", "none", {}, 0)
"""Of one rank, or of zero bytes."""


class Demand(NamedTuple):
    """What one algorithm asks of the links.

    Attributes:
        scale_up_hops: Hops in a row on scale-up links.
        fabric_hops: Hops in a row on the fabric.
        scale_up_bytes: Bytes through one rank's scale-up port, one direction [B].
        fabric_bytes: Bytes through one rank's share of the fabric, one direction [B].
        copied_bytes: A rank's own part, copied from its input to its output [B].
        hop_bytes: What one hop of a ring or tree passes on [B]; unlimited for all else.
        late_hops: Scale-up hops that a small message takes more, until the last partner is there.
        scale_up_efficiency: Rate on the scale-up port, relative to a ring.
        fabric_efficiency: Rate on the fabric, relative to a ring.
        in_switch: The scale-up switch reduces.
        is_tree: Nodes receive a piece from those below before they pass it on.
        piece_share: What passes a level of a tree between nodes at a time, over
            ``Fabric.tree_piece_bytes``.
        protocol: The one that the library takes.
    """

    scale_up_hops: float
    fabric_hops: float
    scale_up_bytes: float
    fabric_bytes: float
    copied_bytes: float = 0.0
    hop_bytes: float = inf
    late_hops: float = 0.0
    scale_up_efficiency: float = 1.0
    fabric_efficiency: float = 1.0
    in_switch: bool = False
    is_tree: bool = False
    piece_share: float = 1.0
    protocol: Protocol = Protocol.FASTEST


Algorithm = Callable[[float, Group, Network], Demand | None]
"""(bytes, group, network) -> its demand, or None where it cannot run."""
