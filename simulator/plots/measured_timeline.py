"""How does the predicted step lie beside the one that torch's profiler saw?

Two panels on one time axis, predicted above measured. A row per pipeline stage; its thin lane below
holds communication. Boxes are forward and backward of a microbatch, and the optimizer; what is
blank in a row is waiting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.engine.timeline import STREAMS
from simulator.plots import style
from simulator.program.ir import Category, Kind, Stream
from simulator.results.step import StepResult
from simulator.units import format_seconds

_LEFT_IN, _TOP_IN, _AXIS_IN, _HEADING_IN = 0.85, 0.72, 0.48, 0.28
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - 0.2
_WORK, _LANE = (0.08, 0.66), (0.70, 0.90)
"""Where in a row of height one boxes of work and of communication lie, from the top."""
_MOST_ROWS = 16
_EDGE_PT = 0.4

_WORK_CATEGORIES = {
    Category.FORWARD,
    Category.BACKWARD,
    Category.RECOMPUTE,
    Category.OPTIMIZER,
    Category.HOST,
}


class Box(NamedTuple):
    """Something that ran.

    Attributes:
        kind: What, for its colour.
        is_lane: Whether it belongs to the lane of communication.
        start_s, end_s: When [s].
    """

    kind: Kind
    is_lane: bool
    start_s: float
    end_s: float


Rows = Mapping[int, Sequence[Box]]
"""Boxes of each pipeline stage."""


def draw_measured_timeline(
    title: str,
    predicted: Rows,
    measured: Rows,
    step_s: tuple[float, float],
    path: str | Path,
    *,
    is_median: bool = True,
) -> None:
    """Write the picture; the suffix names the format (.png, .svg, .pdf).

    Args:
        title: The job in one line.
        predicted: What the simulator ran when.
        measured: What the profiler saw.
        step_s: Step time predicted and measured [s].
        path: File to write.
        is_median: Whether that is the median of steps without a profiler, not the step shown.
    """
    figure = build_measured_timeline(title, predicted, measured, step_s, is_median=is_median)
    style.save(figure, path)


def build_measured_timeline(
    title: str,
    predicted: Rows,
    measured: Rows,
    step_s: tuple[float, float],
    *,
    is_median: bool = True,
) -> Figure:
    """The picture. For the arguments see :func:`draw_measured_timeline`."""
    stages = sorted(measured)[:_MOST_ROWS]
    handles = _legend(predicted, measured)
    row_in = 0.5 if len(stages) <= 4 else 0.3  # few rows have room
    panel_in = row_in * len(stages)
    height_in = _TOP_IN + 2 * (panel_in + _HEADING_IN) + _AXIS_IN
    figure = style.new_figure(height_in + style.legend_height_in(handles))
    ends = [box.end_s for rows in (predicted, measured) for boxes in rows.values() for box in boxes]
    longest_s = max(*step_s, *ends)
    top = _TOP_IN
    panels = (("predicted", predicted, step_s[0]), ("measured", measured, step_s[1]))
    for place, (name, rows, own_s) in enumerate(panels):
        axes = style.add_axes_in(
            figure, left=_LEFT_IN, top=top + _HEADING_IN, width=_WIDTH_IN, height=panel_in
        )
        axes.set_xlim(0, longest_s * 1.01)
        axes.set_ylim(len(stages), 0)
        _draw_rows(axes, [rows.get(stage, ()) for stage in stages])
        axes.axvline(own_s, color=style.INK, linewidth=1.0, linestyle=(0, (3, 2)))
        style.add_heading(axes, f"{name}: step {format_seconds(own_s)}")
        names = [f"stage {stage}" for stage in stages]
        style.name_rows(axes, names, row_in * 72, centre=math.fsum(_WORK) / 2)
        if place:
            style.show_seconds(axes.xaxis, longest_s)
        else:
            axes.tick_params(axis="x", labelbottom=False)
        top += panel_in + _HEADING_IN
    style.add_title(figure, title, _subtitle(step_s, is_median=is_median), left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def predicted_rows(result: StepResult) -> Rows:
    """What the simulated step ran, by pipeline stage."""
    timeline, rows = result.timeline, dict[int, list[Box]]()
    compute = STREAMS.index(Stream.COMPUTE)
    classes = timeline.program.classes
    seen: set[int] = set()
    first_of_stage = [
        index
        for index, rank_class in enumerate(classes)
        if not (rank_class.stage in seen or seen.add(rank_class.stage))  # type: ignore[func-returns-value]
    ]
    columns = zip(
        timeline.rank_class, timeline.stream, timeline.operations, timeline.start_s, timeline.end_s,
        strict=True,
    )  # fmt: skip
    for index, stream, operation, start_s, end_s in columns:
        if index not in first_of_stage:
            continue
        boxes = rows.setdefault(classes[index].stage, [])
        is_lane = stream != compute or operation.category not in _WORK_CATEGORIES
        boxes.append(Box(operation.kind, is_lane, float(start_s), float(end_s)))
    return rows


def _subtitle(step_s: tuple[float, float], *, is_median: bool) -> str:
    error = 100 * (step_s[0] / step_s[1] - 1)
    than = "the measured median" if is_median else "the measured one"
    text = f"predicted step {abs(error):.1f} % {'longer' if error > 0 else 'shorter'} than {than}"
    boxes = "; boxes: one profiled step" if is_median else ""
    return f"{text}; dashed: the end of either step{boxes}"


def _draw_rows(axes: Axes, rows: Sequence[Iterable[Box]]) -> None:
    corners: dict[tuple[Kind, bool], list[list[tuple[float, float]]]] = {}
    for row, boxes in enumerate(rows):
        for box in boxes:
            low, high = _LANE if box.is_lane else _WORK
            x0, x1, y0, y1 = box.start_s, box.end_s, row + low, row + high
            corners.setdefault((box.kind, box.is_lane), []).append(
                [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
            )
    for (kind, is_lane), polygons in corners.items():
        colour = style.KIND_COLOR[kind]
        edge = colour if is_lane else "white"
        axes.add_collection(
            PolyCollection(polygons, facecolor=colour, edgecolor=edge, linewidth=_EDGE_PT),
            autolim=False,
        )


def _legend(*panels: Rows) -> list[style.Handle]:
    found = {box.kind for rows in panels for boxes in rows.values() for box in boxes}
    return [
        Patch(facecolor=style.KIND_COLOR[kind], label=kind.value.replace("_", " "))
        for kind in Kind
        if kind in found
    ]
