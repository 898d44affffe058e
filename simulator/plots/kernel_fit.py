"""How well do predicted kernels follow measured ones?

One panel per kind of kernel: predicted over measured time, both logarithmic, so that a perfect
prediction stands on the diagonal. Below it the error of every row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from simulator.plots import style
from simulator.units import format_seconds

_COLUMNS = 3
_LEFT_IN, _GAP_IN, _TOP_IN, _BETWEEN_IN = 0.95, 0.75, 0.95, 0.75
_SQUARE_IN, _STRIP_IN, _STRIP_GAP_IN = 2.2, 0.75, 0.12
_CLOSE_PCT = 10.0
"""Errors that count as close are on a band."""


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """One measured kernel and its prediction.

    Attributes:
        kind: Panel it stands in.
        series: Colour it has there, by what the legend names.
        measured_s, predicted_s: Times [s].
    """

    kind: str
    series: str
    measured_s: float
    predicted_s: float

    @property
    def error_pct(self) -> float:
        """Signed error [%], positive where the prediction is too slow."""
        return 100.0 * (self.predicted_s / self.measured_s - 1.0)


def build_kernel_fit_figure(points: Sequence[KernelPoint], title: str) -> Figure:
    """Predicted over measured times by kind of kernel, with the errors below."""
    kinds = list(dict.fromkeys(point.kind for point in points))
    names = sorted({point.series for point in points})
    colors = {name: style.SERIES[index % len(style.SERIES)] for index, name in enumerate(names)}
    handles = [Patch(facecolor=colors[name], label=name) for name in names]
    rows = -(-len(kinds) // _COLUMNS)
    panel_in = _SQUARE_IN + _STRIP_GAP_IN + _STRIP_IN
    height_in = _TOP_IN + rows * (panel_in + _BETWEEN_IN) + style.legend_height_in(handles)
    figure = style.new_figure(height_in)
    mean = math.fsum(abs(point.error_pct) for point in points) / len(points)
    subtitle = f"{len(points)} kernels, mean error {mean:.1f} %; band: {_CLOSE_PCT:g} % either way"
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    width_in = (style.WIDTH_IN - _LEFT_IN - 0.2 - (_COLUMNS - 1) * _GAP_IN) / _COLUMNS
    for index, kind in enumerate(kinds):
        row, column = divmod(index, _COLUMNS)
        left = _LEFT_IN + column * (width_in + _GAP_IN)
        top = _TOP_IN + row * (panel_in + _BETWEEN_IN)
        square = style.add_axes_in(figure, left=left, top=top, width=width_in, height=_SQUARE_IN)
        below = top + _SQUARE_IN + _STRIP_GAP_IN
        strip = style.add_axes_in(figure, left=left, top=below, width=width_in, height=_STRIP_IN)
        _draw_panel(square, strip, [p for p in points if p.kind == kind], colors)
        if column == 0:
            style.name_axes(square, y="predicted", size_pt=style.SMALL_PT)
            style.name_axes(strip, y="error [%]", size_pt=style.SMALL_PT)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def _draw_panel(
    square: Axes, strip: Axes, points: Sequence[KernelPoint], colors: Mapping[str, str]
) -> None:
    mean = math.fsum(abs(point.error_pct) for point in points) / len(points)
    style.add_heading(square, points[0].kind)
    square.text(
        0.04, 0.96, f"{len(points)} kernels\nmean error {mean:.1f} %",
        transform=square.transAxes, va="top", fontsize=style.SMALL_PT, color=style.PALE_INK,
    )  # fmt: skip
    times = [time for point in points for time in (point.measured_s, point.predicted_s)]
    low, high = min(times) / 1.5, max(times) * 1.5
    close = _CLOSE_PCT / 100
    band = [low, high]
    square.fill_between(
        band,
        [b * (1 - close) for b in band],
        [b * (1 + close) for b in band],
        color=style.GRID,
        lw=0,
    )
    square.plot(band, band, color=style.PALE_INK, lw=0.8)
    for name in dict.fromkeys(point.series for point in points):
        own = [point for point in points if point.series == name]
        look = {"ls": "", "marker": "o", "ms": 4.2, "mfc": colors[name], "mec": "white", "mew": 0.4}
        measured = [point.measured_s for point in own]
        square.plot(measured, [point.predicted_s for point in own], **look)  # type: ignore[arg-type]
        errors = [style.error_at_edge(point.error_pct) for point in own]
        strip.plot(measured, errors, clip_on=False, **look)  # type: ignore[arg-type]
    _finish(square, strip, (low, high), max(abs(point.error_pct) for point in points))


def _finish(square: Axes, strip: Axes, limits: tuple[float, float], farthest_pct: float) -> None:
    for axes in (square, strip):
        axes.set_xscale("log")
        axes.set_xlim(limits)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="both", color=style.GRID, lw=0.6)
    square.set_yscale("log")
    square.set_ylim(limits)
    square.yaxis.set_minor_formatter(NullFormatter())
    square.tick_params(labelbottom=False)
    seconds = FuncFormatter(lambda value, _: format_seconds(value).replace(".00", ""))
    square.yaxis.set_major_formatter(seconds)
    strip.xaxis.set_major_formatter(seconds)
    style.name_axes(strip, x="measured", size_pt=style.SMALL_PT)
    style.show_errors(strip, farthest_pct, _CLOSE_PCT)
