"""Which links join the GPUs, inside a scale-up domain and between domains?

What each parameter means in time is defined in :mod:`simulator.cost.collectives`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from simulator.described.base import (
    Bytes,
    BytesPerSecond,
    Flag,
    PositiveFraction,
    Ranks,
    RanksOrZero,
    Ratio,
    Seconds,
    Spec,
    WidthOrZero,
)
from simulator.described.documents import data_folder, is_number_with_source, read_yaml, validated
from simulator.errors import InputError
from simulator.units import format_quantity

Wiring = Literal["fat-tree", "rail-optimised"]
ScaleUpKind = Literal["nvswitch", "hybrid-cube-mesh", "full-mesh", "pcie", "torus"]
Library = Literal["nccl", "gloo"]
Algorithm = Literal["ring", "tree"]
Tuning = Literal["volta", "ampere", "hopper", "blackwell"]
FabricKind = Literal["ib", "roce", "efa", "efa-1", "tcpx", "tcpxo", "slingshot", "opa", "ethernet"]
PipelineFill = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Crowding = Annotated[float, Field(ge=0, le=3)]
Oversubscription = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Load = Annotated[float, Field(ge=0, lt=1)]
"""Share of a link that is taken; one that is full joins nothing."""


_CHANNELS_PER_NIC, _MOST_CHANNELS = 2, 16
"""Source: NCCL src/graph/connect.cc: one ring per NIC, each doubled."""

HYBRID_CUBE_MESH_LINKS: Mapping[tuple[int, int], int] = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""NVLinks between pairs of GPUs of a DGX-1 (V100), six per GPU; other pairs have none.
Source: NVIDIA DGX-1 system architecture white paper; ``nvidia-smi topo -m`` of such a node."""


class Torus(Spec):
    """A grid of chips that are joined to their neighbours: two links per chip and dimension."""

    dimensions: Literal[2, 3]
    """Of the grid."""
    ring: Ranks
    """Chips along a dimension from which on, and at multiples of which, its ends are joined."""


class ScaleUp(Spec):
    """Links inside one scale-up domain (a node, or a rack for NVL72)."""

    kind: ScaleUpKind
    """How the GPUs of a domain are joined."""
    torus: Torus | None = None
    """Its shape, where ``kind`` is one."""
    gpus: Ranks
    """GPUs in one domain."""
    bandwidth_bytes_per_s: BytesPerSecond
    """Per GPU and direction, payload as on the data sheet; of a torus, that of all links."""
    efficiency: PositiveFraction
    """Share of it that large ring collectives reach."""
    latency_s: Seconds
    """One hop of a small message (NCCL's LL protocols)."""
    loaded_latency_s: Seconds = 0.2e-6
    """What such a hop takes more where it passes 4 KiB per channel, one word per thread."""
    line_latency_s: Seconds = 2.2e-6
    """One hop in NCCL's LL128 protocol."""
    chunk_latency_s: Seconds = 6e-6
    """One hop in NCCL's Simple protocol where all ranks are in the domain and it is known that NCCL
    takes it; ``bulk_latency`` elsewhere."""
    bulk_latency_s: Seconds = 2e-6
    """One hop of a large message (NCCL's Simple protocol)."""
    launch_s: Seconds = 5e-6
    """A collective before its first hop: kernel start and synchronisation."""
    wide_launch_s: Seconds = 1e-6
    """What the start takes more where a collective's kernel has several channels, and it is known
    which protocol NCCL takes."""
    low_latency_share: PositiveFraction = 0.5
    """Share of the large-message rate that small-message protocols reach."""
    pipeline_fill: PipelineFill = 0.4
    """Weight of filling and draining the chunk pipeline; 0 none, 1 the textbook one."""
    local_copy_bytes_per_s: BytesPerSecond | None = None
    """Rate at which a collective's kernel copies a rank's own part inside its memory;
    never a limit where unknown."""
    in_switch_reduction: Flag = False
    """Whether the switch reduces in flight (NVLS)."""
    in_switch_efficiency: PositiveFraction = 0.6
    """Share of the bandwidth that in-switch reduction reaches."""
    in_switch_latency_s: Seconds = 25e-6
    """One in-switch reduction that moves next to nothing, beyond the launch."""
    crowding: Crowding = 0.0
    """Over PCIe, how the rate of each falls with the GPUs that take part, as (2 / GPUs) to this
    power: their traffic meets in switches, sockets and host memory. 0 where it does not."""
    socket_link_bytes_per_s: BytesPerSecond | None = None
    """Over PCIe, the most that each of more than two GPUs passes on: what NCCL takes the link
    between processors to carry, and opens channels for. Never a limit where unknown."""
    host_ring_share: PositiveFraction = 1.0
    """Share of their rate that rings keep where they pass through several hosts of a rack. What
    the switches add, and exchanges of all with all, keep theirs."""
    sm_count: WidthOrZero = 24
    """Multiprocessors that a collective's kernel holds: NCCL's channels (connect.cc)."""
    background_load: Load = 0.0
    """Share of every GPU's links that other traffic takes."""
    slowness: Ratio = 1.0
    """Time of exchanges in a domain over that which follows from the numbers above, as own runs
    say (``clustersim calibrate runs``)."""


class SwitchTier(Spec):
    """One tier of switches: which GPUs meet below it, and how it is joined to the rest."""

    gpus: RanksOrZero = 0
    """GPUs whose NICs meet in it, for example a rail group or a pod; 0 is the whole cluster."""
    oversubscription: Oversubscription = 1.0
    """Rate of its down-links over that of its up-links: with 2, up-links carry half."""
    latency_s: Seconds = 0.0
    """What a hop takes more where it climbs above this tier."""
    background_load: Load = 0.0
    """Share of its up-links that other traffic takes."""


class Fabric(Spec):
    """The network between scale-up domains.

    Leaf switches join NICs; spines join the leafs of a pod; core switches join pods.
    """

    kind: FabricKind
    """Technology; the rates below say how fast it is."""
    nics_per_node: RanksOrZero
    """NICs of one node that carry collectives."""
    nic_bytes_per_s: BytesPerSecond
    """Per NIC and direction, line rate."""
    efficiency: PositiveFraction
    """Share of the line rate that large collectives reach."""
    latency_s: Seconds
    """One network hop of a small message."""
    bulk_latency_s: Seconds = 20e-6
    """One network hop of a large message."""
    low_latency_share: PositiveFraction = 0.15
    """As for the scale-up links."""
    pipeline_fill: PipelineFill = 0.4
    """As for the scale-up links, for collectives that cross the fabric."""
    tree_piece_bytes: Bytes = 1.5e6
    """Bytes that one rank's share of the NICs carries before the next level of a tree starts:
    chunks of all channels, where they are of 64 KiB. By default near what InfiniBand's rows tell,
    an assumption."""
    tree_channel_bytes_per_s: BytesPerSecond | None = None
    """Most that one channel of a tree, one per NIC, adds up between two nodes, up and down; no
    limit where unknown (``perChMaxTreeBws`` of NCCL's src/graph/tuning.cc)."""
    ring_piece_bytes: Bytes = 0.0
    """Part of a message from which on a hop of a ring takes all of ``bulk_latency``; a smaller one
    is stored and sent on sooner, in no less than ``latency``. 0 where parts of any size take it."""
    late_node_hop: Load = 0.0
    """Part of a hop that an all_to_all takes for each node beyond the first partner; 0 where
    unknown."""
    nccl_chooses: Flag = True
    """Whether NCCL's own model chooses algorithm and protocol of groups that cross it, if it is of
    a kind for which that model is known (``facts/nccl_tuning.yaml``). Else the fastest is taken."""
    in_network_reduction: Flag = False
    """Whether the switches add (SHARP) and the library uses it (CollNet)."""
    pat: Flag = False
    """Whether the library gathers and scatters over trees where a group has one rank per node
    (PAT, NCCL 2.23 and newer)."""
    sm_count: WidthOrZero | None = None
    """As for the scale-up links, for collectives that cross the fabric. By default two channels
    per NIC of a node, 16 at the most (connect.cc)."""
    background_load: Load = 0.0
    """Share of every NIC that other traffic takes."""
    slowness: Ratio = 1.0
    """As for the scale-up links, for exchanges that cross the fabric."""
    wiring: Wiring = "fat-tree"
    """Whether all NICs of a node meet in one leaf, or each goes to the leaf of its rail."""
    leaf: SwitchTier = SwitchTier()
    """Leaf switches, and what joins them to the spine."""
    pod: SwitchTier = SwitchTier()
    """Leafs and spines that stand together, and what joins them to the core."""


PAIR_PORT = "pair"
"""Port of two ranks that send to each other over one connection, one direction at a time."""

LINK_PORT = "link"
"""Port of a rank to one other rank of a full mesh."""


class Network(Spec):
    """All links of a system."""

    gpus_per_node: Ranks
    """GPUs that share one host and its NICs."""
    scale_up: ScaleUp
    fabric: Fabric
    library: Library = "nccl"
    """Who carries collectives: NCCL (or a library like it), or gloo between CPUs."""
    tuning: Tuning | None = None
    """Architecture by whose constants NCCL chooses algorithm and protocol
    (``facts/nccl_tuning.yaml``). By default the fastest is taken."""
    algorithm: Algorithm | None = None
    """The only one that NCCL may take (``NCCL_ALGO``), of collectives that have it."""

    def taken_by(self, gpus: int) -> Network:
        """The network as a job of so many GPUs takes it: of racks only the nodes it is given.

        Every rack gives as many segments as it has room for. A segment is the most nodes, no
        more than a rack has, that divide those of the job: 256 GPUs are given 64 of each rack
        of 72. Leafs and pods then hold as many racks as before.

        Source: ``--segment`` of Slurm's block topology, and how NVIDIA's Megatron-Bridge sets
        it (scripts/performance/utils/executors.py).
        """
        node, domain = self.gpus_per_node, self.scale_up.gpus
        if domain <= node or gpus % node:
            return self
        nodes, rack = gpus // node, domain // node
        segment = max(size for size in range(1, rack + 1) if nodes % size == 0)
        given = rack // segment * segment * node
        if given == domain:
            return self
        tiers = {
            name: tier.model_copy(update={"gpus": tier.gpus // domain * given})
            for name, tier in (("leaf", self.fabric.leaf), ("pod", self.fabric.pod))
        }
        scale_up = self.scale_up.model_copy(update={"gpus": given})
        fabric = self.fabric.model_copy(update=tiers)
        return self.model_copy(update={"scale_up": scale_up, "fabric": fabric})

    @property
    def scale_up_bytes_per_s(self) -> float:
        """Rate of one GPU's scale-up port in large collectives, one direction [B/s]."""
        up = self.scale_up
        return up.bandwidth_bytes_per_s * up.efficiency * (1 - up.background_load)

    @property
    def fabric_sm_count(self) -> int:
        """Multiprocessors that a collective's kernel holds where it crosses the fabric."""
        fabric = self.fabric
        default = min(_MOST_CHANNELS, _CHANNELS_PER_NIC * fabric.nics_per_node)
        return default if fabric.sm_count is None else fabric.sm_count

    @property
    def fabric_bytes_per_s(self) -> float:
        """One GPU's share of its node's NICs in large collectives, one direction [B/s]."""
        return self._nic_share_bytes_per_s * (1 - self.fabric.background_load)

    @property
    def leaf_uplink_bytes_per_s(self) -> float:
        """One GPU's share of the links from leafs to spines, one direction [B/s]."""
        leaf = self.fabric.leaf
        return self._nic_share_bytes_per_s / leaf.oversubscription * (1 - leaf.background_load)

    @property
    def pod_uplink_bytes_per_s(self) -> float:
        """One GPU's share of the links from pods to the core, one direction [B/s]."""
        leaf, pod = self.fabric.leaf, self.fabric.pod
        narrowing = leaf.oversubscription * pod.oversubscription
        return self._nic_share_bytes_per_s / narrowing * (1 - pod.background_load)

    @property
    def ports_bytes_per_s(self) -> Mapping[str, float]:
        """Rate of every port that ranks share, per rank and direction [B/s], by name."""
        ports = {"scale_up": self.scale_up_bytes_per_s, "fabric": self.fabric_bytes_per_s}
        if self.scale_up.kind == "full-mesh" and self.scale_up.gpus > 1:
            ports[LINK_PORT] = self.scale_up_bytes_per_s / (self.scale_up.gpus - 1)
        if self.fabric.leaf.gpus:
            ports["leaf_uplink"] = self.leaf_uplink_bytes_per_s
        if self.fabric.pod.gpus:
            ports["pod_uplink"] = self.pod_uplink_bytes_per_s
        if self.library == "gloo":
            crosses = self.scale_up.gpus == 1
            ports[PAIR_PORT] = self.fabric_bytes_per_s if crosses else self.scale_up_bytes_per_s
        return ports

    @property
    def _nic_share_bytes_per_s(self) -> float:
        fabric = self.fabric
        node = fabric.nics_per_node * fabric.nic_bytes_per_s * fabric.efficiency
        return node / self.gpus_per_node


def library_document(kind: FabricKind) -> dict[str, Any]:
    """What the library says of a kind of fabric: fields with their sources, without NICs."""
    document = read_yaml(data_folder("hardware_profiles") / "fabrics" / f"{kind}.yaml")
    return {key: value for key, value in document.items() if key != "description"}


def library_fabric(kind: FabricKind, nics_per_node: int, nic_bytes_per_s: float) -> Fabric:
    """A fabric of ``kind`` with the library's parameters and these NICs.

    Raises:
        InputError: There is no such kind.
    """
    kinds = get_args(FabricKind)
    if kind not in kinds:
        raise InputError.single(
            "fabric.kind", "is not a known kind of fabric", kind, f"use one of {', '.join(kinds)}"
        )
    parameters = {
        key: value["value"] if isinstance(value, dict) and is_number_with_source(value) else value
        for key, value in library_document(kind).items()
        if key != "source"
    }
    nics = {
        "kind": kind,
        "nics_per_node": nics_per_node,
        "nic": format_quantity(nic_bytes_per_s, "bytes_per_s"),
    }
    return validated(Fabric, parameters | nics, "fabric")
