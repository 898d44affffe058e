"""Who holds the memory of each stage, and when?

Two pictures. By owner: a bar per rank class at the moment of its peak, stacked by owner,
up to what the device shows, against its capacity. Over time: the fullest class by owner,
above a strip per class whose shade is the allocated share of the capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from simulator.plots import style
from simulator.program.ir import Owner
from simulator.results.step import ClassMemory, StepResult
from simulator.units import format_bytes, format_seconds

_GIB = 1024.0**3
_LEFT_IN, _RIGHT_IN, _TOP_IN, _AXIS_IN = 0.85, 0.95, 0.72, 0.5
_PLOT_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
_SLICES = style.STRIP_SLICES
"""Most moments drawn; each slice of time shows its fullest moment."""
_MOST_TOTALS, _MOST_LONG_NAMES, _MOST_NAMES = 16, 8, 32
"""Up to so many bars carry their total in figures, their names, their stages."""


def build_memory_by_owner_figure(result: StepResult) -> Figure:
    """Stacked bars of each class's peak against the capacity of the device."""
    owners = _owners(result.memory)
    outside = [
        style.outside_patch("allocator cache"),
        style.outside_patch("context and libraries", "#BFBFBF", "\\\\\\\\"),
    ]
    handles = [*style.owner_patches(owners), *outside]
    height_in = 3.4
    figure = style.new_figure(_TOP_IN + height_in + _AXIS_IN + style.legend_height_in(handles))
    axes = style.add_axes_in(
        figure, left=_LEFT_IN, top=_TOP_IN, width=_PLOT_WIDTH_IN, height=height_in
    )
    _draw_bars(axes, result.memory, owners, outside)
    _draw_capacity(axes, result)
    _name_classes(axes, result)
    highest = max(max(each.peak_device_bytes, each.capacity_bytes) for each in result.memory)
    axes.set_ylim(0, 1.08 * highest / _GIB)
    style.name_axes(axes, y="memory at the peak [GiB]")
    axes.grid(axis="y", color=style.GRID, linewidth=0.6)
    style.add_title(figure, result.title, _headline(result), left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def build_memory_over_time_figure(result: StepResult) -> Figure:
    """The fullest class by owner over time, above a strip for every class."""
    worst = fullest(result)
    rows = len(result.memory)
    owners = _owners(result.memory[worst : worst + 1])
    handles = style.owner_patches(owners)
    area_in, row_in = 2.6, float(np.clip(2.6 / rows, 0.07, 0.3))
    below_in = _TOP_IN + area_in + 0.65
    figure = style.new_figure(below_in + row_in * rows + _AXIS_IN + style.legend_height_in(handles))
    area = style.add_axes_in(
        figure, left=_LEFT_IN, top=_TOP_IN, width=_PLOT_WIDTH_IN, height=area_in
    )
    _draw_owners_over_time(area, result, worst, owners)
    strips = style.add_axes_in(
        figure, left=_LEFT_IN, top=below_in, width=_PLOT_WIDTH_IN, height=row_in * rows
    )
    _draw_strips(figure, strips, result, worst, row_in)
    style.add_title(figure, result.title, _headline(result), left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def fullest(result: StepResult) -> int:
    """Index of the class with the highest allocated peak; the first of equals."""
    return int(np.argmax([memory.peak_allocated_bytes for memory in result.memory]))


def _headline(result: StepResult) -> str:
    worst = result.memory[fullest(result)]
    name = result.timeline.program.classes[fullest(result)].name
    return (
        f"fullest: {name}, {format_bytes(worst.peak_allocated_bytes)} allocated"
        f" at {format_seconds(worst.peak_time_s)}, {format_bytes(worst.peak_device_bytes)}"
        f" used of a device's {format_bytes(worst.capacity_bytes)}"
    )


def _owners(memory: Sequence[ClassMemory]) -> list[Owner]:
    return [
        owner
        for owner in style.OWNER_COLOR
        if any(m.by_owner.get(owner, 0) > 0 or np.any(m.owner_bytes.get(owner, 0)) for m in memory)
    ]


def _draw_bars(
    axes: Axes, memory: Sequence[ClassMemory], owners: Sequence[Owner], outside: Sequence[Patch]
) -> None:
    where = np.arange(len(memory))
    base = np.zeros(len(memory))
    for owner in owners:
        size = np.array([m.by_owner.get(owner, 0.0) for m in memory]) / _GIB
        axes.bar(where, size, 0.72, base, color=style.OWNER_COLOR[owner], linewidth=0, label=owner)
        base += size
    beyond = (
        [m.peak_reserved_bytes - m.peak_allocated_bytes for m in memory],
        [m.peak_device_bytes - m.peak_reserved_bytes for m in memory],
    )
    for look, num_bytes in zip(outside, beyond, strict=True):
        size = np.array(num_bytes) / _GIB
        axes.bar(where, size, 0.72, base, label=look.get_label(), **style.outside_look(look))
        base += size
    if len(memory) <= _MOST_TOTALS:
        for x, total in zip(where, base, strict=True):
            style.annotate(
                axes,
                f"{total:.1f}",
                (float(x), float(total)),
                (0, 3),
                ha="center",
                va="bottom",
                zorder=5,  # above the line of the capacity
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )


def _draw_capacity(axes: Axes, result: StepResult) -> None:
    """A dashed line, named in the margin on the right where no bar can be.

    GPUs of several kinds have a line each over their own bars; the last one is named.
    """
    look: dict[str, Any] = {
        "color": style.VERMILLION, "linewidth": 1.6, "linestyle": (0, (5, 2)), "zorder": 4,
    }  # fmt: skip
    sizes = [memory.capacity_bytes / _GIB for memory in result.memory]
    capacity = sizes[-1]
    if len(set(sizes)) == 1:
        axes.axhline(capacity, **look)
    else:
        edges = np.arange(len(sizes))
        axes.hlines(sizes, edges - 0.5, edges + 0.5, **look)
    style.annotate(
        axes,
        f"capacity\n{capacity:.4g} GiB",
        (1, capacity),
        (5, 0),
        va="center",
        xycoords=("axes fraction", "data"),
        color=style.VERMILLION,
        weight="bold",
        annotation_clip=False,
    )


def _name_classes(axes: Axes, result: StepResult) -> None:
    classes = result.timeline.program.classes
    axes.set_xlim(-0.6, len(classes) - 0.4)
    is_short = len(classes) <= _MOST_LONG_NAMES
    every = -(-len(classes) // _MOST_NAMES)
    shown = range(0, len(classes), every)
    names = [classes[i].name if is_short else str(classes[i].stage) for i in shown]
    axes.set_xticks(list(shown), names)
    axes.tick_params(axis="x", length=0)
    style.name_axes(axes, x="" if is_short else "stage")


def _draw_owners_over_time(
    axes: Axes, result: StepResult, worst: int, owners: Sequence[Owner]
) -> None:
    memory, step_s = result.memory[worst], result.step_time_s
    keep = fullest_moments(memory, step_s, _SLICES)
    time_s = np.append(memory.time_s[keep], step_s)
    held = [np.asarray(memory.owner_bytes.get(o, np.zeros_like(memory.time_s))) for o in owners]
    stacked = np.vstack([np.append(h[keep], h[keep[-1]]) / _GIB for h in held])
    colors = [style.OWNER_COLOR[owner] for owner in owners]
    axes.stackplot(time_s, stacked, colors=colors, step="post", linewidth=0)
    axes.plot(
        memory.peak_time_s,
        memory.peak_allocated_bytes / _GIB,
        marker="v",
        color=style.INK,
        markersize=6,
        clip_on=False,
        zorder=5,
    )
    _draw_capacity(axes, result)
    axes.set_xlim(0, step_s)
    axes.set_ylim(0, 1.08 * max(memory.peak_allocated_bytes, memory.capacity_bytes) / _GIB)
    style.show_seconds(axes.xaxis, step_s)
    axes.set_xlabel("")
    name = result.timeline.program.classes[worst].name
    style.name_axes(axes, y=f"memory of {name} [GiB]")
    axes.grid(axis="y", color=style.GRID, linewidth=0.6)


def fullest_moments(memory: ClassMemory, step_s: float, slices: int) -> NDArray[np.int64]:
    """Index of the fullest moment in each of ``slices`` equal slices of the step.

    All moments, where there are no more than that. So a short peak is never lost.
    """
    count = memory.time_s.size
    if count <= slices:
        return np.arange(count)
    total = _allocated(memory)
    where = np.minimum((memory.time_s / step_s * slices).astype(np.int64), slices - 1)
    order = np.lexsort((total, where))
    last_of_slice = np.append(np.flatnonzero(np.diff(where[order])), count - 1)
    return np.asarray(order[last_of_slice], dtype=np.int64)


def _allocated(memory: ClassMemory) -> NDArray[np.float64]:
    """Bytes of all owners from each moment on, shape (changes,) [B]."""
    return sum(memory.owner_bytes.values(), np.zeros_like(memory.time_s))


def _draw_strips(figure: Figure, axes: Axes, result: StepResult, worst: int, row_in: float) -> None:
    colors = ["#F7FBFF", style.SKY, style.BLUE, "#08243F"]
    shades = LinearSegmentedColormap.from_list("fill", colors).with_extremes(over=style.VERMILLION)
    filled = np.vstack([_filled_share(m, result.step_time_s) for m in result.memory])
    names = [c.name for c in result.timeline.program.classes]
    scale = style.add_strips(
        figure, axes, filled, result.step_time_s, names, shades, row_in=row_in, line="white"
    )
    scale.outline.set_visible(False)
    axes.plot(
        1.008,
        worst + 0.5,
        marker="<",
        color=style.INK,
        markersize=6,
        transform=axes.get_yaxis_transform(),
        clip_on=False,
    )
    style.add_heading(axes, "allocated share of the capacity")


def _filled_share(memory: ClassMemory, step_s: float) -> NDArray[np.float64]:
    """Allocated share of the capacity in each slice of the step, at its fullest."""
    total = _allocated(memory) / memory.capacity_bytes
    edges_s = np.linspace(0, step_s, _SLICES + 1)
    at_edge = np.searchsorted(memory.time_s, edges_s[:-1], side="right") - 1
    share = total[np.maximum(at_edge, 0)]
    where = np.minimum((memory.time_s / step_s * _SLICES).astype(np.int64), _SLICES - 1)
    np.maximum.at(share, where, total)
    return share
