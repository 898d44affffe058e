"""What does every rank run when under a schedule, and how much does it hold meanwhile?

Above, the slots of every rank; below, in the same order, the activations that each rank holds, with
the most of them at the right. Communication is free; times are in the unit of the costs that the
run was given. Several schedules stand under one another on one time axis, with equal work on every
rank.

A box is a slot in the colour of its phase; shades show the chunks or the two directions on one
rank. Lighter shades stand on a foot of the full colour, so that none passes for another phase.
Slots that run together share a dark frame. Hatched gaps are idle. Arrows at the right say that the
schedule continues without draining.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simulator.plots import style
from simulator.plots.microbatch_boxes import EDGE_SHARE, add_number, edge_pt
from simulator.program.ir import Category, Kind, Owner
from simulator.schedule.slots import Phase, Slot
from simulator.schedule.terminal_text import PHASE_NAMES, costs_text, microbatches_text, sizes_text
from simulator.schedule.unit_run import Box, UnitRun

_LEFT_IN, _TOP_IN, _AXIS_IN, _RIGHT_IN = 0.85, 0.72, 0.48, 0.5
_BETWEEN_IN = 0.32
"""Between the slots and the heading's panel below them."""
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
_SMALLEST_LABELLED_PT = style.SMALL_PT
"""Rows of at least this height have a number at their right."""
_FULLEST = 0.86
"""Height of the fullest rank's activations, as a share of its row."""

_COMPARED_TOP_IN = 0.95
_HEADING_IN = 0.34
"""Between the rows of one schedule and those of the next."""

PHASE_KIND: Mapping[Phase, Kind] = {
    Phase.FORWARD: Kind.FORWARD,
    Phase.BACKWARD: Kind.BACKWARD,
    Phase.BACKWARD_INPUT: Kind.BACKWARD_INPUT,
    Phase.BACKWARD_WEIGHT: Kind.BACKWARD_WEIGHT,
}
"""The operation whose colour a phase has."""
_TOP, _BOTTOM, _FOOT = 0.05, 0.95, 0.16
"""Top and bottom of a box in its row, and the height of the foot that shades stand on."""
_FRAME_PT = 1.0
_NUMBER_SIZES_PT, _NUMBER_MARGIN_PT = (4.5, 8.5), 1.2
_ARROW_PT = 4.0


def build_schedule_figure(run: UnitRun) -> Figure:
    """The picture of a schedule: the slots of every rank above the activations it holds."""
    lanes_in = run.stages * float(np.clip(4.0 / run.stages, 0.07, 0.34))
    strips_in = run.stages * float(np.clip(1.6 / run.stages, 0.05, 0.2))
    handles = _legend_handles([run])
    below_in = _TOP_IN + lanes_in + _BETWEEN_IN
    figure = style.new_figure(below_in + strips_in + _AXIS_IN + style.legend_height_in(handles))
    lanes = _add_panel(figure, run, run.span, top_in=_TOP_IN, height_in=lanes_in)
    lanes.axes.tick_params(axis="x", labelbottom=False, length=0)
    _draw_slots(lanes, run)
    below = _add_panel(figure, run, run.span, top_in=below_in, height_in=strips_in)
    strips = below.axes
    style.add_heading(strips, "activations held, in microbatches of a rank's whole share")
    _draw_levels(strips, run, below.row_pt)
    _show_time(strips, run)
    style.add_title(figure, _title(run), _summary_text(run), left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def _show_time(axes: Axes, run: UnitRun) -> None:
    """Label the time axis with the costs that are its unit."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 4, 5, 10]))
    style.name_axes(axes, x=f"time ({costs_text(run.costs)})")


def _title(run: UnitRun) -> str:
    sizes = sizes_text(run.stages, run.microbatches, run.chunks)
    return f"{run.info.name}: {sizes}"


def _summary_text(run: UnitRun) -> str:
    """Time and memory of a run in one line."""
    words = [
        f"step {run.step_time:g}",
        f"bubble {100 * run.bubble_share:.1f} %",
        f"at most {microbatches_text(max(run.peaks))} in flight",
    ]
    if not run.info.synchronous:
        words[0] = f"once full, {words[0]}"
        words.append(f"never drains; {_versions_text(run)}")
    elif run.info.placement.copies > 1:
        words.append(f"{run.info.placement.copies} copies of the model")
    return "   |   ".join(words)


def _versions_text(run: UnitRun) -> str:
    """How many versions of the weights the ranks keep, in words."""
    least, most = min(run.weight_versions), max(run.weight_versions)
    return f"{most if least == most else f'{most} to {least}'} weight versions"


def _add_panel(
    figure: Figure, run: UnitRun, span: float, *, top_in: float, height_in: float
) -> Lanes:
    """Axes of a row per rank, as long as ``span``."""
    axes = style.add_axes_in(figure, left=_LEFT_IN, top=top_in, width=_WIDTH_IN, height=height_in)
    axes.set_xlim(0.0, span)
    axes.set_ylim(run.stages, 0)
    row_pt = height_in * 72 / run.stages
    style.name_rows(axes, [f"rank {rank}" for rank in range(run.stages)], row_pt)
    return Lanes(axes, row_pt, _WIDTH_IN * 72 / span)


def _draw_levels(axes: Axes, run: UnitRun, row_pt: float) -> None:
    color = style.OWNER_COLOR[Owner.ACTIVATIONS]
    scale = _FULLEST / max(run.peaks)
    areas = PolyCollection([_area(run, rank, scale) for rank in range(run.stages)], gid="held")
    areas.set(facecolor=style.mix(color, "#FFFFFF", 0.45), edgecolor="none")
    axes.add_collection(areas, autolim=False)
    axes.hlines(np.arange(1, run.stages + 1), 0, run.span, color=style.GRID, linewidth=0.6)
    _label_peaks(axes, run, row_pt)


def _label_peaks(axes: Axes, run: UnitRun, row_pt: float) -> None:
    """The most activations that a rank holds, right of its row, where rows have the room."""
    if row_pt < _SMALLEST_LABELLED_PT:
        return
    for rank, peak in enumerate(run.peaks):
        style.annotate(
            axes,
            f"{peak:.3g}",
            (1.0, rank + 0.5),
            (10, 0),
            xycoords=("axes fraction", "data"),
            va="center_baseline",
        )


def _area(run: UnitRun, rank: int, scale: float) -> NDArray[np.float64]:
    levels = run.levels(rank)
    times = np.array([level.time for level in levels] + [run.span])
    held = np.array([level.held for level in levels])
    across = np.concatenate([times[:1], np.repeat(times[1:-1], 2), times[-1:]])
    heights = np.repeat(held, 2)
    outline = np.column_stack([across, rank + 1 - scale * heights])
    ends = [[times[-1], rank + 1], [times[0], rank + 1]]
    return np.concatenate([outline, np.array(ends)])


def build_schedule_comparison_figure(runs: Sequence[UnitRun]) -> Figure:
    """Several schedules under one another, on one time axis."""
    rows = sum(run.stages for run in runs)
    row_in = float(np.clip(5.5 / rows, 0.05, 0.24))
    heights_in = [row_in * run.stages for run in runs]
    tops_in = accumulate(
        heights_in[:-1], lambda t, h: t + h + _HEADING_IN, initial=_COMPARED_TOP_IN
    )
    handles = _legend_handles(runs)
    blocks_in = math.fsum(heights_in) + _HEADING_IN * (len(runs) - 1)
    below_in = _AXIS_IN + style.legend_height_in(handles)
    figure = style.new_figure(_COMPARED_TOP_IN + blocks_in + below_in)
    longest = max(run.span for run in runs)
    for run, top_in, height_in in zip(runs, tops_in, heights_in, strict=True):
        lanes = _add_panel(figure, run, longest, top_in=top_in, height_in=height_in)
        axes = lanes.axes
        _draw_slots(lanes, run)
        _label_peaks(axes, run, lanes.row_pt)
        style.add_heading(axes, f"{run.info.name}: {_summary_text(run)}")
        _show_time(axes, run)
        if run is not runs[-1]:
            axes.tick_params(axis="x", labelbottom=False, length=0)
            axes.set_xlabel("")
    sizes = sizes_text(runs[0].stages, runs[0].microbatches)
    subtitle = "equal work on every rank"
    if row_in * 72 >= _SMALLEST_LABELLED_PT:
        subtitle += "; at the right, the most microbatches in flight"
    style.add_title(figure, sizes, subtitle, left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


@dataclass(frozen=True)
class Lanes:
    """Axes for the rows of one run.

    Attributes:
        axes: Its limits are set: time to the right, ranks down.
        row_pt: Height of a row [pt].
        unit_pt: Width of a unit of time [pt].
    """

    axes: Axes
    row_pt: float
    unit_pt: float


def _draw_slots(lanes: Lanes, run: UnitRun) -> None:
    """Draw what every rank of a run does until the end of its span."""
    gaps = [(rank, *gap) for rank in range(run.stages) for gap in run.idle(rank)]
    style.hatch_waits(_add(lanes, gaps, "idle"), Category.BUBBLE)
    looks: defaultdict[tuple[Phase, int], list[tuple[int, Box]]] = defaultdict(list)
    for rank, box in _boxes(run):
        looks[box.slot.phase, _part(run, box.slot)].append((rank, box))
    for (phase, part), boxes in looks.items():
        _draw_look(lanes, run, boxes, phase, part)
    _frame_joint_slots(lanes, run)
    _number_microbatches(lanes, run)
    if not run.info.synchronous:
        _point_onwards(lanes, run)


def _draw_look(
    lanes: Lanes, run: UnitRun, boxes: Sequence[tuple[int, Box]], phase: Phase, part: int
) -> None:
    name = f"{phase.name.lower()} {part}"
    spans = [(rank, box.start, box.end) for rank, box in boxes]
    filled = _add(lanes, spans, name)
    filled.set(facecolor=_box_color(run, phase, part), edgecolor="none")
    if part:
        foot = _add(lanes, spans, f"{name} foot", top=_BOTTOM - _FOOT)
        foot.set(facecolor=_box_color(run, phase, 0), edgecolor="none")
    edges = _add(lanes, spans, f"{name} edges")
    edges.set(facecolor="none", edgecolor="white")
    edges.set_linewidth([edge_pt(lanes.unit_pt * (end - start)) for _, start, end in spans])


def _box_color(run: UnitRun, phase: Phase, part: int) -> str:
    """Colour of the slots of one phase on one chunk or direction."""
    return style.chunk_shade(style.KIND_COLOR[PHASE_KIND[phase]], part, run.num_parts)


def _legend_handles(runs: Sequence[UnitRun]) -> list[style.Handle]:
    """One entry for each thing in the pictures of these runs."""
    joint = any(slot.overlaps_next for run in runs for slots in run.order for slot in slots)
    handles: list[style.Handle] = []
    for phase, name in PHASE_NAMES.items():
        users = [run for run in runs if any(box.slot.phase is phase for _, box in _boxes(run))]
        if users:
            widest = max(users, key=lambda run: run.num_parts)
            label = name + _parts_named(widest, runs)
            parts = range(widest.num_parts)
            patches = (Patch(color=_box_color(widest, phase, k), lw=0, label=label) for k in parts)
            handles.append(tuple(patches))
    if joint:
        frame = Patch(facecolor="none", edgecolor=style.INK, lw=_FRAME_PT, label="run together")
        handles.append(frame)
    handles.append(style.wait_patch(Category.BUBBLE, "idle"))
    return handles


def _parts_named(widest: UnitRun, runs: Sequence[UnitRun]) -> str:
    if widest.num_parts == 1:
        return ""
    directions = {run.info.placement.copies == 2 for run in runs if run.num_parts > 1}
    if directions == {True}:
        return " (down, up)"
    if directions == {False}:
        return f" (chunks 0 to {widest.num_parts - 1})"
    return f" (parts 0 to {widest.num_parts - 1})"


def _boxes(run: UnitRun) -> Iterator[tuple[int, Box]]:
    return ((rank, box) for rank in range(run.stages) for box in run.boxes(rank))


def _part(run: UnitRun, slot: Slot) -> int:
    return run.info.placement.chunk(slot.stage, run.stages)


def _add(
    lanes: Lanes, spans: Sequence[tuple[int, float, float]], name: str, top: float = _TOP
) -> PolyCollection:
    corners = [_corners(*span, top) for span in spans]
    collection = PolyCollection(corners, closed=True, gid=name)
    lanes.axes.add_collection(collection, autolim=False)
    return collection


def _corners(rank: int, start: float, end: float, top: float) -> NDArray[np.float64]:
    upper, lower = rank + top, rank + _BOTTOM
    return np.array([(start, upper), (end, upper), (end, lower), (start, lower)])


def _frame_joint_slots(lanes: Lanes, run: UnitRun) -> None:
    frames = []
    for rank in range(run.stages):
        pairs = pairwise(run.boxes(rank))
        frames += [(rank, a.start, b.end) for a, b in pairs if a.slot.overlaps_next]
    if frames:
        collection = _add(lanes, frames, "joint")
        collection.set_facecolor("none")
        collection.set_edgecolor(style.INK)
        sides_pt = [lanes.unit_pt * min(end - start for _, start, end in frames), lanes.row_pt]
        collection.set_linewidth(min(_FRAME_PT, EDGE_SHARE * min(sides_pt)))


def _number_microbatches(lanes: Lanes, run: UnitRun) -> None:
    digits = max(len(str(box.slot.microbatch)) for _, box in _boxes(run))
    height_pt = 0.62 * lanes.row_pt * (_BOTTOM - _TOP)
    for rank, box in _boxes(run):
        width_pt = lanes.unit_pt * (box.end - box.start) - _NUMBER_MARGIN_PT
        face = _box_color(run, box.slot.phase, _part(run, box.slot))
        centre, room_pt = ((box.start + box.end) / 2, rank + 0.5), (width_pt, height_pt)
        add_number(
            lanes.axes, box.slot.microbatch, centre, room_pt,
            digits=digits, sizes_pt=_NUMBER_SIZES_PT, face=face,
        )  # fmt: skip


def _point_onwards(lanes: Lanes, run: UnitRun) -> None:
    lanes.axes.plot(
        np.full(run.stages, run.span + 1.2 * _ARROW_PT / lanes.unit_pt),
        np.arange(run.stages) + 0.5,
        linestyle="none",
        marker=5,  # a caret that points to the right
        markersize=_ARROW_PT,
        color=style.PALE_INK,
        clip_on=False,
        gid="continues",
    )
