"""How well do predicted collectives follow measured ones, over message size?

One panel per collective: bus bandwidth, dots as measured and lines as predicted, a colour
for each number of GPUs and nodes. Below it the error of every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from simulator.importers.nccl_tests.measured_collective import CollectiveRow, bus_share
from simulator.plots.measured.bus_bandwidth import show_sizes
from simulator.plots.style import (
    BLUE,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PALE_INK,
    PURPLE,
    SKY,
    SMALL_PT,
    VERMILLION,
    WIDTH_IN,
    add_axes_in,
    add_heading,
    add_legend,
    add_title,
    legend_height_in,
    new_figure,
    save,
    words,
)

if TYPE_CHECKING:
    from simulator.calibrate.network.measured_network import Point

_COLORS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)
_LEFT_IN, _GAP_IN, _TOP_IN, _BETWEEN_IN = 0.75, 0.75, 0.95, 0.7
_CURVES_IN, _STRIP_IN, _STRIP_GAP_IN = 2.3, 0.75, 0.12
_LABEL_IN = 0.52
_CLOSE_PCT, _FARTHEST_PCT = 25.0, 100.0
"""Errors that count as close are on a band; larger ones than the second stand at the edge."""

Group = tuple[int, int]
"""GPUs that take part, and the nodes they are in."""


def draw_collective_fit(points: Sequence[Point], path: str | Path, title: str) -> None:
    """Write the picture of a fit; the suffix (.png, .svg, .pdf) names the format."""
    save(build_collective_fit_figure(points, title), path)


def build_collective_fit_figure(points: Sequence[Point], title: str) -> Figure:
    """Bus bandwidth over message size, measured and predicted, with the errors below.

    Args:
        points: Rows and their predictions before and after a fit. Where both are the same,
            one line is drawn.
        title: The bold line above.
    """
    kinds = sorted({point.row.kind for point in points})
    groups = sorted({_group(point.row) for point in points}, key=lambda g: (g[1], g[0]))
    colors = _colors(groups)
    handles = [Patch(facecolor=colors[group], label=_group_name(group)) for group in groups]
    columns = min(2, len(kinds))
    rows = -(-len(kinds) // columns)
    panel_in = _CURVES_IN + _STRIP_GAP_IN + _STRIP_IN
    height_in = _TOP_IN + rows * (panel_in + _BETWEEN_IN) + legend_height_in(handles)
    figure = new_figure(height_in)
    add_title(figure, title, _subtitle(points), left=_LEFT_IN)
    width_in = (WIDTH_IN - _LEFT_IN - 0.2 - (columns - 1) * _GAP_IN) / columns
    for index, kind in enumerate(kinds):
        row, column = divmod(index, columns)
        left = _LEFT_IN + column * (width_in + _GAP_IN)
        top = _TOP_IN + row * (panel_in + _BETWEEN_IN)
        own = [point for point in points if point.row.kind == kind]
        curves = add_axes_in(figure, left=left, top=top, width=width_in, height=_CURVES_IN)
        below = top + _CURVES_IN + _STRIP_GAP_IN
        strip = add_axes_in(figure, left=left, top=below, width=width_in, height=_STRIP_IN)
        add_heading(curves, words(kind))
        for group in groups:
            members = sorted(
                (point for point in own if _group(point.row) == group),
                key=lambda point: point.row.num_bytes,
            )
            _draw_curves(curves, members, colors[group])
            _draw_errors(strip, members, colors[group])
        _finish(curves, strip, own)
    add_legend(figure, handles, left=_LEFT_IN)
    return figure


def _group(row: CollectiveRow) -> Group:
    return row.ranks, row.nodes


def _group_name(group: Group) -> str:
    ranks, nodes = group
    return f"{ranks} GPUs, {nodes} node{'s' if nodes > 1 else ''}"


def _colors(groups: Sequence[Group]) -> dict[Group, str]:
    """Distinct colours; shades of one safe map where there are many groups."""
    if len(groups) <= len(_COLORS):
        return dict(zip(groups, _COLORS, strict=False))
    shades = mpl.colormaps["viridis"]
    last = len(groups) - 1
    return {group: to_hex(shades(0.95 * index / last)) for index, group in enumerate(groups)}


def _subtitle(points: Sequence[Point]) -> str:
    has_before = any(point.base_s != point.fitted_s for point in points)
    before = ", dashes: before the fit" if has_before else ""
    return f"dots: {len(points)} measured rows, lines: predicted{before}"


def _bus_gb_per_s(row: CollectiveRow, seconds: float) -> float:
    return (bus_share(row.kind, row.ranks) or 1.0) * row.num_bytes / seconds * 1e-9


def _draw_curves(axes: Axes, members: Sequence[Point], color: str) -> None:
    sizes = [point.row.num_bytes for point in members]
    measured = [_bus_gb_per_s(point.row, point.row.seconds) for point in members]
    fitted = [_bus_gb_per_s(point.row, point.fitted_s) for point in members]
    before = [_bus_gb_per_s(point.row, point.base_s) for point in members]
    axes.plot(sizes, measured, ls="", marker="o", ms=4.6, mfc=color, mec="white", mew=0.5, zorder=3)
    axes.plot(sizes, fitted, color=color, lw=1.4)
    if before != fitted:
        axes.plot(sizes, before, color=color, lw=0.9, ls=(0, (4, 3)), alpha=0.75)


def _draw_errors(axes: Axes, members: Sequence[Point], color: str) -> None:
    sizes = [point.row.num_bytes for point in members]
    errors = [max(-_FARTHEST_PCT, min(_FARTHEST_PCT, 100 * point.error)) for point in members]
    axes.plot(
        sizes, errors, ls="", marker="o", ms=4, mfc=color, mec="white", mew=0.5, clip_on=False
    )


def _finish(curves: Axes, strip: Axes, points: Sequence[Point]) -> None:
    sizes = [point.row.num_bytes for point in points]
    for axes in (curves, strip):
        axes.yaxis.set_label_coords(-_LABEL_IN / _width_in(axes), 0.5)
        show_sizes(axes, (min(sizes) / 2, max(sizes) * 2))
        axes.grid(axis="both", color=GRID, lw=0.6)
    curves.set_yscale("log")
    curves.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    curves.tick_params(labelbottom=False)
    curves.set_ylabel("bus bandwidth [GB/s]", fontsize=SMALL_PT, color=INK)
    strip.set_xlabel("message size", fontsize=SMALL_PT, color=INK)
    farthest = max(abs(100 * point.error) for point in points)
    limit = next((limit for limit in (10.0, 25.0, 50.0) if farthest <= limit), _FARTHEST_PCT)
    strip.set_ylim(-limit, limit)
    strip.set_yticks([-limit, 0, limit])
    strip.axhspan(-_CLOSE_PCT, _CLOSE_PCT, color=GRID, alpha=0.35, lw=0)
    strip.axhline(0, color=PALE_INK, lw=0.8)
    strip.set_ylabel("error [%]", fontsize=SMALL_PT, color=INK)


def _width_in(axes: Axes) -> float:
    return float(axes.get_position().width * WIDTH_IN)
