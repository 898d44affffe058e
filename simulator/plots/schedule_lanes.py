"""How are the slots of a schedule drawn?

A row per rank, time to the right. A box is a slot in the colour of its phase; shades show the
chunks or the two directions on one rank. Lighter shades stand on a foot of the full colour,
so that none passes for another phase. Slots that run together share a dark frame. Hatched gaps are
idle. Arrows at the right say that the schedule continues without draining.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from numpy.typing import NDArray

from simulator.plots import style
from simulator.program.ir import Category, Kind
from simulator.schedule.slots import Phase, Slot
from simulator.schedule.terminal_text import PHASE_NAMES
from simulator.schedule.unit_run import Box, UnitRun

PHASE_KIND: Mapping[Phase, Kind] = MappingProxyType(
    {
        Phase.FORWARD: Kind.FORWARD,
        Phase.BACKWARD: Kind.BACKWARD,
        Phase.BACKWARD_INPUT: Kind.BACKWARD_INPUT,
        Phase.BACKWARD_WEIGHT: Kind.BACKWARD_WEIGHT,
    }
)
"""The operation whose colour a phase has."""

_TOP, _BOTTOM, _FOOT = 0.05, 0.95, 0.16
"""Top and bottom of a box in its row, and the height of the foot that shades stand on."""
_EDGE_PT, _EDGE_SHARE = 0.8, 0.08
"""White edges of boxes: at most so wide, and at most this share of the box."""
_FRAME_PT = 1.0
_SMALLEST_NUMBER_PT, _LARGEST_NUMBER_PT, _NUMBER_MARGIN_PT = 4.5, 8.5, 1.2
_DIGIT_EM = 0.64
"""Width of a digit of the default font, per font size."""
_ARROW_PT = 4.0


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


def draw_slots(lanes: Lanes, run: UnitRun) -> None:
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
    filled.set(facecolor=box_color(run, phase, part), edgecolor="none")
    if part:
        foot = _add(lanes, spans, f"{name} foot", top=_BOTTOM - _FOOT)
        foot.set(facecolor=box_color(run, phase, 0), edgecolor="none")
    edges = _add(lanes, spans, f"{name} edges")
    edges.set(facecolor="none", edgecolor="white")
    edges.set_linewidth([_edge_pt(lanes, end - start) for _, start, end in spans])


def box_color(run: UnitRun, phase: Phase, part: int) -> str:
    """Colour of the slots of one phase on one chunk or direction."""
    return style.chunk_shade(style.KIND_COLOR[PHASE_KIND[phase]], part, run.num_parts)


def legend_handles(runs: Sequence[UnitRun]) -> list[style.Handle]:
    """One entry for each thing in the pictures of these runs."""
    joint = any(slot.overlaps_next for run in runs for slots in run.order for slot in slots)
    handles: list[style.Handle] = []
    for phase, name in PHASE_NAMES.items():
        users = [run for run in runs if any(box.slot.phase is phase for _, box in _boxes(run))]
        if users:
            widest = max(users, key=lambda run: run.num_parts)
            label = name + _parts_named(widest, runs)
            parts = range(widest.num_parts)
            patches = (Patch(color=box_color(widest, phase, k), lw=0, label=label) for k in parts)
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


def _edge_pt(lanes: Lanes, time: float) -> float:
    return min(_EDGE_PT, lanes.unit_pt * time * _EDGE_SHARE)


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
        collection.set_linewidth(min(_FRAME_PT, _EDGE_SHARE * min(sides_pt)))


def _number_microbatches(lanes: Lanes, run: UnitRun) -> None:
    digits = max(len(str(box.slot.microbatch)) for _, box in _boxes(run))
    height_pt = 0.62 * lanes.row_pt * (_BOTTOM - _TOP)
    for rank, box in _boxes(run):
        width_pt = lanes.unit_pt * (box.end - box.start) - _NUMBER_MARGIN_PT
        size_pt = min(_LARGEST_NUMBER_PT, height_pt, width_pt / (digits * _DIGIT_EM))
        if size_pt < _SMALLEST_NUMBER_PT:
            continue
        color = box_color(run, box.slot.phase, _part(run, box.slot))
        lanes.axes.text(
            (box.start + box.end) / 2,
            rank + 0.5,
            str(box.slot.microbatch),
            fontsize=size_pt,
            color=style.ink_on(color),
            ha="center",
            va="center_baseline",
            clip_on=True,
        )


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
