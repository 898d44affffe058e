"""What does a step of reinforcement learning do over time, and how long is generation's tail?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.plots import style

_LEFT_IN, _RIGHT_IN, _TOP_IN, _BOTTOM_IN, _BETWEEN_IN = 1.5, 0.4, 0.95, 1.0, 0.6
_LANE_IN, _CURVE_IN, _BAR = 0.5, 1.7, 0.7
_COLORS = (style.SKY, style.GREEN, style.BLUE, style.ORANGE, style.PURPLE)
"""Of the phases, in order of their first beginning."""

Lane = Sequence[tuple[str, float, float]]
"""Phases of some GPUs: name, start and end [s]."""


def draw_rl_step(
    title: str,
    subtitle: str,
    lanes: Mapping[str, Lane],
    answer_ends_s: Sequence[float],
    path: str | Path,
) -> None:
    """Write the picture; the suffix names the format.

    Args:
        title: Of the job.
        subtitle: What the step amounts to.
        lanes: Phases by the GPUs that run them.
        answer_ends_s: When each answer ends, in order [s].
        path: Where to.
    """
    style.save(_build_figure(title, subtitle, lanes, answer_ends_s), path)


def _build_figure(
    title: str, subtitle: str, lanes: Mapping[str, Lane], answer_ends_s: Sequence[float]
) -> Figure:
    end_s = max(end for lane in lanes.values() for _, _, end in lane)
    lanes_in = _LANE_IN * len(lanes)
    figure = style.new_figure(_TOP_IN + lanes_in + _BETWEEN_IN + _CURVE_IN + _BOTTOM_IN)
    width = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=_TOP_IN, width=width, height=lanes_in)
    begins = sorted((start, name) for lane in lanes.values() for name, start, _ in lane)
    names = dict.fromkeys(name for _, name in begins)
    colors = dict(zip(names, cycle(_COLORS), strict=False))
    for row, lane in enumerate(lanes.values()):
        for name, start, end in lane:
            axes.barh(row, end - start, left=start, height=_BAR, color=colors[name])
    axes.set(xlim=(0, end_s), ylim=(len(lanes) - 0.5, -0.5))
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=False)
    curve = style.add_axes_in(
        figure, left=_LEFT_IN, top=_TOP_IN + lanes_in + _BETWEEN_IN, width=width, height=_CURVE_IN
    )
    _draw_under_way(curve, answer_ends_s, end_s)
    handles = [Patch(color=color, label=name) for name, color in colors.items()]
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def _draw_under_way(axes: Axes, ends_s: Sequence[float], end_s: float) -> None:
    times = np.concatenate([[0.0], np.asarray(ends_s)])
    under_way = np.concatenate([[len(ends_s)], np.arange(len(ends_s) - 1, -1, -1)])
    axes.plot(times, under_way, drawstyle="steps-post", color=style.BLUE, linewidth=1.2)
    axes.fill_between(times, under_way, step="post", color=style.SKY, alpha=0.5, linewidth=0)
    axes.set(xlim=(0, end_s), ylim=(0, 1.05 * len(ends_s)))
    style.add_heading(axes, "answers under way")
    style.show_seconds(axes.xaxis, end_s)
