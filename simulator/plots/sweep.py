"""Which of many jobs is fast, and what does speed cost in memory?

A sweep: above, a heat map of the training rate over the first two fields that vary; where more
vary, a cell shows the best combination that fits. Hatched cells do not fit, empty ones cannot run.
Below, the rate against the memory of the fullest GPU, with the Pareto front.

A search: one Pareto front of plans per number of GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.plots import style

if TYPE_CHECKING:
    import pandas as pd


_RATE, _PEAK, _FITS, _ERROR = "tokens_per_s_per_gpu", "peak_device_bytes", "fits", "error"
_GIB = 1024.0**3
_LEFT_IN, _RIGHT_IN, _TOP_IN, _AXIS_IN, _HEAD_IN = 1.5, 0.35, 0.72, 0.55, 0.3
_CELL_IN, _FRONT_IN, _LIST_IN = 0.42, 3.2, 3.1
_MOST_NAMED = 12
"""Points of the front that are listed, the fastest."""
_MOST_OVER = 1.6
"""Combinations that need more than this multiple of what fits are not drawn, but counted."""

_COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.VERMILLION, style.SKY)

_MARKERS = "osD^vP"

_PARETO_LEFT_IN, _PARETO_RIGHT_IN, _PARETO_TOP_IN, _PLOT_IN, _PARETO_AXIS_IN = (
    1.0,
    0.4,
    0.75,
    3.6,
    0.9,
)


def build_sweep_figure(table: pd.DataFrame, paths: Sequence[str], title: str) -> Figure:
    """The picture.

    Args:
        table: A row per combination, as :func:`simulator.planning.sweep.sweep` gives it.
        paths: The columns that were varied.
        title: What was swept.

    Raises:
        InputError: No combination could run.
    """
    ran = table[table[_ERROR] == ""]
    if ran.empty:
        raise InputError.single("sweep", "no combination could run, so there is nothing to draw")
    varied = [name for name in paths if len(_values(table, name)) > 1] or list(paths[:1])
    down = varied[1] if len(varied) > 1 else None
    rows = len(_values(table, down)) if down else 1
    map_in = _CELL_IN * rows
    below_in = _TOP_IN + _HEAD_IN + map_in + _AXIS_IN + 0.15
    figure = style.new_figure(below_in + _HEAD_IN + _FRONT_IN + _AXIS_IN)
    width_in = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
    heat = style.add_axes_in(
        figure, left=_LEFT_IN, top=_TOP_IN + _HEAD_IN, width=width_in, height=map_in
    )
    _draw_map(heat, table, varied[0], down)
    others = varied[2:]
    best = f", the best over {', '.join(others)}" if others else ""
    style.add_heading(heat, f"tokens/s per GPU{best}; hatched: does not fit; empty: cannot run")
    front = style.add_axes_in(
        figure,
        left=_LEFT_IN,
        top=below_in + _HEAD_IN,
        width=width_in - _LIST_IN,
        height=_FRONT_IN,
    )
    _draw_front(front, ran, varied)
    style.add_heading(
        front, "throughput against memory; the line is the Pareto front of combinations that fit"
    )
    style.add_title(figure, f"Sweep of {title}", _subtitle(table, ran, varied), left=_LEFT_IN)
    return figure


def pareto_front(peak_bytes: NDArray[np.float64], rate: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of the points that no other beats in both, by rising memory.

    A point is beaten where another takes no more memory and is as fast, one of them strictly.
    """
    order = np.lexsort((-rate, peak_bytes))
    best = np.maximum.accumulate(rate[order])
    is_front = np.concatenate([[True], best[1:] > best[:-1]])
    return np.asarray(order[is_front], dtype=np.int64)


def _values(table: pd.DataFrame, name: str) -> list[Any]:
    return list(dict.fromkeys(map(_plain, table[name])))


def _plain(value: Any) -> Any:
    """A value that can be a key; lists and blocks become text."""
    return value if isinstance(value, (int, float, str, bool)) else str(value)


def _subtitle(table: pd.DataFrame, ran: pd.DataFrame, varied: Sequence[str]) -> str:
    fitting = [row for row in ran.to_dict("records") if row[_FITS]]
    text = f"{len(table)} combinations, {len(fitting)} fit"
    if not fitting:
        return text
    best = max(fitting, key=lambda row: row[_RATE])
    return f"{text}; the fastest: {_words(best, varied)}, {best[_RATE]:,.0f} tokens/s per GPU"


def _words(row: Mapping[Any, Any], varied: Sequence[str]) -> str:
    return " ".join(f"{name.rpartition('.')[2]} {row[name]}" for name in varied)


def _draw_map(axes: Axes, table: pd.DataFrame, across: str, down: str | None) -> None:
    columns = _values(table, across)
    rows = _values(table, down) if down else [""]
    rate = np.full((len(rows), len(columns)), np.nan)
    fits = np.zeros(rate.shape, dtype=bool)
    for row in table[table[_ERROR] == ""].to_dict("records"):
        place = rows.index(_plain(row[down])) if down else 0, columns.index(_plain(row[across]))
        candidate = bool(row[_FITS]), row[_RATE]
        if np.isnan(rate[place]) or candidate > (bool(fits[place]), rate[place]):
            fits[place], rate[place] = candidate
    colors = ["#F4F9FD", style.SKY, style.BLUE, "#08243F"]
    low, high = np.nanmin(rate), np.nanmax(rate)
    shades = LinearSegmentedColormap.from_list("rate", colors)
    scaled = (rate - low) / max(high - low, 1e-9 * high)
    for (y, x), share in np.ndenumerate(scaled):
        if np.isnan(share):
            continue
        face = to_hex(shades(float(share))).upper() if fits[y, x] else "#FFFFFF"
        cell = Rectangle((x, y), 1, 1, facecolor=face, edgecolor="white", linewidth=1.5)
        if not fits[y, x]:
            cell.set(hatch=style.WAIT_HATCH, edgecolor="#C4C4C4")
        axes.add_patch(cell)
        axes.text(
            x + 0.5,
            y + 0.5,
            f"{rate[y, x]:,.0f}",
            ha="center",
            va="center",
            fontsize=style.SMALL_PT,
            color=style.ink_on(face),
            bbox=None if fits[y, x] else {"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    names = [style.shorten(str(value), 14) for value in columns]
    axes.set_xticks([x + 0.5 for x in range(len(columns))], names)
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [style.shorten(str(v), 14) for v in rows])
    axes.tick_params(length=0)
    style.name_axes(axes, across, down or "")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_front(axes: Axes, ran: pd.DataFrame, varied: Sequence[str]) -> None:
    rows = ran.to_dict("records")
    fits = ran[_FITS].to_numpy(dtype=bool)
    peak, rate = ran[_PEAK].to_numpy(dtype=float), ran[_RATE].to_numpy(dtype=float)
    right = _MOST_OVER * peak[fits].max() if fits.any() else peak.max()
    over = ~fits & (peak <= right)
    beyond = int(np.sum(~fits & (peak > right)))
    more = f" ({beyond} more to the right)" if beyond else ""
    if over.any() or beyond:
        axes.scatter(
            peak[over] / _GIB, rate[over], s=36, facecolor="none", edgecolor=style.VERMILLION,
            label=f"does not fit{more}",
        )  # fmt: skip
    if fits.any():
        axes.scatter(peak[fits] / _GIB, rate[fits], s=36, color=style.SKY, label="fits")
        front = np.flatnonzero(fits)[pareto_front(peak[fits], rate[fits])]
        axes.plot(peak[front] / _GIB, rate[front], color=style.BLUE, marker="o", markersize=5)
        _name_front(axes, rows, front[::-1].tolist()[:_MOST_NAMED], varied)
    style.name_axes(axes, "memory of the fullest GPU [GiB]", "tokens/s per GPU")
    axes.grid(color=style.GRID, linewidth=0.6)
    axes.margins(x=0.08, y=0.12)
    axes.legend(fontsize=style.SMALL_PT, frameon=False, loc="lower right")


def _name_front(
    axes: Axes, rows: Sequence[Mapping[Any, Any]], front: Sequence[int], varied: Sequence[str]
) -> None:
    for number, index in enumerate(front, start=1):
        row = rows[index]
        style.annotate(axes, str(number), (row[_PEAK] / _GIB, row[_RATE]), (-4, 4), ha="right")
        style.annotate(
            axes,
            style.shorten(f"{number}  {_words(row, varied)}", 44),
            (1.02, 1 - (number - 0.5) / _MOST_NAMED),
            xycoords="axes fraction",
            va="center",
            annotation_clip=False,
        )


def build_pareto_figure(
    title: str,
    fronts: Mapping[int, Sequence[tuple[float, float, str]]],
    capacity_bytes: float,
) -> Figure:
    """Fronts as lines with marked plans; the ends of each are named.

    Args:
        title: Of the picture.
        fronts: By number of GPUs: step time [s], device memory [B] and name of each plan.
        capacity_bytes: Memory of a device [B].
    """
    figure = style.new_figure(_PARETO_TOP_IN + _PLOT_IN + _PARETO_AXIS_IN)
    width_in = style.WIDTH_IN - _PARETO_LEFT_IN - _PARETO_RIGHT_IN
    axes = style.add_axes_in(
        figure, left=_PARETO_LEFT_IN, top=_PARETO_TOP_IN, width=width_in, height=_PLOT_IN
    )
    axes.grid(color=style.GRID, lw=0.6)
    handles = []
    times_s = [seconds for plans in fronts.values() for seconds, _, _ in plans]
    middle_s = (min(times_s) + max(times_s)) / 2 if times_s else 0.0
    for index, (gpus, plans) in enumerate(fronts.items()):
        color, marker = _COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)]
        line = Line2D([], [], color=color, marker=marker, ms=5, label=f"{gpus} GPUs")
        handles.append(line)
        if not plans:
            continue
        times = [seconds for seconds, _, _ in plans]
        gibs = [num_bytes / _GIB for _, num_bytes, _ in plans]
        axes.plot(times, gibs, color=color, marker=marker, ms=5, drawstyle="steps-post", lw=1.2)
        for seconds, num_bytes, name in dict.fromkeys((plans[0], plans[-1])):
            is_right = seconds > middle_s
            style.annotate(
                axes, name, (seconds, num_bytes / _GIB), (-6, -11) if is_right else (6, 5),
                ha="right" if is_right else "left",
                fontsize=style.SMALL_PT - 1, color=style.PALE_INK,
            )  # fmt: skip
    capacity = capacity_bytes / _GIB
    fullest = max((b / _GIB for plans in fronts.values() for _, b, _ in plans), default=0.0)
    top = min(1.08 * capacity, max(1.35 * fullest, 1.0))
    axes.set_ylim(0, top)
    if capacity < top:
        axes.axhline(capacity, color=style.INK, lw=1, ls="--")
    axes.margins(x=0.12)
    style.name_axes(axes, "step time [s]", "fullest GPU [GiB]")
    axes.legend(handles=handles, fontsize=style.SMALL_PT, frameon=False, loc="upper right")
    subtitle = (
        "no other plan is both faster and needs less memory; "
        f"a device has {capacity:.1f} GiB{' (dashed)' if capacity < top else ''}"
    )
    style.add_title(figure, title, subtitle, left=_PARETO_LEFT_IN)
    return figure
