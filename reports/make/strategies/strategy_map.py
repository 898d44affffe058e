"""Which strategy is the best for which model size and network speed?

Rows are models, the largest on top, columns are network speeds. The colour is the strategy
family; the number is how much slower plain data parallelism would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from simulator.plots import style

_COLORS = (
    "#DCE9F5", style.SKY, style.BLUE, "#1F4468", style.ORANGE, style.PURPLE, style.VERMILLION,
)  # fmt: skip
"""One per family, the simplest first: data parallelism is blue and darkens with ZeRO."""
_NOTHING = "#FFFFFF"
_LEFT_IN, _RIGHT_IN, _TOP_IN, _ROW_IN, _AXIS_IN = 1.5, 0.3, 0.75, 0.55, 0.6


def draw_strategy_map(
    title: str,
    families: Sequence[str],
    models: Sequence[str],
    speeds_gbit: Sequence[int],
    cells: Mapping[tuple[str, int], tuple[str, float]],
    path: str | Path,
) -> None:
    """Write the picture; the suffix names the format.

    Args:
        title: Of the picture.
        families: All names, the simplest first.
        models: Rows, from below.
        speeds_gbit: Columns: network of one node [Gbit/s].
        cells: Best family and slow-down of plain data parallelism, by model and speed; an
            empty name where nothing fits.
        path: Where to.
    """
    style.save(build_strategy_map_figure(title, families, models, speeds_gbit, cells), path)


def build_strategy_map_figure(
    title: str,
    families: Sequence[str],
    models: Sequence[str],
    speeds_gbit: Sequence[int],
    cells: Mapping[tuple[str, int], tuple[str, float]],
) -> Figure:
    """A grid of coloured cells with a legend."""
    colors = dict(zip(families, _COLORS, strict=True))
    shown = [name for name in families if name in {best for best, _ in cells.values()}]
    handles = [
        Patch(facecolor=colors[name], edgecolor=style.PALE_INK, lw=0.5, label=name)
        for name in shown
    ]
    rows_in = _ROW_IN * len(models)
    figure = style.new_figure(_TOP_IN + rows_in + _AXIS_IN + style.legend_height_in(handles))
    axes = style.add_axes_in(
        figure,
        left=_LEFT_IN,
        top=_TOP_IN,
        width=style.WIDTH_IN - _LEFT_IN - _RIGHT_IN,
        height=rows_in,
    )
    for row, model in enumerate(reversed(models)):
        for column, speed in enumerate(speeds_gbit):
            best, slower = cells[model, speed]
            face = colors.get(best, _NOTHING)
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor="white", lw=2))
            axes.text(
                column + 0.5, row + 0.5, _text(best, slower), ha="center", va="center",
                fontsize=style.SMALL_PT, color=style.ink_on(face), linespacing=1.15,
            )  # fmt: skip
    axes.set_xlim(0, len(speeds_gbit))
    axes.set_ylim(len(models), 0)
    style.name_rows(axes, list(reversed(models)), _ROW_IN * 72)
    axes.set_xticks([c + 0.5 for c in range(len(speeds_gbit))], [str(s) for s in speeds_gbit])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("network of a node [Gbit/s]", fontsize=style.TEXT_PT, color=style.INK)
    subtitle = "numbers: step with the best plain data parallelism over the best step"
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def _text(best: str, slower: float) -> str:
    if not best:
        return "nothing fits"
    return f"{best}\n" + ("DP does not fit" if isinf(slower) else f"{slower:.2f} x")
