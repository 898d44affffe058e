"""What do the switch tiers above its leafs leave of the fabric to a group?

Traffic that stays below its leaf switches sees the NICs only. What climbs to the spine
(or, between pods, to the core) also loads the links up there. Every rank has its share of
these: the NIC rate divided by the oversubscription of each tier on the way. Groups like
this one lie beside each other, so all ranks below a leaf climb as often as those of one
group do on average.

Ignores: flows that hash onto the same up-link (ECMP), and adaptive routing. Trees are
taken to climb as often as rings: the trees between aligned leafs have one or two edges per
leaf, as a ring does.
Source: arithmetic on the shape of the network; no measurement.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.cost.collectives.types import CollectiveKind, Group
from simulator.described.cluster.network import Network


class Climb(NamedTuple):
    """How much of a group's traffic on the fabric climbs above its leafs and pods.

    Attributes:
        leaf_share: Part of the bytes that pass links from leafs to spines, 0 to 1.
        pod_share: Part of the bytes that pass links from pods to the core, 0 to 1.
        leaf_hops, pod_hops: The same for hops in a row.
    """

    leaf_share: float
    pod_share: float
    leaf_hops: float
    pod_hops: float

    def uplink_bytes(self, fabric_bytes: float) -> dict[str, float]:
        """Load on each kind of up-link that is used, per rank and direction [B]."""
        shares = {"leaf_uplink": self.leaf_share, "pod_uplink": self.pod_share}
        return {port: share * fabric_bytes for port, share in shares.items() if share}


def climb_of(kind: CollectiveKind | None, group: Group, network: Network) -> Climb:
    """How far the traffic of a collective climbs.

    In rings, trees and pairs (``kind`` None) neighbours talk: of the k nodes below a leaf
    one passes data on to the next leaf. In an all_to_all every node talks to all.

    Args:
        kind: What is done; None for a transfer between two ranks.
        group: Who takes part, and how many of its nodes share leafs and pods.
        network: Its wiring decides whether an all_to_all changes rails in the spine.
    """
    everyone = kind is CollectiveKind.ALL_TO_ALL
    leaf, pod = (
        _climbing_share(group.nodes, below, everyone)
        for below in (group.nodes_per_leaf, group.nodes_per_pod)
    )
    if everyone and group.nodes > 1:
        leaf += (1 - leaf) * _rail_change_share(network)
    if everyone:
        return Climb(leaf, pod, float(leaf > 0), float(pod > 0))
    return Climb(leaf, pod, leaf, pod)


def _climbing_share(nodes: int, below: int, everyone: bool) -> float:
    if not 0 < below < nodes:
        return 0.0
    return (nodes - below) / (nodes - 1) if everyone else 1 / below


def _rail_change_share(network: Network) -> float:
    """Part of the traffic inside a leaf group that must change rails, and can only above.

    NVLink and its like carry it to the GPU on the right rail first (NCCL's PXN); without
    them it goes up to the spine.
    """
    fabric = network.fabric
    known = fabric.wiring == "rail-optimised" and fabric.leaf.gpus > 0
    if not known or network.scale_up.kind != "pcie" or not fabric.nics_per_node:
        return 0.0
    return 1 - 1 / fabric.nics_per_node


def network_above(climb: Climb, network: Network) -> Network:
    """The network as traffic sees it that climbs so far: slower NICs and longer hops."""
    if not climb.leaf_share and not climb.pod_share:
        return network
    fabric, nic_rate = network.fabric, network.fabric_bytes_per_s
    limits = [nic_rate]
    if climb.leaf_share:
        limits.append(network.leaf_uplink_bytes_per_s / climb.leaf_share)
    if climb.pod_share:
        limits.append(network.pod_uplink_bytes_per_s / climb.pod_share)
    slowdown = min(limits) / nic_rate if nic_rate else 1.0
    latency_s = climb.leaf_hops * fabric.leaf.latency_s + climb.pod_hops * fabric.pod.latency_s
    seen = {
        "nic_bytes_per_s": fabric.nic_bytes_per_s * slowdown,
        "latency_s": fabric.latency_s + latency_s,
        "bulk_latency_s": fabric.bulk_latency_s + latency_s,
    }
    return network.model_copy(update={"fabric": fabric.model_copy(update=seen)})
