"""Which plans does no other beat in both step time and memory?

One line per number of GPUs: to the right slower, upwards fuller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simulator.plots import style

_COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.VERMILLION, style.SKY)
_MARKERS = "osD^vP"
_LEFT_IN, _RIGHT_IN, _TOP_IN, _PLOT_IN, _AXIS_IN = 1.0, 0.4, 0.75, 3.6, 0.9


def draw_pareto(
    title: str,
    fronts: Mapping[int, Sequence[tuple[float, float, str]]],
    capacity_bytes: float,
    path: str | Path,
) -> None:
    """Write the picture; the suffix names the format.

    Args:
        title: Of the picture.
        fronts: By number of GPUs: step time [s], device memory [B] and name of each plan.
        capacity_bytes: Memory of a device [B].
        path: Where to.
    """
    style.save(build_pareto_figure(title, fronts, capacity_bytes), path)


def build_pareto_figure(
    title: str,
    fronts: Mapping[int, Sequence[tuple[float, float, str]]],
    capacity_bytes: float,
) -> Figure:
    """Fronts as lines with marked plans; the ends of each are named."""
    figure = style.new_figure(_TOP_IN + _PLOT_IN + _AXIS_IN)
    width_in = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=_TOP_IN, width=width_in, height=_PLOT_IN)
    axes.grid(color=style.GRID, lw=0.6)
    handles = []
    for index, (gpus, plans) in enumerate(fronts.items()):
        color, marker = _COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)]
        line = Line2D([], [], color=color, marker=marker, ms=5, label=f"{gpus} GPUs")
        handles.append(line)
        if not plans:
            continue
        times = [seconds for seconds, _, _ in plans]
        gibs = [num_bytes / 2**30 for _, num_bytes, _ in plans]
        axes.plot(times, gibs, color=color, marker=marker, ms=5, drawstyle="steps-post", lw=1.2)
        for seconds, num_bytes, name in {plans[0], plans[-1]}:
            axes.annotate(
                name, (seconds, num_bytes / 2**30), (6, 5), textcoords="offset points",
                fontsize=style.SMALL_PT - 1, color=style.PALE_INK,
            )  # fmt: skip
    axes.axhline(capacity_bytes / 2**30, color=style.INK, lw=1, ls="--")
    fullest = max((b / 2**30 for plans in fronts.values() for _, b, _ in plans), default=0.0)
    axes.set_ylim(0, min(capacity_bytes / 2**30 * 1.08, max(1.35 * fullest, 1.0)))
    axes.margins(x=0.12)
    axes.set_xlabel("step time [s]", fontsize=style.TEXT_PT, color=style.INK)
    axes.set_ylabel("fullest GPU [GiB]", fontsize=style.TEXT_PT, color=style.INK)
    axes.legend(handles=handles, fontsize=style.SMALL_PT, frameon=False, loc="upper right")
    subtitle = (
        "no other plan is both faster and smaller; "
        f"a device has {capacity_bytes / 2**30:.1f} GiB (dashed)"
    )
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    return figure
