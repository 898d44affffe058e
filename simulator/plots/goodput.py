"""Where does the time of a training run go, and how often should it be saved?

Above, what the time went into that was no step that counts, in shares of the whole. Below,
the goodput of the intervals between checkpoints that were simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from simulator.plots import style
from simulator.units import format_seconds

_LEFT_IN, _RIGHT_IN, _TOP_IN, _BAR_IN, _AXIS_IN, _CURVE_IN = 1.6, 0.9, 0.72, 0.28, 0.75, 2.2
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN


def draw_goodput(
    title: str,
    spent_s: Mapping[str, float],
    tried: Sequence[tuple[float, float]],
    chosen: tuple[float, float],
    path: str | Path,
) -> None:
    """Write the picture; the suffix names the format.

    Args:
        title: Of the job.
        spent_s: Time by what it went into, "productive" among them [s].
        tried: Interval [s] and goodput of each that was simulated; may be empty.
        chosen: Interval that was taken, and the goodput that it gives.
        path: Where to.
    """
    style.save(build_goodput_figure(title, spent_s, tried, chosen), path)


def build_goodput_figure(
    title: str,
    spent_s: Mapping[str, float],
    tried: Sequence[tuple[float, float]],
    chosen: tuple[float, float],
) -> Figure:
    """Bars of what was lost, above the curve of the intervals."""
    total_s = sum(spent_s.values())
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
        axes.annotate(
            f"{share:.2f} %", (share, row), (4, 0), textcoords="offset points",
            va="center", fontsize=style.SMALL_PT, color=style.INK,
        )  # fmt: skip
    axes.set_ylim(max(1, len(lost)), 0)
    axes.set_xlim(0, max([*shares, 1e-3]) * 1.05)
    style.name_rows(axes, [name for name, _ in lost], _BAR_IN * 72)
    axes.set_xlabel("share of the time [%]", fontsize=style.TEXT_PT, color=style.INK)


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
    axes.set_xticks(intervals)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("training between two checkpoints", fontsize=style.TEXT_PT, color=style.INK)
    axes.set_ylabel("goodput [%]", fontsize=style.TEXT_PT, color=style.INK)
    style.add_heading(
        axes, "intervals that were tried on a smaller ensemble; the line is the one that was taken"
    )
