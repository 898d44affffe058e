"""Where does the time of a training run go, and which number of the profile moves the step most?

Goodput: above, the share of the time that was no step that counts, by cause; below, the goodput of
each interval between checkpoints that was simulated.

Sensitivity: one row per number, the largest effect on top, with a bar for the number lowered and
one for it raised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from simulator.plots import style
from simulator.units import format_seconds, format_seconds_as, percent, significant

_LEFT_IN, _RIGHT_IN, _TOP_IN, _BAR_IN, _AXIS_IN, _CURVE_IN = 1.6, 0.9, 0.72, 0.28, 0.75, 2.2
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN

_TORNADO_LEFT_IN, _TORNADO_RIGHT_IN, _TORNADO_TOP_IN, _ROW_IN, _TORNADO_AXIS_IN = (
    3.6,
    0.4,
    0.75,
    0.26,
    0.6,
)


def build_goodput_figure(
    title: str,
    spent_s: Mapping[str, float],
    tried: Sequence[tuple[float, float]],
    chosen: tuple[float, float],
) -> Figure:
    """Bars of what was lost, above the curve of the intervals.

    Args:
        title: Of the job.
        spent_s: Time by what it went into, "productive" among them [s].
        tried: Interval [s] and goodput of each that was simulated; may be empty.
        chosen: Interval that was taken, and the goodput that it gives.
    """
    total_s = math.fsum(spent_s.values())
    lost = [(name, s / total_s) for name, s in spent_s.items() if name != "productive"]
    lost.sort(key=lambda each: -each[1])
    bars_in = _BAR_IN * max(1, len(lost))
    below_in = _TOP_IN + bars_in + _AXIS_IN
    figure = style.new_figure(below_in + (_CURVE_IN + _AXIS_IN if tried else 0))
    _draw_lost(figure, lost, bars_in)
    if tried:
        _draw_intervals(figure, tried, chosen, below_in)
    subtitle = f"goodput {100 * chosen[1]:.1f} %, a checkpoint every {format_seconds(chosen[0])}"
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    return figure


def _draw_lost(figure: Figure, lost: Sequence[tuple[str, float]], height_in: float) -> None:
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=_TOP_IN, width=_WIDTH_IN, height=height_in)
    rows = [row + 0.5 for row in range(len(lost))]
    shares = [100 * share for _, share in lost]
    axes.barh(rows, shares, height=0.7, color=style.ORANGE)
    for row, share in zip(rows, shares, strict=True):
        style.annotate(axes, f"{significant(share)} %", (share, row), (4, 0), va="center")
    axes.set_ylim(max(1, len(lost)), 0)
    axes.set_xlim(0, max([*shares, 1e-3]) * 1.05)
    style.name_rows(axes, [name for name, _ in lost], _BAR_IN * 72)
    style.name_axes(axes, x="share of the time [%]")


def _draw_intervals(
    figure: Figure,
    tried: Sequence[tuple[float, float]],
    chosen: tuple[float, float],
    top_in: float,
) -> None:
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=top_in, width=_WIDTH_IN, height=_CURVE_IN)
    intervals, shares = zip(*tried, strict=True)
    axes.grid(color=style.GRID, lw=0.6)
    axes.plot(intervals, [100 * share for share in shares], color=style.BLUE, marker="o", ms=4)
    axes.axvline(chosen[0], color=style.VERMILLION, lw=1.5)
    axes.set_xscale("log")
    labels = [format_seconds_as(each, max(intervals)) for each in intervals]
    axes.set_xticks(intervals, labels)
    axes.xaxis.set_minor_formatter(NullFormatter())
    style.name_axes(axes, "training between two checkpoints", "goodput [%]")
    style.add_heading(
        axes, "intervals, each simulated on a smaller ensemble; the line is the chosen one"
    )


def build_tornado_figure(
    title: str, rows: Sequence[tuple[str, float, float]], share: float
) -> Figure:
    """Bars to both sides of the step time as it is.

    Args:
        title: Of the job.
        rows: Name, and change of the step time with the number lowered and raised, as shares.
        share: By how much the numbers were lowered and raised.
    """
    handles = [
        Patch(color=style.ORANGE, label=f"{percent(share, 0)} less"),
        Patch(color=style.BLUE, label=f"{percent(share, 0)} more"),
    ]
    rows_in = _ROW_IN * max(1, len(rows))
    figure = style.new_figure(
        _TORNADO_TOP_IN + rows_in + _TORNADO_AXIS_IN + style.legend_height_in(handles)
    )
    axes = style.add_axes_in(
        figure,
        left=_TORNADO_LEFT_IN,
        top=_TORNADO_TOP_IN,
        width=style.WIDTH_IN - _TORNADO_LEFT_IN - _TORNADO_RIGHT_IN,
        height=rows_in,
    )
    places = [row + 0.5 for row in range(len(rows))]
    axes.grid(axis="x", color=style.GRID, lw=0.6)
    axes.barh(places, [100 * less for _, less, _ in rows], height=0.7, color=style.ORANGE)
    axes.barh(places, [100 * more for _, _, more in rows], height=0.7, color=style.BLUE)
    axes.axvline(0, color=style.INK, lw=0.8)
    axes.set_ylim(max(1, len(rows)), 0)
    style.name_rows(axes, [name for name, _, _ in rows], _ROW_IN * 72)
    style.name_axes(axes, x="change of the step time [%]")
    style.add_title(figure, title, "each number of the profile alone", left=_TORNADO_LEFT_IN)
    style.add_legend(figure, handles, left=_TORNADO_LEFT_IN)
    return figure
