"""How does a collective move, step by step?

Above, a panel per step: a row per rank, a column per piece of the buffer, and in each cell
how many ranks' contributions it holds. Arrows show what moved. Below, every link over time.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from simulator.engine.chunk_algorithms import Contents, contents
from simulator.engine.chunked import ChunkedCollective, ChunkTimeline
from simulator.plots import style
from simulator.units import format_bytes, format_rate, format_seconds

_LEFT_IN, _RIGHT_IN, _TOP_IN = 0.85, 0.25, 0.75
_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - _RIGHT_IN
_MOST_PANELS = 15
_PANEL_GAP_IN, _HEADING_IN = 0.3, 0.3
_CELL_IN, _SMALLEST_NUMBERED_IN = 0.34, 0.17
_MOST_ARROWS, _ARROW_PLACE = 12, 0.86
"""Arrows of a panel, and where in its column one stands."""
_LINK_IN, _THINNEST_LINK_IN, _TALLEST_LINKS_IN = 0.24, 0.05, 4.0
_MOST_EDGED = 400
_COMPLETE, _PARTIAL = style.GREEN, style.SKY


def build_chunk_steps_figure(
    collective: ChunkedCollective, timeline: ChunkTimeline, link_bytes_per_s: float
) -> Figure:
    """Who holds what after each step, above the links over time.

    Args:
        collective: What ran, alone.
        timeline: When its chunks were on their way.
        link_bytes_per_s: Rate of a link; a chunk holds its link for its bytes over this.
    """
    ranks = len(collective.ranks)
    state = contents(collective.algorithm, ranks, collective.chunks)
    shown = _shown_steps(state.steps)
    per_line, cell_in = _panel_grid(len(shown), ranks, state.held.shape[2])
    panel_in = ranks * cell_in + _HEADING_IN
    lines = -(-len(shown) // per_line)
    links = _links(timeline)
    link_in = min(_LINK_IN, max(_THINNEST_LINK_IN, _TALLEST_LINKS_IN / max(1, len(links))))
    above_in = _TOP_IN + lines * (panel_in + 0.12)
    handles = _legend(state)
    below_in = 0.5 + style.legend_height_in(handles) + 0.1
    figure = style.new_figure(above_in + 0.35 + link_in * max(1, len(links)) + below_in)
    panels = style.add_inch_axes(figure, top=_TOP_IN, height=above_in - _TOP_IN)
    width_in = state.held.shape[2] * cell_in
    for index, step in enumerate(shown):
        line, place = divmod(index, per_line)
        x = _LEFT_IN + place * (width_in + _PANEL_GAP_IN)
        y = line * (panel_in + 0.12) + _HEADING_IN
        _draw_panel(panels, state, step, (x, y), cell_in, name_ranks=place == 0)
    height_in = link_in * max(1, len(links))
    axes = style.add_axes_in(
        figure, left=_LEFT_IN, top=above_in + 0.35, width=_WIDTH_IN, height=height_in
    )
    style.name_rows(axes, _link_names(links), link_in * 72)
    _draw_links(axes, timeline, links, link_bytes_per_s)
    title, subtitle = _titles(collective, timeline, link_bytes_per_s)
    style.add_title(figure, title, subtitle, left=_LEFT_IN)
    style.add_legend(figure, handles, left=_LEFT_IN)
    return figure


def _titles(
    collective: ChunkedCollective, timeline: ChunkTimeline, link_bytes_per_s: float
) -> tuple[str, str]:
    ranks = len(collective.ranks)
    title = f"{style.words(collective.algorithm)} of {format_bytes(collective.num_bytes)}"
    pieces = f", {collective.chunks} chunks per message" if collective.chunks > 1 else ""
    return (
        f"{title} over {ranks} ranks",
        f"{format_seconds(timeline.seconds)} on links of {format_rate(link_bytes_per_s)}{pieces}"
        f"   |   every rank sends up to {format_bytes(max(timeline.sent_bytes(ranks), default=0))}",
    )


def _shown_steps(steps: int) -> Sequence[int]:
    """The start and every step; of many, as many as fit, evenly spaced."""
    if steps < _MOST_PANELS:
        return range(steps + 1)
    return [int(step) for step in np.linspace(0, steps, _MOST_PANELS).round()]


def _panel_grid(panels: int, ranks: int, columns: int) -> tuple[int, float]:
    """Panels side by side, and the size of a cell [in]: large cells, at most three lines."""
    for per_line in range(min(panels, 7), 0, -1):
        room_in = (_WIDTH_IN + _PANEL_GAP_IN) / per_line - _PANEL_GAP_IN
        cell_in = min(_CELL_IN, room_in / columns, 3.2 / ranks)
        if cell_in >= _SMALLEST_NUMBERED_IN or per_line * 3 <= panels:
            return per_line, cell_in
    return 1, min(_CELL_IN, _WIDTH_IN / columns, 3.2 / ranks)


def _draw_panel(
    axes: Axes,
    state: Contents,
    step: int,
    corner: tuple[float, float],
    cell_in: float,
    *,
    name_ranks: bool,
) -> None:
    x, y = corner
    counts, moves = state.counts[step], state.moves[step]
    heading = f"after step {step}" if step else "start"
    style.write(axes, x, y - 0.12, heading, bold=True)
    for rank, column in np.ndindex(counts.shape):
        face = _face(int(counts[rank, column]), state.wanted)
        cell = (x + column * cell_in, y + rank * cell_in)
        axes.add_patch(
            Rectangle(cell, cell_in, cell_in, facecolor=face, edgecolor="#BBBBBB", linewidth=0.5)
        )
        if cell_in >= _SMALLEST_NUMBERED_IN and counts[rank, column] and state.wanted > 1:
            centre = (cell[0] + cell_in / 2, cell[1] + cell_in / 2)
            text, size_pt = str(counts[rank, column]), min(8.0, 30 * cell_in)
            color = style.ink_on(face)
            style.write(axes, *centre, text, size_pt=size_pt, color=color, align="center")
    for rank, column in sorted({(receiver, column) for _, receiver, column in moves}):
        cell = (x + column * cell_in + 0.012, y + rank * cell_in + 0.012)
        side = cell_in - 0.024
        axes.add_patch(
            Rectangle(cell, side, side, facecolor="none", edgecolor=style.INK, linewidth=1.1)
        )
    if name_ranks:
        for rank in range(len(counts)):
            if cell_in >= 0.12 or rank % 4 == 0:
                style.write(
                    axes, x - 0.08, y + (rank + 0.5) * cell_in, f"rank {rank}", align="right"
                )
    if len(moves) <= _MOST_ARROWS:
        for sender, receiver, column in moves:
            _draw_arrow(axes, x + (column + _ARROW_PLACE) * cell_in, y, sender, receiver, cell_in)


def _draw_arrow(
    axes: Axes, x: float, top: float, sender: int, receiver: int, cell_in: float
) -> None:
    inside = 0.4 if receiver > sender else 0.6
    begin, end = top + (sender + 0.5) * cell_in, top + (receiver + inside) * cell_in
    arrow = FancyArrowPatch(
        (x, begin), (x, end), arrowstyle="-|>", mutation_scale=6, color=style.INK,
        linewidth=0.8, shrinkA=0, shrinkB=0,
    )  # fmt: skip
    axes.add_patch(arrow)


def _face(count: int, wanted: int) -> str:
    if count >= wanted:
        return _COMPLETE
    return style.mix("#FFFFFF", _PARTIAL, 0.2 + 0.8 * count / wanted) if count else "#FFFFFF"


def _legend(state: Contents) -> list[style.Handle]:
    complete = Patch(facecolor=_COMPLETE, label="complete")
    frame = Patch(facecolor="white", edgecolor=style.INK, label="received in this step")
    if state.wanted == 1:
        return [
            Patch(facecolor="white", edgecolor="#BBBBBB", label="not yet received"),
            complete,
            frame,
        ]
    own = Patch(facecolor=_face(1, state.wanted), label="own contribution only")
    partial = Patch(
        facecolor=_face(max(2, state.wanted - 1), state.wanted),
        label="sum over that number of ranks",
    )
    return [own, partial, complete, frame]


def _links(timeline: ChunkTimeline) -> Sequence[tuple[int, int, int]]:
    return sorted(set(_link_of_each(timeline)))


def _link_of_each(timeline: ChunkTimeline) -> Sequence[tuple[int, int, int]]:
    keys = zip(timeline.channel, timeline.source, timeline.destination, strict=True)
    return [(int(channel), int(source), int(target)) for channel, source, target in keys]


def _link_names(links: Sequence[tuple[int, int, int]]) -> Sequence[str]:
    return [f"{source} to {destination}" for _, source, destination in links] or ["none"]


def _draw_links(
    axes: Axes,
    timeline: ChunkTimeline,
    links: Sequence[tuple[int, int, int]],
    link_bytes_per_s: float,
) -> None:
    """A row per link; boxes are chunks that flow, thin lines the latency behind them."""
    style.add_heading(axes, "every link over time, coloured by piece of the buffer")
    seconds = timeline.seconds or 1.0
    axes.set_xlim(0, seconds)
    axes.set_ylim(max(1, len(links)), 0)
    row_of = {link: row for row, link in enumerate(links)}
    colors, last = mpl.colormaps["viridis"], max(1, int(timeline.chunk.max(initial=0)))
    boxes, faces, waits = [], [], []
    for index, key in enumerate(_link_of_each(timeline)):
        row = row_of[key]
        start_s, end_s = timeline.start_s[index], timeline.end_s[index]
        sent_s = start_s + timeline.num_bytes[index] / link_bytes_per_s
        top, bottom = row + 0.1, row + 0.9
        boxes.append([(start_s, top), (sent_s, top), (sent_s, bottom), (start_s, bottom)])
        faces.append(style.mix(to_hex(colors(timeline.chunk[index] / last)), "#FFFFFF", 0.25))
        waits.append([(sent_s, row + 0.5), (end_s, row + 0.5)])
    edge_pt = 0.5 if len(boxes) < _MOST_EDGED else 0.1
    flows = PolyCollection(boxes, facecolors=faces, edgecolors="white", linewidths=edge_pt)
    axes.add_collection(flows, autolim=False)
    axes.add_collection(LineCollection(waits, colors=style.PALE_INK, linewidths=0.7), autolim=False)
    style.show_seconds(axes.xaxis, seconds)
