"""How near does each kernel of a layer come to the roof of the device?

On the left work per byte against achieved rate, below the roof of memory bandwidth and dense
peak; the area of a point is its share of the layer's time, and kernels that would hide one
another are slices of one point. On the right the kernels that take most of the time, and the share
of their own roof that they reach; those that only move bytes have no place on the left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from simulator.errors import InputError
from simulator.plots import style
from simulator.program.price.roofline import KernelPoint
from simulator.units import format_seconds

_LEFT_IN, _TOP_IN, _AXIS_IN, _HEAD_IN, _PLOT_IN = 0.85, 0.72, 0.55, 0.3, 4.6
_ROOF_WIDTH_IN, _BAR_LEFT_IN, _BAR_WIDTH_IN = 4.1, 7.35, 1.9
_MOST_BARS = 18
_LARGEST_PT2, _SMALLEST_PT2 = 1200.0, 20.0
"""Area of a point that would be the whole layer, and of the smallest."""
_NEAR = 1.08
"""Points whose work per byte and whose rates differ by less would hide one another."""
_COLOR = {
    "forward": style.BLUE,
    "input gradient": style.SKY,
    "weight gradient": "#8FCF6B",
    "backward": style.GREEN,
}


def build_roofline_figure(points: Sequence[KernelPoint], title: str) -> Figure:
    """The roofline beside the bars.

    Raises:
        InputError: There is no kernel.
    """
    if not points:
        raise InputError.single("points", "there is no kernel to draw")
    handles: list[style.Handle] = [
        Patch(color=color, lw=0, label=direction)
        for direction, color in _COLOR.items()
        if any(point.direction == direction for point in points)
    ]
    top_in = _TOP_IN + _HEAD_IN
    figure = style.new_figure(top_in + _PLOT_IN + _AXIS_IN + style.legend_height_in(handles))
    roof = style.add_axes_in(
        figure, left=_LEFT_IN, top=top_in, width=_ROOF_WIDTH_IN, height=_PLOT_IN
    )
    _draw_roof(roof, points)
    bars = style.add_axes_in(
        figure, left=_BAR_LEFT_IN, top=top_in, width=_BAR_WIDTH_IN, height=_PLOT_IN
    )
    _draw_bars(bars, points)
    style.add_title(figure, title, _subtitle(points), left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def _subtitle(points: Sequence[KernelPoint]) -> str:
    total_s = math.fsum(point.seconds for point in points)
    reached = math.fsum(point.roof_s for point in points) / total_s
    return (
        f"kernels of one microbatch through a layer on one GPU: {format_seconds(total_s)}, "
        f"{100 * reached:.0f} % of the roofline"
    )


def _draw_roof(axes: Axes, points: Sequence[KernelPoint]) -> None:
    working = [point for point in points if point.flop]
    total_s = math.fsum(point.seconds for point in points)
    peaks = sorted({point.peak_flop_per_s for point in working})
    bytes_per_s = points[0].bytes_per_s
    ridge = peaks[-1] / bytes_per_s if peaks else 100.0
    low = 0.1 * min([ridge, *(point.intensity for point in working)])
    high = 4.0 * max([ridge, *(point.intensity for point in working)])
    lowest = min([low * bytes_per_s, *(point.flop / point.seconds for point in working)])
    for peak in peaks:
        x = np.array([low, peak / bytes_per_s, high])
        axes.plot(x, np.minimum(x * bytes_per_s, peak) / 1e12, color=style.INK, linewidth=1.4)
        style.annotate(
            axes,
            f"{peak / 1e12:,.0f} TFLOP/s dense",
            (high, peak / 1e12),
            (-2, 4 if peak == peaks[-1] else -12),
            ha="right",
        )
    style.annotate(
        axes,
        f"{bytes_per_s / 1e12:.2f} TB/s",
        (low * 1.6, low * 1.6 * bytes_per_s / 1e12),
        (8, -10),
    )
    for together in _places(working):
        _draw_pie(axes, together, total_s)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(0.8 * lowest / 1e12, 1.8 * max(peaks, default=1e12) / 1e12)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
    # The rates of a layer often lie within one decade.
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    style.name_axes(axes, "arithmetic intensity [FLOP/B]", "achieved [TFLOP/s]")
    axes.grid(color=style.GRID, linewidth=0.6)
    style.add_heading(axes, "roofline")


def _places(points: Sequence[KernelPoint]) -> list[list[KernelPoint]]:
    places: list[list[KernelPoint]] = []
    for point in sorted(points, key=lambda point: -point.seconds):
        for others in places:
            if _is_near(point, others[0]):
                others.append(point)
                break
        else:
            places.append([point])
    return places


def _is_near(point: KernelPoint, other: KernelPoint) -> bool:
    rates = point.flop / point.seconds, other.flop / other.seconds
    pairs = rates, (point.intensity, other.intensity)
    return all(max(pair) <= _NEAR * min(pair) for pair in pairs)


def _draw_pie(axes: Axes, points: Sequence[KernelPoint], total_s: float) -> None:
    seconds = math.fsum(point.seconds for point in points)
    flop = math.fsum(point.flop for point in points)
    area_pt2 = max(_SMALLEST_PT2, _LARGEST_PT2 * seconds / total_s)
    start = 0.25
    for direction, color in _COLOR.items():
        share = (
            math.fsum(point.seconds for point in points if point.direction == direction) / seconds
        )
        if not share:
            continue
        turns = 2 * np.pi * np.linspace(start, start - share, 2 + round(60 * share))
        corners = np.column_stack([np.cos(turns), np.sin(turns)])
        if share < 1:
            corners = np.vstack([[0.0, 0.0], corners])
        start -= share
        axes.scatter(
            flop / math.fsum(point.num_bytes for point in points),
            flop / seconds / 1e12,
            # A mark is scaled to the reach of its corners.
            s=area_pt2 * np.abs(corners).max() ** 2,
            marker=Outline(corners),
            color=color,
            edgecolor="white",
            linewidth=0.8,
            zorder=3,
        )


def _draw_bars(axes: Axes, points: Sequence[KernelPoint]) -> None:
    total_s = math.fsum(point.seconds for point in points)
    shown = sorted(points, key=lambda point: -point.seconds)[:_MOST_BARS]
    for row, point in enumerate(shown):
        axes.barh(row + 0.5, 100, 0.72, color="#EFEFEF")
        axes.barh(row + 0.5, 100 * point.share_of_roof, 0.72, color=_COLOR[point.direction])
        style.annotate(
            axes,
            f"{100 * point.seconds / total_s:.1f} %",
            (1.04, row + 0.5),
            xycoords=axes.get_yaxis_transform(),
            va="center",
            annotation_clip=False,
        )
    axes.set_ylim(max(len(shown), 8), 0)
    axes.set_xlim(0, 100)
    style.name_rows(axes, _labels(shown, points), 72 * _PLOT_IN / max(len(shown), 8))
    style.name_axes(axes, x="share of the roofline [%]")
    style.add_heading(axes, "achieved, and share of the time")


def _labels(shown: Sequence[KernelPoint], points: Sequence[KernelPoint]) -> list[str]:
    """What rows are called; what is cut off at the end is the direction, which colours say too."""
    layers: dict[str, set[str]] = {}
    for point in points:
        layers.setdefault(point.name, set()).add(point.layer)
    return [
        style.shorten(
            (f"{point.layer.removesuffix(' layer')}: " if len(layers[point.name]) > 1 else "")
            + f"{style.words(point.name)}, {point.direction}",
            34,
        )
        for point in shown
    ]
