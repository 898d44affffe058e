"""How close is predicted bus bandwidth to measured, over message size?

Small multiples: a panel per label, dots as measured, a line as predicted. Every panel has its own
height, so that its shape can be read; the sizes are the same in all.

The fit of a network: one panel per collective, a colour for each number of GPUs and nodes; below it
the error of every row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from simulator.importers.nccl_tests.measured_collective import CollectiveRow, bus_share
from simulator.plots import style
from simulator.units import counted

if TYPE_CHECKING:
    from simulator.calibrate.network.measured_network import Point


_LEFT_IN, _RIGHT_IN, _TOP_IN, _BOTTOM_IN = 0.6, 0.2, 0.85, 0.62
_COLUMNS = 4
_PANEL_IN, _BETWEEN_IN, _HEADING_IN = 1.25, 0.4, 0.36
_ROOM = 1.18
"""Height of a panel over its largest value."""
_MEASURED, _PREDICTED = style.INK, style.VERMILLION

_FIT_LEFT_IN, _GAP_IN, _FIT_TOP_IN, _FIT_BETWEEN_IN = 0.75, 0.75, 0.95, 0.7

_CURVES_IN, _STRIP_IN, _STRIP_GAP_IN = 2.3, 0.75, 0.12

_LABEL_IN = 0.52

_CLOSE_PCT = 25.0
"""Errors that count as close are on a band."""

Group = tuple[int, int]
"""GPUs that take part, and the nodes they are in."""


class BusBandwidth(NamedTuple):
    """Bus bandwidth of one collective at one size.

    Attributes:
        label: Panel that it belongs to, for example ``all_reduce, 16 GPUs on 2 nodes``.
        num_bytes: Message size as nccl-tests counts it [B].
        measured_bytes_per_s: None where not measured [B/s].
        predicted_bytes_per_s: None where there is no prediction [B/s].
    """

    label: str
    num_bytes: float
    measured_bytes_per_s: float | None
    predicted_bytes_per_s: float | None


def build_bus_bandwidth_figure(rows: Sequence[BusBandwidth], title: str) -> Figure:
    """A panel per label, in the order in which labels appear.

    Args:
        rows: Points and curve of all panels; rows without a measurement only shape the curve.
        title: The bold line above.
    """
    labels = list(dict.fromkeys(row.label for row in rows))
    columns = min(_COLUMNS, max(1, len(labels)))
    lines = -(-len(labels) // columns)
    gap_in = 0.45
    width_in = (style.WIDTH_IN - _LEFT_IN - _RIGHT_IN - (columns - 1) * gap_in) / columns
    line_in = _HEADING_IN + _PANEL_IN + _BETWEEN_IN
    figure = style.new_figure(_TOP_IN + lines * line_in + _BOTTOM_IN)
    span = _size_span(rows)
    for index, label in enumerate(labels):
        line, column = divmod(index, columns)
        axes = style.add_axes_in(
            figure,
            left=_LEFT_IN + column * (width_in + gap_in),
            top=_TOP_IN + line * line_in + _HEADING_IN,
            width=width_in,
            height=_PANEL_IN,
        )
        _draw_panel(axes, label, [row for row in rows if row.label == label], span)
        if column == 0:
            style.name_axes(axes, y="GB/s", size_pt=style.SMALL_PT)
    measured = sum(row.measured_bytes_per_s is not None for row in rows)
    counted = f"bus bandwidth over message size; {measured:,} measured, {len(labels)} panels"
    style.add_title(figure, title, counted, left=_LEFT_IN)
    _add_key(figure)
    return figure


def _draw_panel(
    axes: Axes, label: str, rows: Sequence[BusBandwidth], span: tuple[float, float]
) -> None:
    curve = sorted(
        (r.num_bytes, r.predicted_bytes_per_s / 1e9)
        for r in rows
        if r.predicted_bytes_per_s is not None
    )
    points = [
        (r.num_bytes, r.measured_bytes_per_s / 1e9)
        for r in rows
        if r.measured_bytes_per_s is not None
    ]
    marker = "_" if len({size for size, _ in curve}) == 1 else ""
    axes.plot(
        *_columns(curve), color=_PREDICTED, linewidth=1.5, marker=marker, markersize=10,
        markeredgewidth=1.5,
    )  # fmt: skip
    axes.plot(
        *_columns(points), linestyle="none", marker="o", markersize=3.2, color=_MEASURED,
        markeredgecolor="white", markeredgewidth=0.3, zorder=3,
    )  # fmt: skip
    _show_sizes(axes, span)
    axes.set_ylim(0, _ROOM * max((value for _, value in (*curve, *points)), default=1.0))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(color=style.GRID, linewidth=0.6)
    axes.tick_params(labelsize=8)
    axes.set_title(label, loc="left", fontsize=8, weight="bold", color=style.INK)
    error = median_error_pct(rows)
    if error is not None:
        axes.text(
            0.03, 0.93, f"median error {error:.0f} %", transform=axes.transAxes, va="top",
            fontsize=7.5, color=style.PALE_INK,
        )  # fmt: skip


def _columns(pairs: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    pairs = list(pairs)
    return [x for x, _ in pairs], [y for _, y in pairs]


def median_error_pct(rows: Iterable[BusBandwidth]) -> float | None:
    """Median distance of predicted from measured time [%]; None without both."""
    errors = [
        100 * abs(row.measured_bytes_per_s / row.predicted_bytes_per_s - 1)
        for row in rows
        if row.measured_bytes_per_s and row.predicted_bytes_per_s
    ]
    return statistics.median(errors) if errors else None


def _size_span(rows: Sequence[BusBandwidth]) -> tuple[float, float]:
    sizes = [row.num_bytes for row in rows if row.num_bytes > 0] or [1.0]
    return min(sizes) / 2, max(sizes) * 2


def _show_sizes(axes: Axes, span: tuple[float, float]) -> None:
    """Make the horizontal axis one of message sizes [B], with powers of two that people name."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(*span)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(span)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_name(value)))


def _ticks(span: tuple[float, float]) -> Sequence[float]:
    """Powers of two, every fifth, or every second where the span is short."""
    first, last = (math.log2(size) for size in span)
    step = 10 if last - first > 22 else 5 if last - first > 8 else 2
    return [2.0**power for power in range(0, 64, step) if first <= power <= last]


def size_name(num_bytes: float) -> str:
    """A power of two as people write it ("32 KiB")."""
    power = round(math.log2(num_bytes))
    unit = min(4, power // 10)
    return f"{2 ** (power - 10 * unit)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _add_key(figure: Figure) -> None:
    measured = Line2D([], [], linestyle="none", marker="o", markersize=4, color=_MEASURED)
    predicted = Line2D([], [], color=_PREDICTED, linewidth=1.8)
    _, height_in = figure.get_size_inches()
    figure.legend(
        [measured, predicted], ["measured", "predicted"], loc="lower left", ncol=2,
        bbox_to_anchor=(_LEFT_IN / style.WIDTH_IN, 0.08 / height_in), frameon=False,
        fontsize=style.SMALL_PT, borderaxespad=0.0, borderpad=0.0,
    )  # fmt: skip


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
    height_in = _FIT_TOP_IN + rows * (panel_in + _FIT_BETWEEN_IN) + style.legend_height_in(handles)
    figure = style.new_figure(height_in)
    style.add_title(figure, title, _subtitle(points), left=_FIT_LEFT_IN)
    width_in = (style.WIDTH_IN - _FIT_LEFT_IN - 0.2 - (columns - 1) * _GAP_IN) / columns
    for index, kind in enumerate(kinds):
        row, column = divmod(index, columns)
        left = _FIT_LEFT_IN + column * (width_in + _GAP_IN)
        top = _FIT_TOP_IN + row * (panel_in + _FIT_BETWEEN_IN)
        own = [point for point in points if point.row.kind == kind]
        curves = style.add_axes_in(figure, left=left, top=top, width=width_in, height=_CURVES_IN)
        below = top + _CURVES_IN + _STRIP_GAP_IN
        strip = style.add_axes_in(figure, left=left, top=below, width=width_in, height=_STRIP_IN)
        style.add_heading(curves, style.words(kind))
        for group in groups:
            members = sorted(
                (point for point in own if _group(point.row) == group),
                key=lambda point: point.row.num_bytes,
            )
            _draw_curves(curves, members, colors[group])
            _draw_errors(strip, members, colors[group])
        _finish(curves, strip, own)
    style.add_legend(figure, handles, left=_FIT_LEFT_IN)
    return figure


def _group(row: CollectiveRow) -> Group:
    return row.ranks, row.nodes


def _group_name(group: Group) -> str:
    ranks, nodes = group
    return f"{ranks} GPUs, {counted(nodes, 'node')}"


def _colors(groups: Sequence[Group]) -> dict[Group, str]:
    """Distinct colours; shades of one safe map where there are many groups."""
    if len(groups) <= len(style.SERIES):
        return dict(zip(groups, style.SERIES, strict=False))
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
    errors = [style.error_at_edge(100 * point.error) for point in members]
    axes.plot(
        sizes, errors, ls="", marker="o", ms=4, mfc=color, mec="white", mew=0.5, clip_on=False
    )


def _finish(curves: Axes, strip: Axes, points: Sequence[Point]) -> None:
    sizes = [point.row.num_bytes for point in points]
    for axes in (curves, strip):
        axes.yaxis.set_label_coords(-_LABEL_IN / _width_in(axes), 0.5)
        _show_sizes(axes, (min(sizes) / 2, max(sizes) * 2))
        axes.grid(axis="both", color=style.GRID, lw=0.6)
    curves.set_yscale("log")
    # Bandwidths of large messages alone lie within one decade or two.
    low, high = curves.get_ylim()
    curves.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    curves.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    curves.yaxis.set_minor_formatter(NullFormatter())
    curves.tick_params(labelbottom=False)
    style.name_axes(curves, y="bus bandwidth [GB/s]", size_pt=style.SMALL_PT)
    style.name_axes(strip, x="message size", size_pt=style.SMALL_PT)
    farthest = max(abs(100 * point.error) for point in points)
    style.show_errors(strip, farthest, _CLOSE_PCT)
    style.name_axes(strip, y="error [%]", size_pt=style.SMALL_PT)


def _width_in(axes: Axes) -> float:
    return float(axes.get_position().width * style.WIDTH_IN)
