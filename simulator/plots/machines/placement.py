"""Who sits where, and which links does every group of ranks cross?

Above, the map of ranks (:mod:`simulator.plots.machines.placement_map`), coloured by pipeline stage;
dots mark the ranks that rank 0 talks to. Below, a line per kind of group, and a bar that
says which part of its hops crosses which links.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simulator.plots import style
from simulator.plots.machines.placement_map import (
    GROUP_COLOR,
    LEFT_IN,
    RIGHT_IN,
    color_word,
    layout_of,
    map_of,
    own_ranks,
)
from simulator.program.grid.placement import LEVEL_NAMES, Level, PlacedGroups, Placement
from simulator.units import format_rate

_TOP_IN, _HEAD_IN, _LINE_IN = 0.78, 0.2, 0.29
_COLUMNS_IN = (LEFT_IN, 1.55, 4.05, 5.3, 6.85)
_RATE_IN = style.WIDTH_IN - RIGHT_IN
_BAR_IN, _BAR_PT, _CHARACTER_IN = 1.75, 7.5, 0.072

LEVEL_COLOR: Mapping[Level, str] = MappingProxyType(
    {
        Level.SCALE_UP: style.SKY,
        Level.LEAF: style.YELLOW,
        Level.SPINE: style.ORANGE,
        Level.CORE: style.VERMILLION,
    }
)
"""The wider, the warmer."""


def draw_placement(placement: Placement, path: str | Path) -> None:
    """Write the picture of who sits where; the suffix names the format."""
    style.save(build_placement_figure(placement), path)


def build_placement_figure(placement: Placement) -> Figure:
    """The map of ranks above the links that their groups cross."""
    layout = layout_of(placement)
    strip_in = _HEAD_IN + _LINE_IN * (max(1, len(placement.groups)) + 0.8)
    figure = style.new_figure(_TOP_IN + layout.height_in + strip_in)
    axes = style.add_inch_axes(figure, top=_TOP_IN, height=layout.height_in)
    map_of(axes, placement, layout).draw()
    strip = style.add_inch_axes(figure, top=_TOP_IN + layout.height_in, height=strip_in)
    _draw_strip(strip, placement)
    style.add_title(figure, placement.title, _subtitle(placement), left=LEFT_IN)
    return figure


def _draw_strip(axes: Axes, placement: Placement) -> None:
    """A line per kind of group, below a line of headings."""
    heads = ("group", "", "groups x ranks", "that of rank 0", "hops cross")
    for left_in, head in zip(_COLUMNS_IN, heads, strict=True):
        style.write(axes, left_in, _HEAD_IN, head, bold=True)
    style.write(axes, _RATE_IN, _HEAD_IN, "rate per rank", align="right", bold=True)
    for line, groups in enumerate(placement.groups):
        y = _HEAD_IN + (line + 1) * _LINE_IN
        color = GROUP_COLOR[groups.name]
        axes.plot(_COLUMNS_IN[0] + 0.05, y, marker="o", markersize=6, color=color)
        count, width = groups.members.shape
        texts = (
            f"    {groups.name}",
            groups.purpose,
            f"{count:,} x {width:,}",
            _ranks_text(groups),
        )
        for left_in, text in zip(_COLUMNS_IN, texts, strict=False):
            style.write(axes, left_in, y, text)
        style.write(axes, _RATE_IN, y, format_rate(groups.bytes_per_s), align="right")
        _draw_hops(axes, groups, y)
    if not placement.groups:
        style.write(axes, LEFT_IN, _HEAD_IN + _LINE_IN, "none: every rank works alone")


def _ranks_text(groups: PlacedGroups) -> str:
    own = own_ranks(groups)
    if len(own) <= 4:
        return ", ".join(map(str, own))
    return f"{own[0]}, {own[1]}, ... {own[-1]:,}"


def _draw_hops(axes: Axes, groups: PlacedGroups, y: float) -> None:
    """A bar of hop shares by level, each named where there is room."""
    left_in = _COLUMNS_IN[-1]
    for level, share in groups.hop_share.items():
        part_in, face = _BAR_IN * share, LEVEL_COLOR[level]
        axes.add_patch(
            Rectangle((left_in, y - 0.1), part_in, 0.2, facecolor=face, edgecolor="white", lw=0.6)
        )
        name, percent = LEVEL_NAMES[level], f"{100 * share:.0f} %"
        texts = (name if share == 1 else f"{name} {percent}", percent)
        text = next((t for t in texts if len(t) * _CHARACTER_IN < part_in), "")
        style.write(
            axes, left_in + part_in / 2, y, text,
            size_pt=_BAR_PT, color=style.ink_on(face), align="center",
        )  # fmt: skip
        left_in += part_in


def _subtitle(placement: Placement) -> str:
    parts = [f"rank order {placement.rank_order}"]
    domain = min(placement.domain_gpus, placement.gpus)
    parts.append(f"{-(-placement.gpus // domain):,} x {domain} GPUs")
    for name, gpus in (("leaf", placement.leaf_gpus), ("pod", placement.pod_gpus)):
        if gpus:
            parts.append(f"{gpus:,} GPUs per {name}")
    word = color_word(placement)
    named = {"pp": "pipeline stage", "dp": "copy of the model", "cp": "context rank"}
    parts.append(f"colour: {named.get(word, 'tensor rank')}")
    return "   |   ".join(parts)
