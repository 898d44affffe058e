"""How do ways of data parallelism compare in time and memory, on few and on many nodes?

Two panels with a row per strategy, and in each row a bar per number of nodes. At the left the
step of the mean GPU: what it computes is solid, what it waits for is hatched. At the right the
fullest GPU at its peak, by owner, against the capacity of the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.plots import style
from simulator.program.ir import COMMUNICATION, Category, Owner
from simulator.units import format_bytes, format_seconds

_GIB = 1024.0**3
_LEFT_IN, _TOP_IN, _AXIS_IN = 1.42, 0.95, 0.55
_TIME_IN, _BETWEEN_IN, _MEMORY_IN = 3.75, 0.45, 3.75
_BAR_IN, _ROW_GAP_IN = 0.21, 0.16
_ROOM = 1.24
"""Length of an axis over that of its longest bar; the figures stand beside the bars."""
_OUTSIDE = style.outside_patch("allocator, context, NCCL")
_TOO_MUCH = style.VERMILLION
_LEGEND_ROW_IN, _LEGEND_COLUMNS = 0.22, 2
_NAMES: Mapping[Category, str] = {Category.BUBBLE: "other GPUs", Category.HOST: "the host"}
"""What a GPU waits for, where the category says less."""


@dataclass(frozen=True)
class Bar:
    """A strategy on some nodes.

    Attributes:
        nodes: For example ``8 nodes``.
        step_s: Seconds of the step by category; empty where nothing runs it.
        held_bytes: At the peak of the fullest GPU by owner [B].
        device_bytes: What that GPU shows then [B].
        remark: Why there is no bar.
    """

    nodes: str
    step_s: Mapping[Category, float] = field(default_factory=dict)
    held_bytes: Mapping[Owner, float] = field(default_factory=dict)
    device_bytes: float = 0.0
    remark: str = ""


def build_strategies_figure(
    title: str, subtitle: str, rows: Mapping[str, Sequence[Bar]], capacity_bytes: float
) -> Figure:
    """Bars by strategy: time in one panel, memory against capacity [B] in the other."""
    bars = [bar for row in rows.values() for bar in row]
    categories = [c for c in style.CATEGORY_COLOR if any(bar.step_s.get(c, 0.0) for bar in bars)]
    owners = [o for o in style.OWNER_COLOR if any(bar.held_bytes.get(o, 0.0) for bar in bars)]
    legends: tuple[Sequence[style.Handle], ...] = (
        _time_handles(categories), [*style.owner_patches(owners), _OUTSIDE],
    )  # fmt: skip
    legend_in = _LEGEND_ROW_IN * max(-(-len(handles) // _LEGEND_COLUMNS) for handles in legends)
    height_in = math.fsum(_BAR_IN * len(row) + _ROW_GAP_IN for row in rows.values())
    figure = style.new_figure(_TOP_IN + height_in + _AXIS_IN + legend_in)
    left_in = _LEFT_IN + _TIME_IN + _BETWEEN_IN
    time, memory = (
        style.add_axes_in(figure, left=left, top=_TOP_IN, width=width, height=height_in)
        for left, width in ((_LEFT_IN, _TIME_IN), (left_in, _MEMORY_IN))
    )
    _scale(time, memory, bars, height_in, capacity_bytes)
    top_in = _ROW_GAP_IN / 2
    for name, row in rows.items():
        middle_in = top_in + _BAR_IN * len(row) / 2
        style.annotate(
            time,
            name,
            (0, middle_in),
            (-_LEFT_IN * 72 + 12, 0),
            va="center",
            fontsize=style.TEXT_PT,
            weight="bold",
        )
        for number, bar in enumerate(row):
            y = top_in + _BAR_IN * (number + 0.5)
            _draw_time(time, bar, y)
            _draw_memory(memory, bar, y, capacity_bytes)
        top_in += _BAR_IN * len(row) + _ROW_GAP_IN
    style.add_heading(time, "step of the mean GPU; hatched: waiting")
    capacity = format_bytes(capacity_bytes)
    style.add_heading(memory, f"fullest GPU at its peak; dashed: its {capacity}")
    for axes, handles in zip((time, memory), legends, strict=True):
        _add_legend(axes, handles, height_in)
    style.add_title(figure, title, subtitle, left=0.2)
    return figure


def _add_legend(axes: Axes, handles: Sequence[style.Handle], height_in: float) -> None:
    axes.legend(
        handles=list(handles), loc="upper left", bbox_to_anchor=(0.0, -_AXIS_IN / height_in),
        ncol=_LEGEND_COLUMNS, fontsize=style.SMALL_PT, frameon=False, borderaxespad=0.0,
        borderpad=0.0, handlelength=1.8, handleheight=1.0, columnspacing=1.6,
    )  # fmt: skip


def _scale(
    time: Axes, memory: Axes, bars: Iterable[Bar], height_in: float, capacity_bytes: float
) -> None:
    listed = list(bars)
    longest_s = max((math.fsum(bar.step_s.values()) for bar in listed), default=0.0) or 1.0
    most = max([capacity_bytes, *(bar.device_bytes for bar in listed)]) / _GIB
    time.set_xlim(0, _ROOM * longest_s)
    memory.set_xlim(0, _ROOM * most)
    style.show_seconds(time.xaxis, longest_s, "step time", ticks=6)
    style.name_axes(memory, x="device memory [GiB]")
    for axes in (time, memory):
        axes.set_ylim(height_in, 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=style.GRID, linewidth=0.6)
    capacity = capacity_bytes / _GIB
    memory.axvline(capacity, color=_TOO_MUCH, linewidth=1.6, linestyle=(0, (5, 2)), zorder=4)


def _draw_time(axes: Axes, bar: Bar, y: float) -> None:
    style.annotate(axes, bar.nodes, (0, y), (-5, 0), ha="right", va="center", color=style.PALE_INK)
    if not bar.step_s:
        _say(axes, 0.0, y, bar.remark, style.PALE_INK)
        return
    start = 0.0
    for category, color in style.CATEGORY_COLOR.items():
        seconds = bar.step_s.get(category, 0.0)
        if not seconds:
            continue
        drawn = axes.barh(y, seconds, 0.8 * _BAR_IN, start, linewidth=0, color=color)
        if category in style.WAITS:
            for patch in drawn:
                patch.set(
                    facecolor=style.wait_face(category),
                    edgecolor=style.wait_hatch_color(category),
                    hatch=style.WAIT_HATCH,
                )
        start += seconds
    _say(axes, start, y, format_seconds(start))


def _draw_memory(axes: Axes, bar: Bar, y: float, capacity_bytes: float) -> None:
    if not bar.held_bytes:
        return
    start = 0.0
    for owner, color in style.OWNER_COLOR.items():
        size = bar.held_bytes.get(owner, 0.0) / _GIB
        if size:
            axes.barh(y, size, 0.8 * _BAR_IN, start, linewidth=0, color=color)
            start += size
    rest = max(0.0, bar.device_bytes / _GIB - start)
    axes.barh(y, rest, 0.8 * _BAR_IN, start, **style.outside_look(_OUTSIDE))
    fits = bar.device_bytes <= capacity_bytes
    text = format_bytes(bar.device_bytes)
    # In a column at the edge: beside their bars, some would lie on the line of the capacity.
    style.annotate(
        axes,
        text,
        (1.0, y),
        xycoords=axes.get_yaxis_transform(),
        ha="right",
        va="center",
        color=style.INK if fits else _TOO_MUCH,
        weight="normal" if fits else "bold",
        annotation_clip=False,
    )


def _say(axes: Axes, x: float, y: float, text: str, color: str = style.INK) -> None:
    style.annotate(
        axes,
        text,
        (x, y),
        (4, 0),
        va="center",
        color=color,
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )


def _time_handles(categories: Iterable[Category]) -> list[Patch]:
    handles = []
    for category in categories:
        name = _NAMES.get(category, style.words(category))
        if category in style.WAITS:
            shown = f"{name}, exposed" if category in COMMUNICATION else name
            handles.append(style.wait_patch(category, shown))
        else:
            handles.append(Patch(color=style.CATEGORY_COLOR[category], lw=0, label=name))
    return handles
