"""Where does the time of a step go?

Above, a waterfall of the mean rank: each category starts where the one before it ended,
and the last one ends at the step time. Below, the same categories stacked for every rank
class. Only time on the critical stream counts, so communication that hides behind
computing is not in it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from simulator.plots import style
from simulator.program.ir import COMMUNICATION, Category
from simulator.results.step import StepResult
from simulator.units import format_seconds

_LEFT_IN, _RIGHT_IN, _TOP_IN, _AXIS_IN = 1.45, 0.35, 0.72, 0.48
_PLOT_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
_BAR_IN, _GAP_IN = 0.3, 0.3
_IDLE = COMMUNICATION | {Category.BUBBLE, Category.HOST}
"""Categories in which the GPU does not compute; drawn hatched."""


def draw_breakdown(result: StepResult, path: str | Path) -> None:
    """Write the picture of where the step goes; the suffix names the format."""
    style.save(build_breakdown_figure(result), path)


def build_breakdown_figure(result: StepResult) -> Figure:
    """A waterfall of the mean over the ranks, above a stacked bar per rank class."""
    categories = [c for c in style.CATEGORY_COLOR if _is_present(result, c)]
    rows = len(result.class_breakdown_s)
    fall_in = _BAR_IN * len(categories)
    row_in = float(np.clip(3.2 / rows, 0.08, 0.28))
    below_in = _TOP_IN + fall_in + _GAP_IN
    figure = style.new_figure(below_in + row_in * rows + _AXIS_IN)
    fall = _axes(figure, result, top=_TOP_IN, height=fall_in, rows=len(categories))
    _draw_waterfall(fall, result, categories)
    stages = _axes(figure, result, top=below_in, height=row_in * rows, rows=rows)
    _draw_classes(stages, result, categories, row_in)
    style.add_title(figure, result.title, _subtitle(result), left=_LEFT_IN)
    return figure


def _subtitle(result: StepResult) -> str:
    exposed = sum(result.exposed_comm_s.values()) / result.step_time_s
    return (
        f"step {format_seconds(result.step_time_s)}   |   MFU {100 * result.mfu:.1f} %"
        f"   |   exposed communication {100 * exposed:.1f} %"
        f"   |   bubble {100 * result.bubble_fraction:.1f} %"
    )


def _is_present(result: StepResult, category: Category) -> bool:
    rows = (result.breakdown_s, *result.class_breakdown_s)
    return any(row.get(category, 0.0) > 0 for row in rows)


def _axes(figure: Figure, result: StepResult, *, top: float, height: float, rows: int) -> Axes:
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=top, width=_PLOT_WIDTH_IN, height=height)
    axes.set_xlim(0, result.step_time_s)
    axes.set_ylim(rows, 0)
    axes.grid(axis="x", color=style.GRID, linewidth=0.6)
    style.show_seconds(axes.xaxis, result.step_time_s)
    return axes


def _draw_waterfall(axes: Axes, result: StepResult, categories: list[Category]) -> None:
    done_s = 0.0
    for row, category in enumerate(categories):
        seconds = result.breakdown_s.get(category, 0.0)
        _add_bars(axes, category, [_corners(done_s, seconds, row + 0.14, row + 0.86)])
        if row + 1 < len(categories):
            axes.vlines(
                done_s + seconds, row + 0.86, row + 1.14, color=style.PALE_INK, linewidth=0.8
            )
        _write_amount(axes, result, row, done_s, seconds)
        done_s += seconds
    style.name_rows(axes, [style.words(category) for category in categories], _BAR_IN * 72)
    axes.set_xlabel("")
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.spines["bottom"].set_visible(False)


def _write_amount(axes: Axes, result: StepResult, row: int, start_s: float, seconds: float) -> None:
    """Time and share beside the bar, on the side that has more room."""
    step_s = result.step_time_s
    text = f"{format_seconds(seconds)}   {100 * seconds / step_s:.1f} %"
    is_right = step_s - (start_s + seconds) > start_s
    x = start_s + seconds if is_right else start_s
    axes.annotate(
        text,
        (x, row + 0.5),
        (5 if is_right else -5, 0),
        textcoords="offset points",
        ha="left" if is_right else "right",
        va="center",
        fontsize=style.SMALL_PT,
        color=style.INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )


def _draw_classes(
    axes: Axes, result: StepResult, categories: list[Category], row_in: float
) -> None:
    rows = result.class_breakdown_s
    gap = 0.08
    done_s = np.zeros(len(rows))
    for category in categories:
        seconds = [row.get(category, 0.0) for row in rows]
        bars = [
            _corners(float(done_s[i]), seconds[i], i + gap, i + 1 - gap) for i in range(len(rows))
        ]
        _add_bars(axes, category, bars)
        done_s += seconds
    style.name_rows(axes, [c.name for c in result.timeline.program.classes], row_in * 72)


def _corners(
    start: float, length: float, top: float, bottom: float
) -> tuple[tuple[float, float], ...]:
    end = start + length
    return ((start, top), (end, top), (end, bottom), (start, bottom))


def _add_bars(axes: Axes, category: Category, bars: list[tuple[tuple[float, float], ...]]) -> None:
    collection = PolyCollection(bars, closed=True, gid=category.value)
    if category in _IDLE:
        style.hatch_waits(collection, category)
    else:
        collection.set_facecolor(style.CATEGORY_COLOR[category])
        collection.set_linewidth(0.0)
    axes.add_collection(collection, autolim=False)
