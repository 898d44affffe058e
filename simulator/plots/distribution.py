"""How do steps spread, and how does waiting for stragglers grow with the GPUs?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from numpy.typing import NDArray

from simulator.plots import style

_LEFT_IN, _TOP_IN, _HEIGHT_IN, _AXIS_IN, _GAP_IN, _RIGHT_IN = 0.85, 1.05, 2.6, 0.7, 0.9, 0.3
_SHARE = 0.58
"""Part of the width that the spread takes, beside the growth."""
_BINS = 40
_PERCENTILES = (5, 50, 95)


def build_distribution_figure(
    title: str,
    steps_s: NDArray[np.float64],
    typical_step_s: float,
    growth: Sequence[tuple[int, float]],
) -> Figure:
    """A histogram with percentiles, beside the mean step by GPUs.

    Args:
        title: Of the job.
        steps_s: Steps that were drawn [s].
        typical_step_s: The step without variation [s].
        growth: GPUs that wait for each other, and their mean step over that one.
    """
    figure = style.new_figure(_TOP_IN + _HEIGHT_IN + _AXIS_IN)
    room_in = style.WIDTH_IN - _LEFT_IN - _GAP_IN - _RIGHT_IN
    _draw_spread(figure, steps_s, typical_step_s, _SHARE * room_in)
    left_in = _LEFT_IN + _SHARE * room_in + _GAP_IN
    _draw_growth(figure, growth, left_in, (1 - _SHARE) * room_in)
    subtitle = f"{len(steps_s):,} steps, mean {100 * (steps_s.mean() / typical_step_s - 1):+.1f} % "
    subtitle += "relative to the step without variation"
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    return figure


def _draw_spread(
    figure: Figure, steps_s: NDArray[np.float64], typical_s: float, width_in: float
) -> None:
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=_TOP_IN, width=width_in, height=_HEIGHT_IN)
    unit, unit_s = style.time_unit(float(steps_s.max()))
    shown, typical = steps_s / unit_s, typical_s / unit_s
    axes.hist(shown, bins=_BINS, weights=np.full(len(shown), 100 / len(shown)), color=style.SKY)
    top = axes.get_ylim()[1] * 1.12
    axes.set_ylim(0, top)
    for percent, value in zip(_PERCENTILES, np.percentile(shown, _PERCENTILES), strict=True):
        axes.axvline(value, color=style.BLUE, lw=1.2, ls="--" if percent != 50 else "-")
        style.annotate(axes, f"P{percent}", (value, top), (3, -11))
    heading, spread = "distribution of step times", max(float(np.ptp(shown)), 1e-12)
    # Far away it would squeeze the spread into one bar.
    if shown.min() - typical < spread and typical - shown.max() < spread:
        axes.axvline(typical, color=style.VERMILLION, lw=1.5)
        heading += "; red: the step without variation"
    style.name_axes(axes, f"step time [{unit}]", "share of steps [%]")
    style.add_heading(axes, heading)


def _draw_growth(
    figure: Figure, growth: Sequence[tuple[int, float]], left_in: float, width_in: float
) -> None:
    axes = style.add_axes_in(figure, left=left_in, top=_TOP_IN, width=width_in, height=_HEIGHT_IN)
    gpus, ratios = zip(*growth, strict=True)
    axes.grid(color=style.GRID, lw=0.6)
    axes.plot(gpus, [100 * (each - 1) for each in ratios], color=style.ORANGE, marker="o", ms=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus[:: max(1, -(-len(gpus) // 4))])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    style.name_axes(axes, "GPUs that wait for each other", "mean step [%]")
    style.add_heading(axes, "slowdown relative to the step without variation")
