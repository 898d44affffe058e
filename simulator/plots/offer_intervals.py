"""When is a training run done on each offer, and what does it cost?

A panel for each workload, a row for each offer: a bar over the 80 % interval, a dot where it is
predicted, its price beside it, and a line at the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from simulator.plots import style

_LEFT_IN, _RIGHT_IN, _TOP_IN, _ROW_IN, _AXIS_IN = 2.6, 1.5, 0.95, 0.3, 0.75


class OfferBar(NamedTuple):
    """One row; times in days from today."""

    name: str
    done_d: float
    low_d: float
    high_d: float
    text: str
    is_best: bool


def build_offers_figure(
    title: str, panels: Sequence[tuple[str, float | None, Sequence[OfferBar]]]
) -> Figure:
    """Rows of every workload, with its name and deadline [d] or None."""
    heights = [_ROW_IN * max(1, len(bars)) for _, _, bars in panels]
    figure = style.new_figure(_TOP_IN + math.fsum(heights) + (_AXIS_IN + 0.2) * len(panels))
    top = _TOP_IN
    for (name, deadline_d, bars), height in zip(panels, heights, strict=True):
        width = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
        axes = style.add_axes_in(figure, left=_LEFT_IN, top=top, width=width, height=height)
        axes.grid(axis="x", color=style.GRID, lw=0.6)
        longest = max([bar.high_d for bar in bars] + [deadline_d or 0.0, 1e-9])
        for row, bar in enumerate(bars):
            color = style.BLUE if bar.is_best else style.SKY
            axes.barh(row + 0.5, bar.high_d - bar.low_d, left=bar.low_d, height=0.55, color=color)
            axes.plot(bar.done_d, row + 0.5, "o", color=style.INK, ms=4)
            axes.text(
                1.02, row + 0.5, bar.text, transform=axes.get_yaxis_transform(),
                fontsize=style.SMALL_PT, va="center", color=style.INK,
            )  # fmt: skip
        if deadline_d is not None:
            axes.axvline(deadline_d, color=style.VERMILLION, lw=1.5)
        axes.set_xlim(0, 1.05 * longest)
        axes.set_ylim(max(1, len(bars)), 0)
        style.name_rows(axes, [bar.name for bar in bars], _ROW_IN * 72)
        style.add_heading(axes, name)
        style.name_axes(axes, x="days from today")
        top += height + _AXIS_IN + 0.2
    subtitle = (
        "bar: 80 % prediction interval; dot: prediction; red line: deadline; dark: recommended"
    )
    style.add_title(figure, title, subtitle, left=0.2)
    return figure
