"""What does a system look like: inside a node, and between nodes?

Nodes join by leafs, spines and the core; the width of each tier is written on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import Network, SwitchTier
from simulator.plots import style
from simulator.plots.machines.diagram import (
    FABRIC_LINE,
    GPU,
    Box,
    draw_box,
    draw_frame,
    draw_lines,
    label_link,
    row_of_boxes,
)
from simulator.plots.machines.node_drawing import draw_node
from simulator.units import format_bytes, format_rate, format_seconds

_SWITCH_IN, _NODE_IN, _TIER_IN = 0.3, 0.34, 0.72
_SHOWN_NODES, _MOST_RAILS = 3, 8
_LEAF, _SPINE, _CORE = "#FBE3AE", "#F3C35C", style.ORANGE

_FABRIC_NAMES = {
    "ib": "InfiniBand", "roce": "RoCE", "efa": "EFA", "efa-1": "EFA 1", "tcpx": "GPUDirect-TCPX",
    "tcpxo": "GPUDirect-TCPXO", "slingshot": "Slingshot", "opa": "Omni-Path",
    "ethernet": "Ethernet",
}  # fmt: skip
"""How people write the kinds of fabric."""

_LEFT_IN, _TOP_IN, _HEIGHT_IN, _CORE_IN, _FACTS_IN = 0.35, 0.78, 3.9, 0.8, 0.95

_NODE_WIDTH_IN, _BETWEEN_IN = 5.35, 0.35

_EDGE_IN = 0.02
"""Room for the upper edge of the frames."""


def _draw_fabric(axes: Axes, network: Network, area: Box) -> None:
    """Draw two groups of nodes and the switch tiers above them into the area."""
    domains = _domain_name(network)
    draw_frame(axes, area, f"between {domains}s: {_FABRIC_NAMES[network.fabric.kind]}")
    inside = Box(area.left + 0.15, area.top + 0.38, area.width - 0.3, area.height - 0.5)
    if not network.fabric.nics_per_node:
        style.write(axes, inside.left, inside.top + 0.2, "none: no NICs")
    elif network.fabric.leaf.gpus:
        _draw_tiers(axes, network, inside)
    else:
        _draw_unknown_shape(axes, network, inside)


def _draw_unknown_shape(axes: Axes, network: Network, area: Box) -> None:
    cloud = Box(area.left, area.top + 0.25, area.width, 0.75)
    draw_box(axes, cloud, "switches\n(topology not given: non-blocking)", face=_LEAF)
    nodes = row_of_boxes(Box(area.left, area.bottom - _NODE_IN - 0.5, area.width, _NODE_IN), 4, 0.1)
    draw_lines(axes, [((n.upper[0], cloud.bottom), n.upper) for n in nodes], FABRIC_LINE, 1.8)
    middle = (area.centre[0], (cloud.bottom + nodes[0].top) / 2)
    label_link(axes, middle, _nic_text(network))
    name = _domain_name(network)
    for node, text in zip(nodes, (f"{name} 0", f"{name} 1", "...", f"{name} n"), strict=True):
        draw_box(axes, node, text, face=GPU)


def _domain_name(network: Network) -> str:
    """What people call GPUs on common scale-up links: a rack if it has several hosts."""
    return "rack" if network.scale_up.gpus > network.gpus_per_node else "node"


def _nic_text(network: Network) -> str:
    fabric = network.fabric
    gbit = fabric.nic_bytes_per_s * 8 / 1e9
    share = fabric.nics_per_node * fabric.nic_bytes_per_s / network.gpus_per_node
    busy = f"\n{100 * fabric.background_load:.0f} % taken" if fabric.background_load else ""
    count = fabric.nics_per_node
    return f"{count} x {gbit:g} Gbit/s per host\n{format_rate(share)} per GPU, each direction{busy}"


def _draw_tiers(axes: Axes, network: Network, area: Box) -> None:
    """Two groups of nodes below their leafs, spines above, the core above all."""
    fabric = network.fabric
    groups = row_of_boxes(Box(area.left, area.bottom, area.width, 0), 2, 0.3)
    has_core = fabric.pod.gpus > 0
    spine_top = area.top + (_SWITCH_IN + _TIER_IN if has_core else 0.0)
    leaf_top = spine_top + _SWITCH_IN + _TIER_IN
    node_top = area.bottom - _NODE_IN - 0.42
    spines = (
        [Box(g.left + 0.2 * g.width, spine_top, 0.6 * g.width, _SWITCH_IN) for g in groups]
        if has_core
        else [Box(area.left + 0.25 * area.width, spine_top, area.width / 2, _SWITCH_IN)]
    )
    for index, group in enumerate(groups):
        leafs = _leafs(network, Box(group.left, leaf_top, group.width, _SWITCH_IN))
        nodes = row_of_boxes(Box(group.left, node_top, group.width, _NODE_IN), _SHOWN_NODES, 0.06)
        _draw_group(axes, network, leafs, nodes, index)
        spine = spines[index] if has_core else spines[0]
        draw_lines(axes, [(leaf.upper, spine.lower) for leaf in leafs], FABRIC_LINE, 1.2)
    for spine in spines:
        draw_box(
            axes, spine, f"pod of {fabric.pod.gpus:,} GPUs" if has_core else "spines", face=_SPINE
        )
    middle_in = leaf_top - _TIER_IN / 2
    label_link(axes, (area.centre[0], middle_in), _uplink_text(fabric.leaf, network, "leaf"))
    label_link(axes, (area.centre[0], (leaf_top + _SWITCH_IN + node_top) / 2), _nic_text(network))
    if has_core:
        core = Box(area.left + 0.25 * area.width, area.top, area.width / 2, _SWITCH_IN)
        draw_lines(axes, [(spine.upper, core.lower) for spine in spines], FABRIC_LINE, 1.2)
        draw_box(axes, core, "core", face=_CORE)
        y = (core.bottom + spine_top) / 2
        label_link(axes, (area.centre[0], y), _uplink_text(fabric.pod, network, "pod"))


def _leafs(network: Network, area: Box) -> Sequence[Box]:
    rails = network.fabric.nics_per_node if network.fabric.wiring == "rail-optimised" else 1
    return row_of_boxes(area, min(rails, _MOST_RAILS), 0.03)


def _draw_group(
    axes: Axes, network: Network, leafs: Sequence[Box], nodes: Sequence[Box], group: int
) -> None:
    domain, below = network.scale_up.gpus, network.fabric.leaf.gpus
    count = below // domain
    lines = [(node.upper, leaf.lower) for node in nodes for leaf in leafs]
    draw_lines(axes, lines, FABRIC_LINE, 0.5 if len(leafs) > 1 else 1.6)
    name = "leaf" if len(leafs) == 1 else ""
    for rail, leaf in enumerate(leafs):
        draw_box(axes, leaf, name or str(rail), face=_LEAF, size_pt=7.5)
    numbers = (f"{group * count}", "...", f"{(group + 1) * count - 1}")
    for node, number in zip(nodes, numbers, strict=True):
        draw_box(axes, node, number, face=GPU)
    left, right = nodes[0].left, nodes[-1].left + nodes[-1].width
    rails = f"{len(leafs)} rails, " if len(leafs) > 1 else ""
    domains = f"{_domain_name(network)}s"
    axes.text(
        (left + right) / 2, nodes[0].bottom + 0.08, f"{rails}{count} {domains}\n{below} GPUs",
        fontsize=7.5, color=style.PALE_INK, ha="center", va="top", linespacing=1.15,
    )  # fmt: skip


def _uplink_text(tier: SwitchTier, network: Network, name: str) -> str:
    rates = {"leaf": network.leaf_uplink_bytes_per_s, "pod": network.pod_uplink_bytes_per_s}
    rate = rates[name] / network.fabric.efficiency
    ratio = f"{tier.oversubscription:g} : 1" if tier.oversubscription > 1 else "non-blocking"
    latency = f", +{tier.latency_s * 1e6:g} us" if tier.latency_s else ""
    busy = f", {100 * tier.background_load:.0f} % taken" if tier.background_load else ""
    return f"{ratio}{latency}{busy}\n{format_rate(rate)} per GPU"


def build_system_figure(profile: HardwareProfile) -> Figure:
    """One node or rack on the left, how they join on the right, what software sees below."""
    height_in = _HEIGHT_IN + (_CORE_IN if profile.network.fabric.pod.gpus else 0.0)
    figure = style.new_figure(_TOP_IN + height_in + 0.3 + _FACTS_IN)
    axes = style.add_inch_axes(figure, top=_TOP_IN, height=height_in + 0.3 + _FACTS_IN)
    node = Box(_LEFT_IN, _EDGE_IN, _NODE_WIDTH_IN, height_in)
    right_in = _LEFT_IN + _NODE_WIDTH_IN + _BETWEEN_IN
    between = Box(right_in, _EDGE_IN, style.WIDTH_IN - 0.2 - right_in, height_in)
    x, y = draw_node(axes, profile, node)
    if profile.network.fabric.nics_per_node:
        down = y + 0.17
        path = [((x, y), (x, down)), ((x, down), (between.centre[0], down))]
        draw_lines(axes, [*path, ((between.centre[0], down), between.lower)], FABRIC_LINE, 2.4)
    _draw_fabric(axes, profile.network, between)
    _write_facts(axes, profile, height_in + 0.42)
    style.add_title(figure, profile.name, _subtitle(profile), left=_LEFT_IN)
    return figure


def _subtitle(profile: HardwareProfile) -> str:
    return style.shorten(profile.description, 118)


def _write_facts(axes: Axes, profile: HardwareProfile, top: float) -> None:
    """What large and small messages get, in two columns under the drawing."""
    network, device = profile.network, profile.device
    up, fabric = network.scale_up, network.fabric
    memory = (
        f"{format_bytes(device.memory_bytes)} at {format_rate(device.memory_bandwidth_bytes_per_s)}"
    )
    left = [
        ("GPU memory", memory),
        ("large rings in a node", f"{format_rate(network.scale_up_bytes_per_s)} per GPU"),
        ("per hop, small and large messages", _hops(up.latency_s, up.bulk_latency_s)),
    ]
    right = [("fabric", _FABRIC_NAMES[fabric.kind])]
    if fabric.nics_per_node:
        right += [
            (
                f"large rings between {_domain_name(network)}s",
                f"{format_rate(network.fabric_bytes_per_s)} per GPU",
            ),
            ("per hop, small and large messages", _hops(fabric.latency_s, fabric.bulk_latency_s)),
        ]
    for x, facts in ((_LEFT_IN, left), (_LEFT_IN + _NODE_WIDTH_IN + _BETWEEN_IN, right)):
        for line, (name, value) in enumerate(facts):
            y = top + 0.1 + 0.22 * line
            style.write(axes, x, y, f"{name}:", size_pt=8.5, color=style.PALE_INK)
            style.write(axes, x + 2.15, y, value, size_pt=8.5)


def _hops(small_s: float, large_s: float) -> str:
    return f"{format_seconds(small_s)}, {format_seconds(large_s)}"
