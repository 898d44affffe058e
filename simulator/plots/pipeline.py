"""What did every stage do at every moment of the step?

Stages down, time to the right. A box is a microbatch on a stage; its bands are shares of
its time (the work, recomputation, communication that blocks inside it). Thin lanes below
a row are collectives and transfers that run beside the work. Hatched gaps are waits: grey
for the pipeline bubble, coloured for communication that nothing hides.

Where boxes would be too narrow to see, the whole step is shown blended (every
pixel is the time-weighted mean of what happened in it) above close-ups of its first,
middle and last moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from simulator.plots import style
from simulator.plots.microbatch_boxes import add_number, edge_pt
from simulator.program.ir import Category, Kind
from simulator.results.step import StepResult
from simulator.results.views.pipeline_boxes import (
    Boxes,
    Look,
    RowLayout,
    Scene,
    build_scene,
    row_layout,
)
from simulator.results.views.rank_classes import spread
from simulator.units import format_seconds

_LEFT_IN, _TOP_IN, _AXIS_IN = 0.85, 0.72, 0.48
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - 0.2
_PANEL_GAP_IN = 0.3
_HEADED_GAP_IN = 0.36
"""Between the rows of one step and those of the next, with a heading."""
_HOST_LANE_IN = 0.1
"""What a row is higher for every stream between a GPU and its host."""
_NARROW_PT = 3.0
"""Below this typical box width the picture turns into an overview with close-ups."""
_TRANSFER_EDGE_PT = 0.6
"""Transfers are drawn at least this wide; most are too short to be seen otherwise."""
_CLOSE_UPS = ("first", "middle", "last")
_CLOSE_UP_BOX_PT = 12.0
"""Width of a typical box in a close-up."""
_CLOSE_UP_ROWS = 16
"""Most rows in a close-up."""
_OVERVIEW_COLUMNS = round(_WIDTH_IN * style.PNG_DPI)
_NUMBER_SIZES_PT, _NUMBER_MARGIN_PT = (5.0, 8.0), 1.0


@dataclass(frozen=True)
class _View:
    axes: Axes
    start_s: float
    end_s: float
    width_pt: float
    row_pt: float

    def points(self, seconds: float) -> float:
        """Width of a span on paper [pt]."""
        return seconds * self.width_pt / max(self.end_s - self.start_s, 1e-30)


def build_pipeline_figure(result: StepResult, *, max_stages: int | None = None) -> Figure:
    """The pipeline picture.

    Args:
        result: The step to show.
        max_stages: Show at most so many rank classes, evenly spread from the first to
            the last; None shows all.
    """
    classes = spread(len(result.timeline.program.classes), max_stages)
    layout = row_layout(result)
    scene = build_scene(result, classes, layout)
    box_pt = _typical_box_s(scene) * _WIDTH_IN * 72 / max(result.step_time_s, 1e-30)
    handles = _legend_handles(scene)
    draw = _one_panel if box_pt >= _NARROW_PT else _overview
    figure = draw(result, scene, layout, classes, style.legend_height_in(handles))
    style.add_title(figure, result.title, _subtitle(result), left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def build_pipelines_figure(
    title: str, runs: Sequence[tuple[str, StepResult]], *, max_stages: int | None = None
) -> Figure:
    """Steps of several jobs under one another, by name, on one time axis from zero."""
    classes = [spread(len(result.timeline.program.classes), max_stages) for _, result in runs]
    row_in = float(np.clip(5.5 / sum(map(len, classes)), 0.08, 0.36))
    heights_in = [row_in * len(rows) for rows in classes]
    layouts = [row_layout(result) for _, result in runs]
    scenes = [
        build_scene(result, rows, layout)
        for (_, result), rows, layout in zip(runs, classes, layouts, strict=True)
    ]
    handles = {_plain_label(each): each for each in _all_handles(scenes)}
    tops_in = accumulate(
        heights_in, lambda top, each: top + each + _HEADED_GAP_IN, initial=_TOP_IN + _HEADED_GAP_IN
    )
    *starts_in, end_in = tops_in
    legend = list(handles.values())
    figure = style.new_figure(end_in - _HEADED_GAP_IN + _AXIS_IN + style.legend_height_in(legend))
    longest_s = max(result.step_time_s for _, result in runs)
    for (name, result), rows, layout, scene, top_in, height_in in zip(
        runs, classes, layouts, scenes, starts_in, heights_in, strict=True
    ):
        box_in = (_LEFT_IN, top_in, _WIDTH_IN, height_in)
        view = _add_view(figure, box_in, len(rows), (0.0, longest_s))
        if view.points(_typical_box_s(scene)) >= _NARROW_PT:
            _draw_boxes(view, scene)
        else:
            _draw_blended(view, scene, layout, len(rows))
        _label_rows(view, result, rows, centre=sum(layout.compute) / 2)
        style.add_heading(view.axes, f"{name}: {_subtitle(result)}")
        style.show_seconds(view.axes.xaxis, longest_s)
        if top_in != starts_in[-1]:
            view.axes.tick_params(axis="x", labelbottom=False, length=0)
            view.axes.set_xlabel("")
    style.add_title(figure, title, "one time axis for all", left=_LEFT_IN)
    style.add_legend(figure, legend, left=_LEFT_IN)
    return figure


def _all_handles(scenes: Sequence[Scene]) -> list[style.Handle]:
    """Entries of all scenes, those with the most chunks last."""
    by_chunks = sorted(scenes, key=_num_chunks)
    return [handle for scene in by_chunks for handle in _legend_handles(scene)]


def _plain_label(handle: style.Handle) -> str:
    """What an entry is called, but for its chunks."""
    patch = handle[0] if isinstance(handle, tuple) else handle
    return str(patch.get_label()).partition(" (")[0]


def _subtitle(result: StepResult) -> str:
    return (
        f"step {format_seconds(result.step_time_s)}   |   MFU {100 * result.mfu:.1f} %"
        f"   |   bubble {100 * result.bubble_fraction:.1f} %"
    )


def _one_panel(
    result: StepResult, scene: Scene, layout: RowLayout, classes: Sequence[int], legend_in: float
) -> Figure:
    row_in = float(np.clip(4.6 / len(classes), 0.13, 0.55)) + _HOST_LANE_IN * len(layout.host)
    height_in = row_in * len(classes)
    figure = style.new_figure(_TOP_IN + height_in + _AXIS_IN + legend_in)
    box_in = (_LEFT_IN, _TOP_IN, _WIDTH_IN, height_in)
    view = _add_view(figure, box_in, len(classes), (0.0, result.step_time_s))
    _draw_boxes(view, scene)
    _label_rows(view, result, classes, centre=math.fsum(layout.compute) / 2)
    style.show_seconds(view.axes.xaxis, result.step_time_s)
    return figure


def _overview(
    result: StepResult, scene: Scene, layout: RowLayout, classes: Sequence[int], legend_in: float
) -> Figure:
    rows = len(classes)
    near = [classes[i] for i in spread(rows, _CLOSE_UP_ROWS)]
    thin_in = float(np.clip(2.4 / rows, 0.055, 0.3))
    row_in = float(np.clip(3.5 / len(near), 0.2, 0.45))
    below_in = _TOP_IN + thin_in * rows + _AXIS_IN + 0.3
    figure = style.new_figure(below_in + row_in * len(near) + _AXIS_IN + legend_in)
    box_in = (_LEFT_IN, _TOP_IN, _WIDTH_IN, thin_in * rows)
    whole = _add_view(figure, box_in, rows, (0.0, result.step_time_s))
    _draw_blended(whole, scene, layout, rows)
    _label_rows(whole, result, classes)
    style.show_seconds(whole.axes.xaxis, result.step_time_s)
    _add_close_ups(figure, whole, result, near, (below_in, row_in * len(near)))
    return figure


def _add_close_ups(
    figure: Figure,
    whole: _View,
    result: StepResult,
    classes: Sequence[int],
    place_in: tuple[float, float],
) -> None:
    top_in, height_in = place_in
    layout = row_layout(result)
    scene = build_scene(result, classes, layout)
    step_s = result.step_time_s
    width_in = (_WIDTH_IN - _PANEL_GAP_IN * (len(_CLOSE_UPS) - 1)) / len(_CLOSE_UPS)
    readable_s = width_in * 72 / _CLOSE_UP_BOX_PT * _typical_box_s(scene)
    span_s = min(step_s / len(_CLOSE_UPS), readable_s)
    for place, name in enumerate(_CLOSE_UPS):
        start_s = (step_s - span_s) * place / (len(_CLOSE_UPS) - 1)
        window = (start_s, start_s + span_s)
        box_in = (_LEFT_IN + place * (width_in + _PANEL_GAP_IN), top_in, width_in, height_in)
        view = _add_view(figure, box_in, len(classes), window)
        _draw_boxes(view, scene)
        named = classes if place == 0 else ()
        _label_rows(view, result, named, centre=math.fsum(layout.compute) / 2)
        style.show_seconds(view.axes.xaxis, step_s, ticks=4)
        style.add_heading(view.axes, f"{name} {format_seconds(span_s)}")
        _mark_window(whole, window)


def _add_view(
    figure: Figure,
    box_in: tuple[float, float, float, float],
    rows: int,
    span_s: tuple[float, float],
) -> _View:
    left, top, width, height = box_in
    axes = style.add_axes_in(figure, left=left, top=top, width=width, height=height)
    axes.set_xlim(*span_s)
    axes.set_ylim(rows, 0)
    return _View(axes, *span_s, width_pt=width * 72, row_pt=height * 72 / rows)


def _label_rows(
    view: _View, result: StepResult, classes: Sequence[int], *, centre: float = 0.5
) -> None:
    names = [result.timeline.program.classes[index].name for index in classes]
    style.name_rows(view.axes, names, view.row_pt, centre=centre)


def _typical_box_s(scene: Scene) -> float:
    """Half of the busy time is spent in boxes at least this long [s].

    A median over time, not over boxes, so that a few boxes split finely do not decide.
    """
    boxes = [np.subtract(b.end_s, b.start_s) for b in scene.work.values()]
    spans_s = np.sort(np.concatenate(boxes or [np.zeros(1)]))
    busy_s = np.cumsum(spans_s)
    return float(spans_s[np.searchsorted(busy_s, busy_s[-1] / 2)])


def _look_color(look: Look, num_chunks: int) -> str:
    """Colour of the boxes of one look."""
    if look.part is not None:
        return style.CATEGORY_COLOR[look.part]
    return style.chunk_shade(style.KIND_COLOR[look.kind], look.chunk, num_chunks)


def _num_chunks(scene: Scene) -> int:
    return 1 + max((look.chunk for look in scene.work), default=0)


def _draw_boxes(view: _View, scene: Scene) -> None:
    chunks = _num_chunks(scene)
    for category, boxes in scene.waits.items():
        collection = _add_boxes(view, boxes, f"wait {category}")
        style.hatch_waits(collection, category)
    for look, boxes in scene.work.items():
        collection = _add_boxes(view, boxes, f"{look.kind} {look.chunk} {look.part or ''}".strip())
        collection.set_facecolor(_look_color(look, chunks))
        collection.set_edgecolor("white")
        widths_s = [path.get_extents().width for path in collection.get_paths()]
        collection.set_linewidth([edge_pt(view.points(width_s)) for width_s in widths_s])
    for look, boxes in scene.lanes.items():
        collection = _add_boxes(view, boxes, f"lane {look.kind}")
        collection.set_facecolor(style.KIND_COLOR[look.kind])
        collection.set_edgecolor(style.KIND_COLOR[look.kind])
        collection.set_linewidth(_TRANSFER_EDGE_PT if look.kind is Kind.SEND_RECV else 0.0)
    _number_microbatches(view, scene, chunks)


def _add_boxes(view: _View, boxes: Boxes, name: str) -> PolyCollection:
    corners = boxes.corners()
    in_view = (corners[:, 0, 0] < view.end_s) & (corners[:, 1, 0] > view.start_s)
    collection = PolyCollection(list(corners[in_view]), closed=True, gid=name)
    view.axes.add_collection(collection, autolim=False)
    return collection


def _number_microbatches(view: _View, scene: Scene, chunks: int) -> None:
    inside = [la for la in scene.labels if view.start_s <= la.start_s and la.end_s <= view.end_s]
    digits = max((len(str(label.microbatch)) for label in inside), default=1)
    for label in inside:
        width_pt = view.points(label.end_s - label.start_s) - _NUMBER_MARGIN_PT
        height_pt = 0.9 * view.row_pt * (label.bottom - label.top)
        centre = (label.start_s + label.end_s) / 2, (label.top + label.bottom) / 2
        room_pt, face = (width_pt, height_pt), _look_color(label.look, chunks)
        add_number(
            view.axes, label.microbatch, centre, room_pt,
            digits=digits, sizes_pt=_NUMBER_SIZES_PT, face=face,
        )  # fmt: skip


def _draw_blended(view: _View, scene: Scene, layout: RowLayout, rows: int) -> None:
    image = blend(scene, layout, rows, view.end_s, _OVERVIEW_COLUMNS)
    extent = (0, view.end_s, rows, 0)
    view.axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest")
    if view.row_pt >= style.LINED_ROW_PT:
        view.axes.hlines(np.arange(1, rows), 0, view.end_s, color="white", linewidth=0.8)


def blend(
    scene: Scene, layout: RowLayout, rows: int, step_s: float, columns: int
) -> NDArray[np.float64]:
    """Mean colour of each row in each slice of the step, shape (rows, columns, 3)."""
    edges_s = np.linspace(0.0, step_s, columns + 1)
    height = layout.compute[1] - layout.compute[0]
    chunks = _num_chunks(scene)
    painted = [(boxes, _look_color(look, chunks)) for look, boxes in scene.work.items()]
    painted += [(boxes, _wait_color(category)) for category, boxes in scene.waits.items()]
    image = np.ones((rows, columns, 3))
    for boxes, color in painted:
        start_s, end_s, top, bottom = (
            np.asarray(c) for c in (boxes.start_s, boxes.end_s, boxes.top, boxes.bottom)
        )
        for row in range(rows):
            here = top.astype(np.int64) == row
            busy_s = _busy_s(start_s[here], end_s[here], (bottom - top)[here] / height, edges_s)
            share = busy_s * columns / step_s
            image[row] += share[:, None] * (np.asarray(to_rgb(color)) - 1.0)
    return np.clip(image, 0.0, 1.0)


def _busy_s(
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    weight: NDArray[np.float64],
    edges_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Weighted time inside boxes that do not overlap, per slice between the edges [s]."""
    if not start_s.size:
        return np.zeros(edges_s.size - 1)
    order = np.argsort(start_s, kind="stable")
    moments_s = np.stack([start_s[order], end_s[order]], 1).ravel()
    done_s = np.cumsum((end_s - start_s)[order] * weight[order])
    before_s = np.concatenate([[0.0], done_s[:-1]])
    return np.diff(np.interp(edges_s, moments_s, np.stack([before_s, done_s], 1).ravel()))


def _wait_color(category: Category) -> str:
    return style.mix(style.wait_face(category), style.wait_hatch_color(category), 0.3)


def _mark_window(view: _View, window_s: tuple[float, float]) -> None:
    start_s, end_s = window_s
    top, bottom = sorted(view.axes.get_ylim())
    frame = Rectangle((start_s, top), end_s - start_s, bottom - top, fill=False, linewidth=1.2)
    frame.set(edgecolor=style.INK, clip_on=False, zorder=5)
    view.axes.add_patch(frame)


def _legend_handles(scene: Scene) -> list[Patch | tuple[Patch, ...]]:
    chunks = _num_chunks(scene)
    handles: list[Patch | tuple[Patch, ...]] = []
    for kind in style.KIND_COLOR:
        looks = sorted((k for k in scene.work if k.kind is kind and k.part is None), key=_chunk)
        name = style.words(kind) + (f" (chunks 0 to {chunks - 1})" if len(looks) > 1 else "")
        patches = tuple(Patch(color=_look_color(k, chunks), lw=0, label=name) for k in looks)
        handles += [patches if len(patches) > 1 else patches[0]] if patches else []
    for part in style.CATEGORY_COLOR:
        if any(look.part is part for look in scene.work):
            color = style.CATEGORY_COLOR[part]
            handles.append(Patch(color=color, lw=0, label=style.words(part)))
    for kind in style.KIND_COLOR:
        if Look(kind) in scene.lanes and Look(kind) not in scene.work:
            color = style.KIND_COLOR[kind]
            handles.append(Patch(color=color, lw=0, label=style.words(kind)))
    for category in style.CATEGORY_COLOR:
        if category in scene.waits:
            handles.append(style.wait_patch(category, style.wait_words(category)))
    return handles


def _chunk(look: Look) -> int:
    return look.chunk
