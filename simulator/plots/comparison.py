"""Where does the time of a step go, and why does it differ from that of another step?

The breakdown: above, a waterfall of the mean rank, in which each category starts where the one
before it ended, up to the step time; below, the same categories stacked for every rank class. Only
time on the critical stream counts, so communication behind computing is not in it.

The difference: a waterfall from the first step to the second, the largest cause first. What takes
longer is vermillion and goes right, what takes less is green and goes left.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.plots import style
from simulator.program.ir import Category
from simulator.results.step import StepResult
from simulator.results.views.difference import Difference
from simulator.units import format_seconds, signed_percent, signed_seconds

_LEFT_IN, _RIGHT_IN, _TOP_IN, _AXIS_IN = 1.45, 0.35, 0.72, 0.48
_PLOT_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
_BAR_IN, _GAP_IN = 0.3, 0.3

_CAUSES_LEFT_IN, _CAUSES_RIGHT_IN, _CAUSES_TOP_IN, _CAUSES_AXIS_IN, _ROW_IN, _HEAD_IN = (
    1.7,
    0.35,
    0.72,
    0.48,
    0.3,
    0.42,
)

_LONGER, _SHORTER = style.VERMILLION, style.GREEN

_SMALLEST_SHARE = 0.001
"""Causes below this share of the first step are drawn as one."""

_ROW_NAME_LENGTH = 24
"""Characters that have room left of a bar."""


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
    exposed = math.fsum(result.exposed_comm_s.values()) / result.step_time_s
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
    step_s = result.step_time_s
    text = f"{format_seconds(seconds)}   {100 * seconds / step_s:.1f} %"
    is_right = step_s - (start_s + seconds) > start_s
    x = start_s + seconds if is_right else start_s
    style.annotate(
        axes,
        text,
        (x, row + 0.5),
        (5 if is_right else -5, 0),
        ha="left" if is_right else "right",
        va="center",
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
    if category in style.WAITS:
        style.hatch_waits(collection, category)
    else:
        collection.set_facecolor(style.CATEGORY_COLOR[category])
        collection.set_linewidth(0.0)
    axes.add_collection(collection, autolim=False)


def build_differences_figure(differences: Sequence[Difference], names: Sequence[str]) -> Figure:
    """A panel per difference from the first step, whose name is the first of the names."""
    heights = [_ROW_IN * (2 + len(falls(each))) for each in differences]
    panel_in = [_HEAD_IN + height + _CAUSES_AXIS_IN for height in heights]
    handles: list[style.Handle] = [
        Patch(color=style.PALE_INK, lw=0, label="step"),
        Patch(color=_LONGER, lw=0, label="takes longer"),
        Patch(color=_SHORTER, lw=0, label="takes less"),
    ]
    figure = style.new_figure(
        _CAUSES_TOP_IN + math.fsum(panel_in) + style.legend_height_in(handles)
    )
    top = _CAUSES_TOP_IN
    for each, name, height in zip(differences, names[1:], heights, strict=True):
        axes = style.add_axes_in(
            figure,
            left=_CAUSES_LEFT_IN,
            top=top + _HEAD_IN,
            width=style.WIDTH_IN - _CAUSES_LEFT_IN - _CAUSES_RIGHT_IN,
            height=height,
        )
        _draw_causes(axes, each, (names[0], name))
        top += _HEAD_IN + height + _CAUSES_AXIS_IN
    style.add_title(figure, "Why the step differs", f"from {names[0]}", left=_CAUSES_LEFT_IN)
    style.add_legend(figure, handles, left=_CAUSES_LEFT_IN)
    return figure


def falls(difference: Difference) -> list[tuple[str, float]]:
    """Names and lengths [s] of the bars between both steps, the largest first."""
    smallest_s = _SMALLEST_SHARE * difference.first_s
    causes = sorted(difference.causes, key=lambda cause: -abs(cause.difference_s))
    shown = [
        (style.words(c.category), c.difference_s)
        for c in causes
        if abs(c.difference_s) >= smallest_s
    ]
    if all(cause.difference_s == 0 for cause in causes[len(shown) :]):
        return shown
    rest_s = difference.difference_s - math.fsum(seconds for _, seconds in shown)
    return [*shown, ("everything else", rest_s)]


def _draw_causes(axes: Axes, difference: Difference, names: tuple[str, str]) -> None:
    bars = falls(difference)
    ends_s = difference.first_s + np.cumsum([0.0, *(seconds for _, seconds in bars)])
    low_s, high_s = float(ends_s.min()), float(ends_s.max())
    room_s = max(high_s - low_s, 1e-3 * high_s)
    left_s = max(0.0, low_s - 0.6 * room_s)
    axes.set_xlim(left_s, high_s + 0.35 * room_s)
    axes.set_ylim(len(bars) + 2, 0)
    axes.barh(0.5, difference.first_s, 0.7, color=style.PALE_INK)
    axes.barh(len(bars) + 1.5, difference.second_s, 0.7, color=style.PALE_INK)
    for row, (_, seconds) in enumerate(bars, start=1):
        color = _LONGER if seconds > 0 else _SHORTER
        axes.barh(row + 0.5, seconds, 0.7, left=ends_s[row - 1], color=color)
    for row, end_s in enumerate(ends_s):
        axes.vlines(float(end_s), row + 0.85, row + 1.15, color=style.PALE_INK, linewidth=0.8)
    amounts = [
        (difference.first_s, format_seconds(difference.first_s)),
        *(
            (float(max(ends_s[row], ends_s[row + 1])), signed_seconds(seconds))
            for row, (_, seconds) in enumerate(bars)
        ),
        (difference.second_s, format_seconds(difference.second_s)),
    ]
    for row, (x, text) in enumerate(amounts):
        style.annotate(axes, text, (x, row + 0.5), (5, 0), va="center")
    axes.grid(axis="x", color=style.GRID, linewidth=0.6)
    labels = [_row_name(names[0]), *(name for name, _ in bars), _row_name(names[1])]
    style.name_rows(axes, labels, _ROW_IN * 72)
    style.show_seconds(axes.xaxis, high_s)
    style.add_heading(axes, f"{names[1]}: {_in_words(difference)}")
    if left_s > 0:
        axes.set_xlabel(
            f"{axes.get_xlabel()}, axis from {format_seconds(left_s)} on, not from zero", fontsize=9
        )


def _row_name(name: str) -> str:
    """A step's name in the room beside its bar: fields by their last word, as a heading has all."""
    return style.shorten(re.sub(r"(?:\w+\.)+(?=\w+=)", "", name), _ROW_NAME_LENGTH)


def _in_words(difference: Difference) -> str:
    text = f"{signed_percent(difference.gain)} tokens/s per GPU"
    if difference.tokens_ratio != 1:
        text += f" (scaled to the tokens of the first, x{1 / difference.tokens_ratio:.3g})"
    return text
