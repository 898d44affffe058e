"""What does each ZeRO stage cost inside a pipeline, the more microbatches there are?

At the left what a GPU exchanges with its copies in a step, in the middle how much longer a step
is than with ZeRO 1, at the right what the fullest GPU holds: a line per stage of ZeRO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from simulator.plots import style

_GIB = 1024.0**3
_LEFT_IN, _TOP_IN, _WIDTH_IN, _HEIGHT_IN, _BETWEEN_IN = 0.75, 0.95, 2.42, 2.5, 0.72
_COLORS = (style.PALE_INK, style.BLUE, style.ORANGE, style.VERMILLION)
_MARKERS = ("s", "o", "^", "D")
_BASE = 1
"""Stage of ZeRO that the others are compared with."""


@dataclass(frozen=True)
class ZeroCurve:
    """One stage of ZeRO over growing numbers of microbatches.

    Attributes:
        zero: The stage.
        microbatches: Per step and rank, shape (points,).
        step_s: Step time, shape (points,) [s].
        moved_bytes: Data-parallel traffic through the links of the busiest GPU, shape
            (points,) [B].
        peak_bytes: Device memory of the fullest GPU, shape (points,) [B].
    """

    zero: int
    microbatches: Sequence[int]
    step_s: Sequence[float]
    moved_bytes: Sequence[float]
    peak_bytes: Sequence[float]


def draw_zero_in_pipeline(
    title: str, subtitle: str, curves: Sequence[ZeroCurve], path: str | Path
) -> None:
    """Write the picture; the suffix names the format."""
    style.save(build_zero_in_pipeline_figure(title, subtitle, curves), path)


def build_zero_in_pipeline_figure(title: str, subtitle: str, curves: Sequence[ZeroCurve]) -> Figure:
    """Three panels with a line per stage of ZeRO."""
    figure = style.new_figure(_TOP_IN + _HEIGHT_IN + 0.6)
    base = next(curve for curve in curves if curve.zero == _BASE)
    panels = {
        "moved per GPU and step [GiB]": [_gib(curve.moved_bytes) for curve in curves],
        f"step over that of ZeRO {_BASE} [%]": [
            [100 * (own / other - 1) for own, other in zip(curve.step_s, base.step_s, strict=True)]
            for curve in curves
        ],
        "memory of the fullest GPU [GiB]": [_gib(curve.peak_bytes) for curve in curves],
    }
    for number, (heading, lines) in enumerate(panels.items()):
        left_in = _LEFT_IN + number * (_WIDTH_IN + _BETWEEN_IN)
        axes = style.add_axes_in(
            figure, left=left_in, top=_TOP_IN, width=_WIDTH_IN, height=_HEIGHT_IN
        )
        _draw_lines(axes, curves, lines)
        style.add_heading(axes, heading)
    style.add_title(figure, title, subtitle, left=_LEFT_IN - 0.5)
    return figure


def _draw_lines(axes: Axes, curves: Sequence[ZeroCurve], lines: Sequence[Sequence[float]]) -> None:
    microbatches = curves[0].microbatches
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(microbatches)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("microbatches per step", fontsize=style.TEXT_PT, color=style.INK)
    axes.set_xlim(microbatches[0] / 1.15, microbatches[-1] * 2.6)
    axes.grid(axis="y", color=style.GRID, linewidth=0.6)
    for curve, values in zip(curves, lines, strict=True):
        color = _COLORS[curve.zero]
        axes.plot(
            curve.microbatches, values, color=color, marker=_MARKERS[curve.zero], markersize=4,
            linewidth=1.6,
        )  # fmt: skip
    highest = max(max(values) for values in lines)
    lowest = min(0.0, *(min(values) for values in lines))
    span = highest - lowest
    axes.set_ylim(lowest - 0.04 * span, highest + 0.06 * span)
    for at, curve in zip(_apart([values[-1] for values in lines], axes), curves, strict=True):
        axes.annotate(
            f"ZeRO {curve.zero}", (microbatches[-1], at), (6, 0), textcoords="offset points",
            va="center", fontsize=style.SMALL_PT, color=_COLORS[curve.zero], weight="bold",
        )  # fmt: skip


def _apart(heights: Sequence[float], axes: Axes) -> list[float]:
    """The heights moved up until names at them do not overlap."""
    low, high = axes.get_ylim()
    least = (high - low) * 1.3 * style.SMALL_PT / (_HEIGHT_IN * 72)
    placed = dict.fromkeys(range(len(heights)), 0.0)
    below = float("-inf")
    for index in sorted(placed, key=lambda i: heights[i]):
        below = placed[index] = max(heights[index], below + least)
    return [placed[index] for index in range(len(heights))]


def _gib(sizes: Sequence[float]) -> list[float]:
    return [size / _GIB for size in sizes]
