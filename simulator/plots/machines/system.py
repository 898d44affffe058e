"""What does a system look like: inside a node, and between nodes?"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.described.cluster.hardware import HardwareProfile
from simulator.plots import style
from simulator.plots.machines.diagram import FABRIC_LINE, Box, draw_lines
from simulator.plots.machines.fabric_drawing import FABRIC_NAMES, domain_name, draw_fabric
from simulator.plots.machines.node_drawing import draw_node
from simulator.units import format_bytes, format_rate, format_seconds

_LEFT_IN, _TOP_IN, _HEIGHT_IN, _CORE_IN, _FACTS_IN = 0.35, 0.78, 3.9, 0.8, 0.95
_NODE_WIDTH_IN, _BETWEEN_IN = 5.35, 0.35
_EDGE_IN = 0.02
"""Room for the upper edge of the frames."""


def draw_system(profile: HardwareProfile, path: str | Path) -> None:
    """Write the drawing of a system; the suffix names the format."""
    style.save(build_system_figure(profile), path)


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
    draw_fabric(axes, profile.network, between)
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
        ("large rings in the node", f"{format_rate(network.scale_up_bytes_per_s)} per GPU"),
        ("a hop, small and large messages", _hops(up.latency_s, up.bulk_latency_s)),
    ]
    right = [("fabric", FABRIC_NAMES[fabric.kind])]
    if fabric.nics_per_node:
        right += [
            (
                f"large rings between {domain_name(network)}s",
                f"{format_rate(network.fabric_bytes_per_s)} per GPU",
            ),
            ("a hop, small and large messages", _hops(fabric.latency_s, fabric.bulk_latency_s)),
        ]
    for x, facts in ((_LEFT_IN, left), (_LEFT_IN + _NODE_WIDTH_IN + _BETWEEN_IN, right)):
        for line, (name, value) in enumerate(facts):
            y = top + 0.1 + 0.22 * line
            style.write(axes, x, y, f"{name}:", size_pt=8.5, color=style.PALE_INK)
            style.write(axes, x + 2.15, y, value, size_pt=8.5)


def _hops(small_s: float, large_s: float) -> str:
    return f"{format_seconds(small_s)}, {format_seconds(large_s)}"
