"""What does a replica do over time: who is in its batches, who waits, how full is its cache?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simulator.plots import style
from simulator.serving.engine import Step

_LEFT_IN, _RIGHT_IN, _TOP_IN, _PANEL_IN, _BETWEEN_IN, _BOTTOM_IN = 0.9, 0.5, 1.0, 1.4, 0.7, 0.6


def draw_serving(title: str, steps: Sequence[Step], path: str | Path, *, replicas: int = 1) -> None:
    """Write the picture; the suffix names the format.

    Args:
        title: Of the job.
        steps: Steps of one replica in order of time.
        path: Where to.
        replicas: How many there are.
    """
    shown = "one replica" if replicas == 1 else f"one of {replicas} replicas"
    style.save(_build_serving_figure(title, steps, shown), path)


def _build_serving_figure(title: str, steps: Sequence[Step], shown: str) -> Figure:
    """Three panels over the same time: the batch, the queue, the cache."""
    panels = (
        ("requests in the step", [float(step.decodes) for step in steps]),
        ("waiting requests", [float(step.waiting) for step in steps]),
        ("cache in use [%]", [100.0 * step.used_share for step in steps]),
    )
    line_in = _PANEL_IN + _BETWEEN_IN
    figure = style.new_figure(_TOP_IN + len(panels) * line_in - _BETWEEN_IN + _BOTTOM_IN)
    ends = [step.end_s for step in steps]
    for index, (label, values) in enumerate(panels):
        axes = style.add_axes_in(
            figure,
            left=_LEFT_IN,
            top=_TOP_IN + index * line_in,
            width=style.WIDTH_IN - _LEFT_IN - _RIGHT_IN,
            height=_PANEL_IN,
        )
        axes.plot(ends, values, drawstyle="steps-pre", color=style.BLUE, linewidth=0.8)
        axes.fill_between(ends, values, step="pre", color=style.SKY, alpha=0.5, linewidth=0)
        axes.set_xlim(0, ends[-1])
        axes.set_ylim(0, max(1.0, 1.05 * max(values)))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        style.add_heading(axes, label)
        style.show_seconds(axes.xaxis, ends[-1])
    preempted = sum(step.preempted for step in steps)
    subtitle = f"{shown}, {preempted:,} preemptions"
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    return figure
