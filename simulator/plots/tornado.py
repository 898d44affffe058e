"""Which numbers of the profile move the step most?

One row per number, the largest effect on top: a bar for the number lowered, one for it
raised, from the step time as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.plots import style

_LEFT_IN, _RIGHT_IN, _TOP_IN, _ROW_IN, _AXIS_IN = 3.6, 0.4, 0.75, 0.26, 0.6


def draw_tornado(
    title: str, rows: Sequence[tuple[str, float, float]], share: float, path: str | Path
) -> None:
    """Write the picture; the suffix names the format.

    Args:
        title: Of the job.
        rows: Name, and change of the step time with the number lowered and raised, as shares.
        share: By how much the numbers were lowered and raised.
        path: Where to.
    """
    style.save(build_tornado_figure(title, rows, share), path)


def build_tornado_figure(
    title: str, rows: Sequence[tuple[str, float, float]], share: float
) -> Figure:
    """Bars to both sides of the step time as it is."""
    handles = [
        Patch(color=style.ORANGE, label=f"{share:.0%} less"),
        Patch(color=style.BLUE, label=f"{share:.0%} more"),
    ]
    rows_in = _ROW_IN * max(1, len(rows))
    figure = style.new_figure(_TOP_IN + rows_in + _AXIS_IN + style.legend_height_in(handles))
    axes = style.add_axes_in(
        figure,
        left=_LEFT_IN,
        top=_TOP_IN,
        width=style.WIDTH_IN - _LEFT_IN - _RIGHT_IN,
        height=rows_in,
    )
    places = [row + 0.5 for row in range(len(rows))]
    axes.grid(axis="x", color=style.GRID, lw=0.6)
    axes.barh(places, [100 * less for _, less, _ in rows], height=0.7, color=style.ORANGE)
    axes.barh(places, [100 * more for _, _, more in rows], height=0.7, color=style.BLUE)
    axes.axvline(0, color=style.INK, lw=0.8)
    axes.set_ylim(max(1, len(rows)), 0)
    style.name_rows(axes, [name for name, _, _ in rows], _ROW_IN * 72)
    axes.set_xlabel("change of the step time [%]", fontsize=style.TEXT_PT, color=style.INK)
    style.add_title(figure, title, "each number of the profile alone", left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure
