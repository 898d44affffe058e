"""What does a replica do over time: who is in its batches, who waits, how full is its cache?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.plots import style
from simulator.serving.engine import Step

_LEFT_IN, _RIGHT_IN, _TOP_IN, _PANEL_IN, _GAP_IN = 0.9, 0.5, 0.8, 1.5, 0.45


def draw_serving(title: str, steps: Sequence[Step], path: str | Path) -> None:
    """Write the picture; the suffix names the format.

    Args:
        title: Of the job.
        steps: Steps of one replica in order of time.
        path: Where to.
    """
    style.save(_build_serving_figure(title, steps), path)


def _build_serving_figure(title: str, steps: Sequence[Step]) -> Figure:
    """Three panels over the same time: the batch, the queue, the cache."""
    height_in = _TOP_IN + 3 * (_PANEL_IN + _GAP_IN) + 0.2
    figure = style.new_figure(height_in)
    ends = [step.end_s for step in steps]
    preempted = sum(step.preempted for step in steps)
    panels = (
        ("requests in the step", [float(step.decodes) for step in steps]),
        ("waiting requests", [float(step.waiting) for step in steps]),
        ("cache in use [%]", [100.0 * step.used_share for step in steps]),
    )
    for index, (label, values) in enumerate(panels):
        axes = _panel(figure, height_in, index)
        axes.plot(ends, values, linewidth=0.8, drawstyle="steps-pre")
        axes.set_title(label, loc="left", fontsize="small")
        axes.set_ylim(bottom=0)
    axes.set_xlabel("time [s]")
    style.add_title(figure, title, f"{len(steps)} steps, {preempted} preemptions", left=_LEFT_IN)
    return figure


def _panel(figure: Figure, height_in: float, index: int) -> Axes:
    width_in = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
    bottom_in = height_in - _TOP_IN - (index + 1) * (_PANEL_IN + _GAP_IN) + _GAP_IN
    box = (
        _LEFT_IN / style.WIDTH_IN,
        bottom_in / height_in,
        width_in / style.WIDTH_IN,
        _PANEL_IN / height_in,
    )
    return figure.add_axes(box)
