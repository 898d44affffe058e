"""How far is each real run from its prediction, in time and in memory?

One row per run, its signed errors as dots; pale bands show what is close.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simulator.plots import style

_LEFT_IN, _TOP_IN, _BOTTOM_IN, _ROW_IN = 2.6, 0.85, 0.95, 0.26
_LOOKS = ((style.BLUE, "o"), (style.ORANGE, "s"), (style.GREEN, "^"), (style.PURPLE, "D"))
_LEAST_PCT, _FARTHEST_PCT = 15.0, 100.0
"""The axis reaches at least to the first; larger errors than the second stand at the edge."""


@dataclass(frozen=True, slots=True)
class RowErrors:
    """One run.

    Attributes:
        name: At the left of its row.
        errors_pct: Signed errors by what they are of [%]; positive is predicted too large.
    """

    name: str
    errors_pct: Mapping[str, float]


def draw_run_errors(
    rows: Sequence[RowErrors], path: str | Path, title: str, bands_pct: Sequence[float]
) -> None:
    """Write the picture; the suffix (.png, .svg, .pdf) names the format."""
    style.save(build_run_errors_figure(rows, title, bands_pct), path)


def build_run_errors_figure(
    rows: Sequence[RowErrors], title: str, bands_pct: Sequence[float]
) -> Figure:
    """Signed errors of every run, first on top.

    Args:
        rows: At least one.
        title: The bold line above.
        bands_pct: Errors that are shaded, either way [%].
    """
    height_in = _ROW_IN * len(rows)
    figure = style.new_figure(_TOP_IN + height_in + _BOTTOM_IN)
    width_in = style.WIDTH_IN - _LEFT_IN - 0.25
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=_TOP_IN, width=width_in, height=height_in)
    bands = " and ".join(f"{band:g}" for band in bands_pct)
    style.add_title(figure, title, f"{len(rows)} runs; bands: {bands} % either way", left=_LEFT_IN)
    farthest = max(abs(error) for row in rows for error in row.errors_pct.values())
    limit = min(_FARTHEST_PCT, max(_LEAST_PCT, 1.1 * farthest, *(1.2 * b for b in bands_pct)))
    for band in bands_pct:
        axes.axvspan(-band, band, color=style.GRID, alpha=0.45, lw=0)
    axes.axvline(0, color=style.PALE_INK, lw=0.8)
    names = list(dict.fromkeys(name for row in rows for name in row.errors_pct))
    handles = []
    for index, name in enumerate(names):
        color, marker = _LOOKS[index % len(_LOOKS)]
        own = [(row.errors_pct[name], at) for at, row in enumerate(rows) if name in row.errors_pct]
        errors = [max(-limit, min(limit, error)) for error, _ in own]
        axes.plot(
            errors, [at + 0.5 for _, at in own], ls="", marker=marker, ms=5.5, mfc=color,
            mec="white", mew=0.5, clip_on=False,
        )  # fmt: skip
        handles.append(Line2D([], [], ls="", marker=marker, ms=5.5, color=color, label=name))
    axes.set_xlim(-limit, limit)
    axes.set_ylim(len(rows), 0)
    axes.grid(axis="x", color=style.GRID, lw=0.6)
    axes.set_xlabel("error of the prediction [%]", fontsize=style.SMALL_PT, color=style.INK)
    style.name_rows(axes, [row.name for row in rows], _ROW_IN * 72)
    figure.legend(
        handles=handles, loc="lower left", ncol=len(names), frameon=False,
        fontsize=style.SMALL_PT, bbox_to_anchor=(_LEFT_IN / style.WIDTH_IN, 0.0),
    )  # fmt: skip
    return figure
