"""How close is predicted bus bandwidth to measured, over message size?

Small multiples: a panel per label, dots as measured, a line as predicted. Every panel has
its own height, so that its shape can be read; the sizes are the same in all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from simulator.plots import style

_LEFT_IN, _RIGHT_IN, _TOP_IN, _BOTTOM_IN = 0.6, 0.2, 0.85, 0.62
_COLUMNS = 4
_PANEL_IN, _BETWEEN_IN, _HEADING_IN = 1.25, 0.4, 0.36
_ROOM = 1.18
"""Height of a panel over its largest value."""
_MEASURED, _PREDICTED = style.INK, style.VERMILLION


class BusBandwidth(NamedTuple):
    """Bus bandwidth of one collective at one size.

    Attributes:
        label: Panel that it belongs to, for example ``all_reduce, 16 GPUs on 2 nodes``.
        num_bytes: Message size as nccl-tests counts it [B].
        measured_bytes_per_s: None where nobody measured [B/s].
        predicted_bytes_per_s: None where there is no prediction [B/s].
    """

    label: str
    num_bytes: float
    measured_bytes_per_s: float | None
    predicted_bytes_per_s: float | None


def draw_bus_bandwidth(
    rows: Sequence[BusBandwidth], path: str | Path, title: str, subtitle: str = ""
) -> None:
    """Write the picture of bus bandwidth over size; the suffix names the format."""
    style.save(build_bus_bandwidth_figure(rows, title, subtitle), path)


def build_bus_bandwidth_figure(
    rows: Sequence[BusBandwidth], title: str, subtitle: str = ""
) -> Figure:
    """A panel per label, in the order in which labels appear.

    Args:
        rows: Points and curve of all panels; rows without a measurement only shape the curve.
        title: The bold line above.
        subtitle: A line below it; by default how many rows and panels there are.
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
            axes.set_ylabel("GB/s", fontsize=style.SMALL_PT, color=style.INK)
    measured = sum(row.measured_bytes_per_s is not None for row in rows)
    counted = f"bus bandwidth over message size; {measured:,} measured, {len(labels)} panels"
    style.add_title(figure, title, subtitle or counted, left=_LEFT_IN)
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
    show_sizes(axes, span)
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


def show_sizes(axes: Axes, span: tuple[float, float]) -> None:
    """Make the horizontal axis one of message sizes [B], with powers of two that people name."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(*span)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(span)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_name(value)))


def _ticks(span: tuple[float, float]) -> Sequence[float]:
    """Powers of two, five apart, or two where the span is short."""
    first, last = (math.log2(size) for size in span)
    apart = 10 if last - first > 22 else 5 if last - first > 8 else 2
    return [2.0**power for power in range(0, 64, apart) if first <= power <= last]


def size_name(num_bytes: float) -> str:
    """A power of two as people write it ("32 KiB")."""
    power = round(math.log2(num_bytes))
    unit = min(4, power // 10)
    return f"{2 ** (power - 10 * unit)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _add_key(figure: Figure) -> None:
    """Which mark is which, along the lower edge."""
    measured = Line2D([], [], linestyle="none", marker="o", markersize=4, color=_MEASURED)
    predicted = Line2D([], [], color=_PREDICTED, linewidth=1.8)
    _, height_in = figure.get_size_inches()
    figure.legend(
        [measured, predicted], ["measured", "predicted"], loc="lower left", ncol=2,
        bbox_to_anchor=(_LEFT_IN / style.WIDTH_IN, 0.08 / height_in), frameon=False,
        fontsize=style.SMALL_PT, borderaxespad=0.0, borderpad=0.0,
    )  # fmt: skip
