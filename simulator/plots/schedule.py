"""What does every rank run when under a schedule, and how much does it hold meanwhile?

Above, the slots of every rank; below, in the same order, the activations that each rank holds, with
the most of them at the right. Communication is free; times are in the unit of the costs that the
run was given. Several schedules stand under one another on one time axis, with equal work on every
rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simulator.plots import style
from simulator.plots.schedule_lanes import Lanes, draw_slots, legend_handles
from simulator.program.ir import Owner
from simulator.schedule.terminal_text import costs_text, microbatches_text, sizes_text
from simulator.schedule.unit_run import UnitRun

_LEFT_IN, _TOP_IN, _AXIS_IN, _RIGHT_IN = 0.85, 0.72, 0.48, 0.5
_BETWEEN_IN = 0.32
"""Between the slots and the heading's panel below them."""
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
SMALLEST_LABELLED_PT = style.SMALL_PT
"""Rows of at least this height have a number at their right."""
_FULLEST = 0.86
"""Height of the fullest rank's activations, as a share of its row."""

_COMPARED_LEFT_IN, _COMPARED_TOP_IN, _COMPARED_AXIS_IN, _COMPARED_RIGHT_IN = 0.85, 0.95, 0.48, 0.5

_HEADING_IN = 0.34
"""Between the rows of one schedule and those of the next."""

_COMPARED_WIDTH_IN = style.WIDTH_IN - _COMPARED_LEFT_IN - _COMPARED_RIGHT_IN


def build_schedule_figure(run: UnitRun) -> Figure:
    """The picture of a schedule: the slots of every rank above the activations it holds."""
    lanes_in = run.stages * float(np.clip(4.0 / run.stages, 0.07, 0.34))
    strips_in = run.stages * float(np.clip(1.6 / run.stages, 0.05, 0.2))
    handles = legend_handles([run])
    below_in = _TOP_IN + lanes_in + _BETWEEN_IN
    figure = style.new_figure(below_in + strips_in + _AXIS_IN + style.legend_height_in(handles))
    axes = _add_panel(figure, run, top_in=_TOP_IN, height_in=lanes_in)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    row_pt = lanes_in * 72 / run.stages
    draw_slots(Lanes(axes, row_pt, _WIDTH_IN * 72 / run.span), run)
    strips = _add_panel(figure, run, top_in=below_in, height_in=strips_in)
    style.add_heading(strips, "activations held, in microbatches of a rank's whole share")
    _draw_levels(strips, run, strips_in * 72 / run.stages)
    show_time(strips, run)
    style.add_title(figure, _title(run), summary_text(run), left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def show_time(axes: Axes, run: UnitRun) -> None:
    """Label the time axis with the costs that are its unit."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 4, 5, 10]))
    axes.set_xlabel(f"time ({costs_text(run.costs)})", fontsize=style.TEXT_PT, color=style.INK)


def _title(run: UnitRun) -> str:
    sizes = sizes_text(run.stages, run.microbatches, run.chunks)
    return f"{run.info.name}: {sizes}"


def summary_text(run: UnitRun) -> str:
    """Time and memory of a run in one line."""
    words = [
        f"step {run.step_time:g}",
        f"bubble {100 * run.bubble_share:.1f} %",
        f"at most {microbatches_text(max(run.peaks))} in flight",
    ]
    if not run.info.synchronous:
        words[0] = f"once full, {words[0]}"
        words.append(f"never drains; {versions_text(run)}")
    elif run.info.placement.copies > 1:
        words.append(f"{run.info.placement.copies} copies of the model")
    return "   |   ".join(words)


def versions_text(run: UnitRun) -> str:
    """How many versions of the weights the ranks keep, in words."""
    least, most = min(run.weight_versions), max(run.weight_versions)
    return f"{most if least == most else f'{most} to {least}'} weight versions"


def _add_panel(figure: Figure, run: UnitRun, *, top_in: float, height_in: float) -> Axes:
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=top_in, width=_WIDTH_IN, height=height_in)
    axes.set_xlim(0.0, run.span)
    axes.set_ylim(run.stages, 0)
    names = [f"rank {rank}" for rank in range(run.stages)]
    style.name_rows(axes, names, height_in * 72 / run.stages)
    return axes


def _draw_levels(axes: Axes, run: UnitRun, row_pt: float) -> None:
    color = style.OWNER_COLOR[Owner.ACTIVATIONS]
    scale = _FULLEST / max(run.peaks)
    areas = PolyCollection([_area(run, rank, scale) for rank in range(run.stages)], gid="held")
    areas.set(facecolor=style.mix(color, "#FFFFFF", 0.45), edgecolor="none")
    axes.add_collection(areas, autolim=False)
    axes.hlines(np.arange(1, run.stages + 1), 0, run.span, color=style.GRID, linewidth=0.6)
    label_peaks(axes, run, row_pt)


def label_peaks(axes: Axes, run: UnitRun, row_pt: float) -> None:
    """The most activations that a rank holds, right of its row, where rows have the room."""
    if row_pt < SMALLEST_LABELLED_PT:
        return
    for rank, peak in enumerate(run.peaks):
        style.annotate(
            axes,
            f"{peak:.3g}",
            (1.0, rank + 0.5),
            (10, 0),
            xycoords=("axes fraction", "data"),
            va="center_baseline",
        )


def _area(run: UnitRun, rank: int, scale: float) -> NDArray[np.float64]:
    levels = run.levels(rank)
    times = np.array([level.time for level in levels] + [run.span])
    held = np.array([level.held for level in levels])
    across = np.concatenate([times[:1], np.repeat(times[1:-1], 2), times[-1:]])
    heights = np.repeat(held, 2)
    outline = np.column_stack([across, rank + 1 - scale * heights])
    ends = [[times[-1], rank + 1], [times[0], rank + 1]]
    return np.concatenate([outline, np.array(ends)])


def build_schedule_comparison_figure(runs: Sequence[UnitRun]) -> Figure:
    """Several schedules under one another, on one time axis."""
    rows = sum(run.stages for run in runs)
    row_in = float(np.clip(5.5 / rows, 0.05, 0.24))
    heights_in = [row_in * run.stages for run in runs]
    tops_in = accumulate(
        heights_in[:-1], lambda t, h: t + h + _HEADING_IN, initial=_COMPARED_TOP_IN
    )
    handles = legend_handles(runs)
    blocks_in = math.fsum(heights_in) + _HEADING_IN * (len(runs) - 1)
    figure = style.new_figure(
        _COMPARED_TOP_IN + blocks_in + _COMPARED_AXIS_IN + style.legend_height_in(handles)
    )
    longest = max(run.span for run in runs)
    for run, top_in, height_in in zip(runs, tops_in, heights_in, strict=True):
        axes = style.add_axes_in(
            figure, left=_COMPARED_LEFT_IN, top=top_in, width=_COMPARED_WIDTH_IN, height=height_in
        )
        axes.set_xlim(0.0, longest)
        axes.set_ylim(run.stages, 0)
        draw_slots(Lanes(axes, row_in * 72, _COMPARED_WIDTH_IN * 72 / longest), run)
        style.name_rows(axes, [f"rank {rank}" for rank in range(run.stages)], row_in * 72)
        label_peaks(axes, run, row_in * 72)
        style.add_heading(axes, f"{run.info.name}: {summary_text(run)}")
        show_time(axes, run)
        if run is not runs[-1]:
            axes.tick_params(axis="x", labelbottom=False, length=0)
            axes.set_xlabel("")
    sizes = sizes_text(runs[0].stages, runs[0].microbatches)
    subtitle = "equal work on every rank"
    if row_in * 72 >= SMALLEST_LABELLED_PT:
        subtitle += "; at the right, the most microbatches in flight"
    style.add_title(figure, sizes, subtitle, left=_COMPARED_LEFT_IN)
    style.add_legend(figure, handles, left=_COMPARED_LEFT_IN)
    return figure
