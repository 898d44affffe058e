"""What does a system look like: inside a node, and between nodes?

Inside a node, or a rack whose GPUs share a switch: scale-up links above, GPUs, the host with its
PCIe below them, NICs at the lower edge. Nodes join by leafs, spines and
the core; the width of each tier is written on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import cos, pi, sin

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import HYBRID_CUBE_MESH_LINKS, Network, SwitchTier, Torus
from simulator.plots import style
from simulator.plots.machines.diagram import (
    FABRIC_LINE,
    GPU,
    HOST,
    NIC,
    PCIE_LINE,
    SCALE_UP_LINE,
    SMALL_PT,
    SWITCH,
    Box,
    Point,
    draw_box,
    draw_frame,
    draw_lines,
    label_link,
    row_of_boxes,
)
from simulator.units import format_bytes, format_rate, format_seconds

_PAD_IN, _TITLE_IN = 0.16, 0.3
_GPU_IN, _BAR_IN, _NIC_IN = 0.42, 0.34, 0.3
_NVLINKS_PER_GPU = 6
"""Of a V100, see ``HYBRID_CUBE_MESH_LINKS``."""
_LINK_PT, _NARROW_GPU_IN = 1.5, 0.45
_TORUS_PART = (3, 6)
"""Rows and columns that are drawn of a torus."""
_CUBE_ARCS = {(1, 5): -0.22, (2, 6): 0.22}
"""Links between the outer corners of the two squares, and how far they bend."""


def draw_node(axes: Axes, profile: HardwareProfile, area: Box) -> Point:
    """Draw one scale-up domain into the area; returns where its NICs leave it."""
    network = profile.network
    draw_frame(axes, area, _title(network))
    inside = Box(
        area.left + _PAD_IN, area.top + _TITLE_IN,
        area.width - 2 * _PAD_IN, area.height - _TITLE_IN - _PAD_IN,
    )  # fmt: skip
    host = Box(inside.left, inside.bottom - _NIC_IN - 0.42 - _BAR_IN, inside.width, _BAR_IN)
    above = Box(inside.left, inside.top, inside.width, host.top - inside.top)
    hosts = network.scale_up.gpus // network.gpus_per_node
    if network.scale_up.torus is not None:
        _draw_torus(axes, network, network.scale_up.torus, above)
    elif hosts > 1:
        _draw_trays(axes, network, above, hosts)
    elif network.scale_up.kind == "nvswitch":
        _draw_switched(axes, profile, above)
    elif network.scale_up.kind == "pcie":
        _draw_pcie(axes, profile, above)
    else:
        _draw_mesh(axes, profile, above)
    memory = format_bytes(profile.host.memory_bytes)
    each = f"each of {hosts} hosts" if hosts > 1 else "host"
    draw_box(axes, host, f"{each}: PCIe, processors, {memory} memory", face=HOST)
    _draw_nics(axes, network, host, hosts)
    return area.lower


def _title(network: Network) -> str:
    gpus, hosts = network.scale_up.gpus, network.scale_up.gpus // network.gpus_per_node
    kinds = {
        "nvswitch": "switched", "full-mesh": "full mesh", "hybrid-cube-mesh": "hybrid cube mesh",
        "pcie": "PCIe", "torus": "torus",
    }  # fmt: skip
    domain = "rack" if network.scale_up.torus is None else "pod"
    place = f"one {domain}: {gpus} GPUs in {hosts} hosts" if hosts > 1 else f"one node: {gpus} GPUs"
    return f"{place}, {kinds[network.scale_up.kind]}"


def _rate_text(network: Network) -> str:
    return f"{format_rate(network.scale_up.bandwidth_bytes_per_s)} per GPU, each direction"


def _draw_switched(axes: Axes, profile: HardwareProfile, area: Box) -> None:
    network = profile.network
    bar = Box(area.left, area.top + 0.1, area.width, _BAR_IN)
    gpus = row_of_boxes(
        Box(area.left, bar.bottom + 0.75, area.width, _GPU_IN), network.scale_up.gpus, 0.08
    )
    reduces = ", reduce in the switch" if network.scale_up.in_switch_reduction else ""
    draw_box(axes, bar, f"scale-up switches{reduces}", face=SWITCH)
    draw_lines(axes, [((g.upper[0], bar.bottom), g.upper) for g in gpus], SCALE_UP_LINE, 2.4)
    label_link(axes, (area.centre[0], bar.bottom + 0.375), _rate_text(network))
    for index, gpu in enumerate(gpus):
        draw_box(axes, gpu, _gpu_name(index, gpu), face=GPU)
    _draw_pcie_links(axes, profile, gpus, area.bottom)


def _gpu_name(index: int, box: Box) -> str:
    return f"GPU {index}" if box.width > _NARROW_GPU_IN else f"GPU\n{index}"


def _draw_pcie(axes: Axes, profile: HardwareProfile, area: Box) -> None:
    """No links of their own: all traffic between GPUs passes the host's bridges."""
    network = profile.network
    top = area.top + 0.5 * (area.height - _GPU_IN) - 0.25
    gpus = row_of_boxes(Box(area.left, top, area.width, _GPU_IN), network.scale_up.gpus, 0.08)
    for index, gpu in enumerate(gpus):
        draw_box(axes, gpu, _gpu_name(index, gpu), face=GPU)
    draw_lines(axes, [(g.lower, (g.lower[0], area.bottom)) for g in gpus], SCALE_UP_LINE, 2.4)
    middle = (area.centre[0], (gpus[0].bottom + area.bottom) / 2)
    label_link(axes, middle, f"PCIe through host bridges: {_rate_text(network)}")


def _draw_pcie_links(
    axes: Axes, profile: HardwareProfile, gpus: Sequence[Box], bottom: float
) -> None:
    draw_lines(axes, [(gpu.lower, (gpu.lower[0], bottom)) for gpu in gpus], PCIE_LINE)
    middle = (gpus[len(gpus) // 2].left - 0.04, (gpus[0].bottom + bottom) / 2)
    label_link(axes, middle, f"to the host {format_rate(profile.host.pcie_bytes_per_s)} per GPU")


def _draw_trays(axes: Axes, network: Network, area: Box, hosts: int) -> None:
    bar = Box(area.left, area.top + 0.1, area.width, _BAR_IN)
    reduces = ", reduce in the switch" if network.scale_up.in_switch_reduction else ""
    draw_box(axes, bar, f"scale-up switches of the rack{reduces}", face=SWITCH)
    top = bar.bottom + 0.5
    columns = row_of_boxes(Box(area.left, top, area.width, area.bottom - top - 0.2), hosts, 0.05)
    lines = [((c.upper[0], bar.bottom), c.upper) for c in columns]
    draw_lines(axes, lines, SCALE_UP_LINE, 2.4)
    draw_lines(axes, [(c.lower, (c.lower[0], area.bottom)) for c in columns], PCIE_LINE)
    label_link(axes, (area.centre[0], bar.bottom + 0.25), _rate_text(network))
    per_host = network.gpus_per_node
    for host, column in enumerate(columns):
        cell_in = column.height / per_host
        for index in range(per_host):
            gpu = Box(column.left, column.top + index * cell_in, column.width, cell_in - 0.04)
            draw_box(axes, gpu, str(host * per_host + index), face=GPU, size_pt=SMALL_PT)


def _draw_torus(axes: Axes, network: Network, torus: Torus, area: Box) -> None:
    """Some chips of one plane with their links, which go on at the edges."""
    rows, columns = _TORUS_PART
    rate = format_rate(network.scale_up.bandwidth_bytes_per_s / (2 * torus.dimensions))
    each = f"{rate} per link, each direction"
    text = f"{torus.dimensions}D torus, {each}; rings of {torus.ring} chips"
    grid = Box(area.left + 0.4, area.top + 0.15, area.width - 0.8, area.height - 0.75)
    lines = row_of_boxes(Box(grid.left, grid.top, grid.width, 0.0), columns, 0.45)
    step_in = grid.height / rows
    for row in range(rows):
        y = grid.top + (row + 0.5) * step_in
        ends = ((grid.left - 0.3, y), (grid.left + grid.width + 0.3, y))
        draw_lines(axes, [ends], SCALE_UP_LINE, 2.0)
        for line in lines:
            draw_box(axes, Box(line.left, y - 0.13, line.width, 0.26), "chip", face=GPU)
    top, bottom = grid.top - 0.1, grid.bottom + 0.1
    across = [((line.centre[0], top), (line.centre[0], bottom)) for line in lines]
    draw_lines(axes, across, SCALE_UP_LINE, 2.0)
    label_link(axes, (area.centre[0], grid.bottom + 0.3), text, color=style.BLUE)


def _draw_mesh(axes: Axes, profile: HardwareProfile, area: Box) -> None:
    """GPUs with a link to every peer, or those of the cube mesh."""
    up = profile.network.scale_up
    mesh = Box(area.left, area.top, area.width, area.height - 0.42)
    if up.kind == "hybrid-cube-mesh":
        places = _cube_places(mesh)
        text = _draw_cube_links(axes, places, up.bandwidth_bytes_per_s / _NVLINKS_PER_GPU)
    else:
        places = _circle_places(mesh, up.gpus)
        draw_lines(axes, list(combinations(places, 2)), SCALE_UP_LINE, 1.3)
        text = f"{format_rate(up.bandwidth_bytes_per_s / (up.gpus - 1))} per pair, each direction"
    for index, (x, y) in enumerate(places):
        draw_box(axes, Box(x - 0.3, y - 0.17, 0.6, 0.34), f"GPU {index}", face=GPU)
    x, (begin, end) = mesh.centre[0], (mesh.bottom + 0.02, area.bottom)
    lanes = [x + 0.05 * (lane - (up.gpus - 1) / 2) for lane in range(up.gpus)]
    draw_lines(axes, [((lane, begin), (lane, end)) for lane in lanes], PCIE_LINE, 1.0)
    rate = format_rate(profile.host.pcie_bytes_per_s)
    label_link(axes, (x - 1.35, (begin + end) / 2), text, color=style.BLUE)
    label_link(axes, (x + 1.35, (begin + end) / 2), f"to the host {rate} per GPU")


def _circle_places(area: Box, count: int) -> Sequence[Point]:
    x, y = area.centre
    radii = (min(area.width / 2 - 0.4, 1.75), area.height / 2 - 0.22)
    angles = [2 * pi * (index + 0.5) / count - pi / 2 for index in range(count)]
    return [(x + radii[0] * cos(angle), y + radii[1] * sin(angle)) for angle in angles]


def _cube_places(area: Box) -> Sequence[Point]:
    """Two squares beside each other: 1 0 4 5 above, 2 3 7 6 below."""
    left, width = area.left + 0.55, area.width - 1.1
    columns = [left + width * share for share in (0.0, 0.32, 0.68, 1.0)]
    upper, lower = area.top + 0.55, area.bottom - 0.55
    return [
        (columns[1], upper), (columns[0], upper), (columns[0], lower), (columns[1], lower),
        (columns[2], upper), (columns[3], upper), (columns[3], lower), (columns[2], lower),
    ]  # fmt: skip


def _draw_cube_links(axes: Axes, places: Sequence[Point], link_bytes_per_s: float) -> str:
    """Straight lines, arcs between the outer corners, and what a line stands for."""
    for (a, b), links in HYBRID_CUBE_MESH_LINKS.items():
        width_pt = _LINK_PT * links
        if (a, b) not in _CUBE_ARCS:
            draw_lines(axes, [(places[a], places[b])], SCALE_UP_LINE, width_pt)
            continue
        axes.add_patch(
            FancyArrowPatch(
                places[a], places[b], arrowstyle="-",
                connectionstyle=f"arc3,rad={_CUBE_ARCS[a, b]}", color=SCALE_UP_LINE,
                linewidth=width_pt, zorder=1, shrinkA=0, shrinkB=0,
            )
        )  # fmt: skip
    one, two = format_rate(link_bytes_per_s), format_rate(2 * link_bytes_per_s)
    return f"thin {one}, thick {two}, each direction"


_MOST_HOSTS = 24
"""Hosts whose NICs can be told apart; of more, those of one host are drawn."""


def _draw_nics(axes: Axes, network: Network, host: Box, hosts: int) -> None:
    fabric = network.fabric
    hosts = hosts if hosts <= _MOST_HOSTS else 1
    count = fabric.nics_per_node if hosts == 1 else hosts
    top = host.bottom + 0.22
    if not fabric.nics_per_node:
        style.write(axes, host.left, top + 0.1, "no NICs: GPUs of other nodes cannot be reached")
        return
    width = min(host.width, 0.62 * count + 0.08 * (count - 1))
    left = host.centre[0] - width / 2
    nics = row_of_boxes(Box(left, top, width, _NIC_IN), count, 0.08 if hosts == 1 else 0.05)
    draw_lines(axes, [((n.upper[0], host.bottom), n.upper) for n in nics], PCIE_LINE)
    draw_lines(axes, [(n.lower, (n.lower[0], n.bottom + 0.36)) for n in nics], FABRIC_LINE, 1.8)
    for nic in nics:
        name = "NIC" if hosts == 1 else f"{fabric.nics_per_node}\nNIC"
        draw_box(axes, nic, name, face=NIC, size_pt=SMALL_PT)


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
        ("per hop, small, large messages", _hops(up.latency_s, up.bulk_latency_s)),
    ]
    right = [("fabric", _FABRIC_NAMES[fabric.kind])]
    if fabric.nics_per_node:
        right += [
            (
                f"large rings between {_domain_name(network)}s",
                f"{format_rate(network.fabric_bytes_per_s)} per GPU",
            ),
            ("per hop, small, large messages", _hops(fabric.latency_s, fabric.bulk_latency_s)),
        ]
    for x, facts in ((_LEFT_IN, left), (_LEFT_IN + _NODE_WIDTH_IN + _BETWEEN_IN, right)):
        for line, (name, value) in enumerate(facts):
            y = top + 0.1 + 0.22 * line
            style.write(axes, x, y, f"{name}:", size_pt=8.5, color=style.PALE_INK)
            style.write(axes, x + 2.15, y, value, size_pt=8.5)


def _hops(small_s: float, large_s: float) -> str:
    return f"{format_seconds(small_s)}, {format_seconds(large_s)}"
