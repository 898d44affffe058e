"""How far is every published run, or the effect of every change, from its prediction?

Left, predicted over measured, where a perfect prediction lies on the diagonal and a
close one in the pale band. Right, what share of the runs of each group is within an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.plots import style

_LEFT_IN, _TOP_IN, _BOTTOM_IN, _GAP_IN = 0.7, 0.85, 1.15, 0.75
_PANEL_IN = 4.05
_COLORS = (
    style.BLUE, style.VERMILLION, style.GREEN, style.ORANGE, style.PURPLE, style.SKY, style.INK,
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_FURTHEST_PCT = 60.0


class Words(NamedTuple):
    """What the picture calls what it draws.

    Attributes:
        many: The points, for example ``runs``.
        measured, predicted: The axes of the scatter.
        error: What is off.
    """

    many: str = "runs"
    measured: str = "measured step [s]"
    predicted: str = "predicted step [s]"
    error: str = "error of the step time"


class RunError(NamedTuple):
    """One run, measured and predicted.

    Attributes:
        group: Colour that it is drawn in, for example its framework.
        measured_s, predicted_s: Step time [s]; without a unit for the ratio of two runs.
    """

    group: str
    measured_s: float
    predicted_s: float

    @property
    def error_pct(self) -> float:
        """Distance of the prediction, without its sign [%]."""
        return 100.0 * abs(self.predicted_s / self.measured_s - 1.0)


def draw_accuracy(
    runs: Sequence[RunError],
    path: str | Path,
    title: str,
    close_pct: float,
    words: Words = Words(),  # noqa: B008 - a tuple, never changed
) -> None:
    """Write the picture of all runs; the suffix names the format."""
    style.save(build_accuracy_figure(runs, title, close_pct, words), path)


def build_accuracy_figure(
    runs: Sequence[RunError],
    title: str,
    close_pct: float,
    words: Words = Words(),  # noqa: B008 - a tuple, never changed
) -> Figure:
    """Scatter and cumulated errors, one colour per group.

    Args:
        runs: At least one.
        title: The bold line above.
        close_pct: Errors up to this one count as close [%].
        words: What the axes and the line below the title say.
    """
    figure = style.new_figure(_TOP_IN + _PANEL_IN + _BOTTOM_IN)
    width_in = (style.WIDTH_IN - _LEFT_IN - _GAP_IN - 0.2) / 2
    scatter, shares = (
        style.add_axes_in(
            figure, left=_LEFT_IN + i * (width_in + _GAP_IN), top=_TOP_IN, width=width_in,
            height=_PANEL_IN,
        )
        for i in range(2)
    )  # fmt: skip
    groups = sorted({run.group for run in runs}, key=lambda g: -sum(r.group == g for r in runs))
    _draw_scatter(scatter, runs, groups, close_pct)
    _draw_shares(shares, runs, groups, close_pct)
    scatter.set_xlabel(words.measured, fontsize=style.SMALL_PT)
    scatter.set_ylabel(words.predicted, fontsize=style.SMALL_PT)
    shares.set_xlabel(f"{words.error}, at most [%]; dashed: all", fontsize=style.SMALL_PT)
    shares.set_ylabel(f"share of the {words.many} [%]", fontsize=style.SMALL_PT)
    errors = [run.error_pct for run in runs]
    close = 100.0 * sum(error <= close_pct for error in errors) / len(errors)
    subtitle = (
        f"{len(runs)} {words.many}: mean error {np.mean(errors):.1f} %, "
        f"median {np.median(errors):.1f} %, {close:.0f} % within {close_pct:.0f} %"
    )
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    handles, names = scatter.get_legend_handles_labels()
    figure.legend(
        handles, names, loc="lower left", ncol=4, frameon=False, fontsize=style.SMALL_PT,
        bbox_to_anchor=(_LEFT_IN / style.WIDTH_IN, 0.0), borderaxespad=0.3,
    )  # fmt: skip
    return figure


def _draw_scatter(
    axes: Axes, runs: Sequence[RunError], groups: Sequence[str], close_pct: float
) -> None:
    times = [t for run in runs for t in (run.measured_s, run.predicted_s)]
    span = np.array([min(times) / 1.3, max(times) * 1.3])
    far, near = 1 + close_pct / 100, 1 - close_pct / 100
    axes.fill_between(span, near * span, far * span, color=style.GRID, alpha=0.7, linewidth=0)
    axes.plot(span, span, color=style.PALE_INK, linewidth=0.8)
    for index, group in enumerate(groups):
        own = [run for run in runs if run.group == group]
        axes.plot(
            [run.measured_s for run in own], [run.predicted_s for run in own],
            linestyle="none", marker=_MARKERS[index % len(_MARKERS)], markersize=4,
            color=_COLORS[index % len(_COLORS)], markeredgecolor="white", markeredgewidth=0.3,
            alpha=0.85, label=f"{group} ({len(own)})",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=span, ylim=span)
    axes.grid(color=style.GRID, linewidth=0.5)


def _draw_shares(
    axes: Axes, runs: Sequence[RunError], groups: Sequence[str], close_pct: float
) -> None:
    for index, group in enumerate(groups):
        errors = sorted(run.error_pct for run in runs if run.group == group)
        shares = 100.0 * np.arange(1, len(errors) + 1) / len(errors)
        axes.step(
            [0.0, *errors, _FURTHEST_PCT], [0.0, *shares, 100.0], where="post", linewidth=1.6,
            color=_COLORS[index % len(_COLORS)],
        )  # fmt: skip
    errors = sorted(run.error_pct for run in runs)
    shares = 100.0 * np.arange(1, len(errors) + 1) / len(errors)
    axes.step(
        [0.0, *errors, _FURTHEST_PCT], [0.0, *shares, 100.0], where="post", linewidth=2.4,
        color=style.INK, linestyle=(0, (4, 1.5)),
    )  # fmt: skip
    axes.axvline(close_pct, color=style.PALE_INK, linewidth=0.8)
    axes.text(
        close_pct + 0.8, 3, f"{close_pct:.0f} %", fontsize=style.SMALL_PT, color=style.PALE_INK
    )
    axes.set(xlim=(0, _FURTHEST_PCT), ylim=(0, 101))
    axes.grid(color=style.GRID, linewidth=0.5)
