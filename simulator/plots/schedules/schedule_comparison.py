"""How do schedules look under one another, on one time axis?

All do the same work on every rank, so the shorter one is the faster one. The number at the
right of a row is the most activations that its rank holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from simulator.plots import style
from simulator.plots.schedules.schedule import (
    SMALLEST_LABELLED_PT,
    label_peaks,
    show_time,
    summary_text,
)
from simulator.plots.schedules.schedule_lanes import Lanes, draw_slots, legend_handles
from simulator.schedule.terminal_text import sizes_text
from simulator.schedule.unit_run import UnitRun

_LEFT_IN, _TOP_IN, _AXIS_IN, _RIGHT_IN = 0.85, 0.95, 0.48, 0.5
_HEADING_IN = 0.34
"""Between the rows of one schedule and those of the next."""
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN


def draw_schedule_comparison(runs: Sequence[UnitRun], path: str | Path) -> None:
    """Write the picture of several schedules; the suffix names the format."""
    style.save(build_schedule_comparison_figure(runs), path)


def build_schedule_comparison_figure(runs: Sequence[UnitRun]) -> Figure:
    """Several schedules under one another, on one time axis."""
    rows = sum(run.stages for run in runs)
    row_in = float(np.clip(5.5 / rows, 0.05, 0.24))
    heights_in = [row_in * run.stages for run in runs]
    tops_in = accumulate(heights_in[:-1], lambda t, h: t + h + _HEADING_IN, initial=_TOP_IN)
    handles = legend_handles(runs)
    blocks_in = sum(heights_in) + _HEADING_IN * (len(runs) - 1)
    figure = style.new_figure(_TOP_IN + blocks_in + _AXIS_IN + style.legend_height_in(handles))
    longest = max(run.span for run in runs)
    for run, top_in, height_in in zip(runs, tops_in, heights_in, strict=True):
        axes = style.add_axes_in(
            figure, left=_LEFT_IN, top=top_in, width=_WIDTH_IN, height=height_in
        )
        axes.set_xlim(0.0, longest)
        axes.set_ylim(run.stages, 0)
        draw_slots(Lanes(axes, row_in * 72, _WIDTH_IN * 72 / longest), run)
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
        subtitle += "; at the right, the most microbatches that it holds"
    style.add_title(figure, sizes, subtitle, left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure
