"""Why is one step faster than another, as a waterfall?

From the first step to the second: each cause starts where the one before it ended, the
largest first, so that what is drawn ends exactly at the second step. What takes longer is
vermillion and goes right, what takes less is green and goes left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.plots import style
from simulator.results.difference import Cause, Difference
from simulator.units import format_seconds, signed_percent, signed_seconds

_LEFT_IN, _RIGHT_IN, _TOP_IN, _AXIS_IN, _ROW_IN, _HEAD_IN = 1.7, 0.35, 0.72, 0.48, 0.3, 0.42
_LONGER, _SHORTER = style.VERMILLION, style.GREEN
SMALLEST_SHARE = 0.001
"""Causes below this share of the first step are drawn as one."""


def draw_differences(
    differences: Sequence[Difference], names: Sequence[str], path: str | Path
) -> None:
    """Write the waterfalls from the first step to each other; the suffix names the format.

    Args:
        differences: Each between the first step and another.
        names: Of the first step and of each other.
        path: File to write.
    """
    style.save(build_differences_figure(differences, names), path)


def build_differences_figure(differences: Sequence[Difference], names: Sequence[str]) -> Figure:
    """A panel per difference. For the arguments see :func:`draw_differences`."""
    heights = [_ROW_IN * (2 + len(falls(each))) for each in differences]
    panel_in = [_HEAD_IN + height + _AXIS_IN for height in heights]
    handles: list[style.Handle] = [
        Patch(color=style.PALE_INK, lw=0, label="step"),
        Patch(color=_LONGER, lw=0, label="takes longer"),
        Patch(color=_SHORTER, lw=0, label="takes less"),
    ]
    figure = style.new_figure(_TOP_IN + sum(panel_in) + style.legend_height_in(handles))
    top = _TOP_IN
    for each, name, height in zip(differences, names[1:], heights, strict=True):
        axes = style.add_axes_in(
            figure,
            left=_LEFT_IN,
            top=top + _HEAD_IN,
            width=style.WIDTH_IN - _LEFT_IN - _RIGHT_IN,
            height=height,
        )
        _draw_waterfall(axes, each, (names[0], name))
        top += _HEAD_IN + height + _AXIS_IN
    style.add_title(figure, "Why the step differs", f"from {names[0]}", left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def falls(difference: Difference) -> list[tuple[str, float]]:
    """Names and lengths [s] of the bars between both steps, the largest first."""
    smallest_s = SMALLEST_SHARE * difference.first_s
    causes = sorted(difference.causes, key=lambda cause: -abs(cause.difference_s))
    shown = [(_name(c), c.difference_s) for c in causes if abs(c.difference_s) >= smallest_s]
    if all(cause.difference_s == 0 for cause in causes[len(shown) :]):
        return shown
    rest_s = difference.difference_s - sum(seconds for _, seconds in shown)
    return [*shown, ("everything else", rest_s)]


def _name(cause: Cause) -> str:
    return style.words(cause.category)


def _draw_waterfall(axes: Axes, difference: Difference, names: tuple[str, str]) -> None:
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
        axes.annotate(
            text,
            (x, row + 0.5),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.SMALL_PT,
            color=style.INK,
        )
    axes.grid(axis="x", color=style.GRID, linewidth=0.6)
    labels = [names[0], *(name for name, _ in bars), names[1]]
    style.name_rows(axes, [style.shorten(label, 24) for label in labels], _ROW_IN * 72)
    style.show_seconds(axes.xaxis, high_s)
    style.add_heading(axes, f"{names[1]}: {_in_words(difference)}")
    if left_s > 0:
        axes.set_xlabel(f"{axes.get_xlabel()}, from {format_seconds(left_s)} on", fontsize=9)


def _in_words(difference: Difference) -> str:
    text = f"{signed_percent(difference.gain)} tokens/s per GPU"
    if difference.tokens_ratio != 1:
        text += f" (brought to the tokens of the first, x{1 / difference.tokens_ratio:.3g})"
    return text
