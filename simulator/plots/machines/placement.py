"""Which GPU holds which rank, and which links does every group of ranks cross?

Above, the map of ranks, coloured by pipeline stage; dots mark the ranks that rank 0 exchanges data
with. Nodes (or racks) are boxes, GPUs are cells. A row is a step of the slowest word of the rank
order. What repeats is folded: the first few of many rows and boxes, and the last. Below, a line per
kind of group, and a bar that says which part of its hops crosses which links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from simulator.plots import style
from simulator.program.grid.placement import LEVEL_NAMES, Level, PlacedGroups, Placement
from simulator.units import format_rate

_LEFT_IN, RIGHT_IN = 0.75, 0.2
"""Margins beside the map [in]."""
_MAP_WIDTH_IN = style.WIDTH_IN - _LEFT_IN - RIGHT_IN
_CELLS_PER_LINE = 18
"""GPUs side by side in a box; a rack has several lines of them."""
_CELL_IN, _SMALLEST_CELL_IN, _CELL_HEIGHT_IN = 0.92, 0.24, 0.3
_HEADER_IN, _PAD_IN, _GAP_IN, _FOLD_IN = 0.19, 0.05, 0.12, 0.5
_EDGE_IN = 0.02
"""Room for the upper edge of the first boxes."""
_TALLEST_MAP_IN = 7.2
_SMALL_PT, _CHARACTER_EM = 7.5, 0.6
_STAGE_COLORS = (
    style.SKY, style.ORANGE, style.GREEN, style.PURPLE,
    style.YELLOW, style.BLUE, style.VERMILLION, "#999999",
)  # fmt: skip
_TINT = 0.5
_STEP_IN = 0.085
"""Between the dots of a cell."""

GROUP_COLOR: Mapping[str, str] = {
    "tp": style.VERMILLION, "cp": "#882255", "dp": style.BLUE, "dp x cp": style.BLUE,
    "etp": "#B8860B", "ep": "#7A4419", "edp": style.GREEN, "pp": "#222222",
}  # fmt: skip
"""Colour of the dots that mark a kind of group."""

_TOP_IN, _HEAD_IN, _LINE_IN = 0.78, 0.2, 0.29

_COLUMNS_IN = (_LEFT_IN, 1.55, 4.05, 5.3, 6.85)

_RATE_IN = style.WIDTH_IN - RIGHT_IN

_BAR_IN, _BAR_PT, _CHARACTER_IN = 1.75, 7.5, 0.072

LEVEL_COLOR: Mapping[Level, str] = {
    Level.SCALE_UP: style.SKY,
    Level.LEAF: style.YELLOW,
    Level.SPINE: style.ORANGE,
    Level.CORE: style.VERMILLION,
}
"""The wider, the warmer."""


@dataclass(frozen=True)
class MapLayout:
    """Which boxes are drawn, in rows, and how large; None stands for what is folded.

    Attributes:
        rows: Boxes of each row by their number, from the top.
        labels: One per row; empty where rows have no meaning of their own.
        per_row: Boxes that a whole row would have.
        lines: Lines of cells in a box.
        cells: Cells in a line.
        cell_in: Width of a cell [in].
    """

    rows: Sequence[Sequence[int | None] | None]
    labels: Sequence[str]
    per_row: int
    lines: int
    cells: int
    cell_in: float

    @property
    def box_in(self) -> tuple[float, float]:
        """Width and height of a box [in]."""
        width = self.cells * self.cell_in + 2 * _PAD_IN
        return width, _HEADER_IN + self.lines * _CELL_HEIGHT_IN + _PAD_IN

    @property
    def height_in(self) -> float:
        """Height of the map [in]."""
        folded = sum(row is None for row in self.rows)
        row_in = self.box_in[1] + _GAP_IN
        return _EDGE_IN + (len(self.rows) - folded) * row_in + folded * _FOLD_IN / 2


def layout_of(placement: Placement) -> MapLayout:
    """What is drawn of a placement, and how large."""
    domain = min(placement.domain_gpus, placement.gpus)
    lines = -(-domain // _CELLS_PER_LINE)
    cells = -(-domain // lines)
    boxes = -(-placement.gpus // domain)
    slowest = _slowest_word(placement)
    steps = int(placement.coordinates[slowest].max()) + 1 if slowest else 1
    in_rows = boxes % steps == 0 and boxes > steps
    fitting = max(1, int((_MAP_WIDTH_IN + _GAP_IN) / (cells * _SMALLEST_CELL_IN + 0.24)))
    per_row = boxes // steps if in_rows else min(boxes, fitting)
    width_in = _MAP_WIDTH_IN - (_FOLD_IN if per_row > fitting else 0.0)
    shown = min(per_row, fitting)
    cell_in = min(_CELL_IN, ((width_in + _GAP_IN) / shown - _GAP_IN - 2 * _PAD_IN) / cells)
    box_height_in = _HEADER_IN + lines * _CELL_HEIGHT_IN + _PAD_IN + _GAP_IN
    most_rows = max(2, int(_TALLEST_MAP_IN / box_height_in))
    numbers = _folded(-(-boxes // per_row), most_rows)
    rows = [None if row is None else _row_of(row, per_row, shown, boxes) for row in numbers]
    labels = [f"{slowest} {row}" if in_rows and row is not None else "" for row in numbers]
    return MapLayout(rows, labels, per_row, lines, cells, cell_in)


def _row_of(row: int, per_row: int, shown: int, boxes: int) -> Sequence[int | None]:
    members = range(row * per_row, min(boxes, (row + 1) * per_row))
    return [None if place is None else members[place] for place in _folded(len(members), shown)]


def _folded(count: int, shown: int) -> Sequence[int | None]:
    """The first of ``count`` things and the last, None for those between, if too many."""
    if count <= shown:
        return range(count)
    if shown == 1:
        return [0, None]
    return [*range(shown - 1), None, count - 1]


def _slowest_word(placement: Placement) -> str:
    words = placement.rank_order.split("-")
    counted = [word for word in words if placement.coordinates[word].max() > 0]
    return counted[-1] if counted else ""


@dataclass(frozen=True)
class RankMap:
    """The boxes and cells of a placement.

    Attributes:
        axes: Where it is drawn, in inches.
        placement: What it shows.
        layout: Which boxes, and how large.
        colors: Of the cells, by position along the word that is coloured.
        marks: Ranks of rank 0's groups, by the name of the group.
        text_of: What a cell says about a rank.
        text_pt: Size of that text [pt].
    """

    axes: Axes
    placement: Placement
    layout: MapLayout
    colors: Sequence[str]
    marks: Mapping[str, frozenset[int]]
    text_of: Callable[[int], str]
    text_pt: float

    def draw(self) -> None:
        """All rows of boxes."""
        top_in = _EDGE_IN
        for row, label in zip(self.layout.rows, self.layout.labels, strict=True):
            if row is None:
                self._name_hidden_rows(top_in)
                top_in += _FOLD_IN / 2
            else:
                self._draw_row(row, label, top_in)
                top_in += self.layout.box_in[1] + _GAP_IN

    def _name_hidden_rows(self, top_in: float) -> None:
        boxes = -(-self.placement.gpus // min(self.placement.domain_gpus, self.placement.gpus))
        shown = sum(row is not None for row in self.layout.rows)
        text = f"... {-(-boxes // self.layout.per_row) - shown:,} more such rows"
        y = top_in + _FOLD_IN / 4 - 0.05
        style.write(self.axes, _LEFT_IN, y, text, size_pt=_SMALL_PT, color=style.PALE_INK)

    def _draw_row(self, row: Sequence[int | None], label: str, top_in: float) -> None:
        width_in, height_in = self.layout.box_in
        middle_in, left_in = top_in + height_in / 2, _LEFT_IN
        style.write(self.axes, left_in - 0.12, middle_in, label, align="right", bold=True)
        for box in row:
            if box is not None:
                self._draw_box(box, left_in, top_in)
                left_in += width_in + _GAP_IN
                continue
            text = f"+{self.layout.per_row - (len(row) - 1):,}\nalike"
            x = left_in + (_FOLD_IN - _GAP_IN) / 2
            style.write(
                self.axes, x, middle_in, text,
                size_pt=_SMALL_PT, color=style.PALE_INK, align="center",
            )  # fmt: skip
            left_in += _FOLD_IN

    def _draw_box(self, box: int, left_in: float, top_in: float) -> None:
        width_in, height_in = self.layout.box_in
        self.axes.add_patch(
            FancyBboxPatch(
                (left_in, top_in), width_in, height_in,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor="#F6F6F6", edgecolor="#B5B5B5", linewidth=0.8,
            )
        )  # fmt: skip
        domain = self.placement.domain_gpus
        ranks = range(box * domain, min(self.placement.gpus, (box + 1) * domain))
        room = int((width_in - _PAD_IN) * 72 / (_CHARACTER_EM * _SMALL_PT))
        name = next((n for n in self._names(box, ranks) if len(n) < room), str(box))
        y = top_in + _HEADER_IN / 2 + 0.01
        style.write(self.axes, left_in + _PAD_IN, y, name, size_pt=_SMALL_PT, color=style.PALE_INK)
        for rank in ranks:
            line, place = divmod(rank - ranks[0], self.layout.cells)
            x = left_in + _PAD_IN + place * self.layout.cell_in
            self._draw_cell(rank, x, top_in + _HEADER_IN + line * _CELL_HEIGHT_IN)

    def _names(self, box: int, ranks: range) -> Sequence[str]:
        """Names of a box, the most telling first."""
        name = f"{'rack' if self.placement.domain_gpus > _CELLS_PER_LINE else 'node'} {box}"
        span = f"{name}   ranks {ranks[0]:,} to {ranks[-1]:,}"
        leaf = self.placement.leaf_gpus
        below = f"   leaf {ranks[0] // leaf}" if leaf and leaf < self.placement.gpus else ""
        return [span + below, span, name + below, name]

    def _draw_cell(self, rank: int, x: float, y: float) -> None:
        width_in = self.layout.cell_in
        position = self.placement.coordinates[_color_word(self.placement)][rank]
        face = self.colors[int(position)]
        self.axes.add_patch(
            Rectangle(
                (x, y), width_in, _CELL_HEIGHT_IN, facecolor=face, edgecolor="white", linewidth=0.8
            )
        )
        centre = x + width_in / 2
        style.write(
            self.axes, centre, y + 0.105, self.text_of(rank),
            size_pt=self.text_pt, color=style.ink_on(face), align="center",
        )  # fmt: skip
        names = [name for name, ranks in self.marks.items() if rank in ranks]
        step_in = min(_STEP_IN, (width_in - 0.06) / max(1, len(self.marks)))
        for index, name in enumerate(names):
            dot = centre + (index - (len(names) - 1) / 2) * step_in
            self.axes.plot(
                dot, y + 0.228, marker="o", markersize=3.9, color=GROUP_COLOR[name],
                markeredgecolor="white", markeredgewidth=0.5,
            )  # fmt: skip


def _map_of(axes: Axes, placement: Placement, layout: MapLayout) -> RankMap:
    """The map, ready to be drawn on axes that are measured in inches."""
    marks = {groups.name: frozenset(_own_ranks(groups)) for groups in placement.groups}
    text_of, text_pt = _cell_text(placement, layout)
    return RankMap(axes, placement, layout, _cell_colors(placement), marks, text_of, text_pt)


def _own_ranks(groups: PlacedGroups) -> Sequence[int]:
    """The group of rank 0."""
    return [int(rank) for rank in groups.members[(groups.members == 0).any(axis=1)][0]]


def _cell_text(placement: Placement, layout: MapLayout) -> tuple[Callable[[int], str], float]:
    """As much of rank and coordinates as every cell has room for, and its size [pt]."""
    words = [
        word
        for word in placement.rank_order.split("-")
        if word != "ep" and placement.coordinates[word].max() > 0
    ]

    def coordinates(rank: int) -> str:
        return " ".join(f"{word[0]}{placement.coordinates[word][rank]}" for word in words)

    def both(rank: int) -> str:
        return f"{rank}: {coordinates(rank)}"

    def fastest(rank: int) -> str:
        return f"{words[0][0]}{placement.coordinates[words[0]][rank]}"

    choices: list[Callable[[int], str]] = [str]
    if words:
        choices = [both, coordinates, str, fastest]
    last = placement.gpus - 1
    room_pt = layout.cell_in * 72 - 2
    for text_of in choices:
        if len(text_of(last)) * _CHARACTER_EM * _SMALL_PT < room_pt:
            return text_of, _SMALL_PT
    shortest = min(choices, key=lambda text_of: len(text_of(last)))
    return shortest, room_pt / (_CHARACTER_EM * len(shortest(last)))


def _color_word(placement: Placement) -> str:
    """The word of the rank order that the colours of cells stand for."""
    return "pp" if placement.coordinates["pp"].max() > 0 else _slowest_word(placement) or "tp"


def _cell_colors(placement: Placement) -> Sequence[str]:
    count = int(placement.coordinates[_color_word(placement)].max()) + 1
    if count <= len(_STAGE_COLORS):
        return [style.mix(color, "#FFFFFF", _TINT) for color in _STAGE_COLORS[:count]]
    shades = mpl.colormaps["viridis"]
    return [style.mix(to_hex(shades(i / (count - 1))), "#FFFFFF", 0.4) for i in range(count)]


def build_placement_figure(placement: Placement) -> Figure:
    """The map of ranks above the links that their groups cross."""
    layout = layout_of(placement)
    strip_in = _HEAD_IN + _LINE_IN * (max(1, len(placement.groups)) + 0.8)
    figure = style.new_figure(_TOP_IN + layout.height_in + strip_in)
    axes = style.add_inch_axes(figure, top=_TOP_IN, height=layout.height_in)
    _map_of(axes, placement, layout).draw()
    strip = style.add_inch_axes(figure, top=_TOP_IN + layout.height_in, height=strip_in)
    _draw_strip(strip, placement)
    style.add_title(figure, placement.title, _subtitle(placement), left=_LEFT_IN)
    return figure


def _draw_strip(axes: Axes, placement: Placement) -> None:
    heads = ("group", "", "groups x ranks", "group of rank 0", "hops cross")
    for left_in, head in zip(_COLUMNS_IN, heads, strict=True):
        style.write(axes, left_in, _HEAD_IN, head, bold=True)
    style.write(axes, _RATE_IN, _HEAD_IN, "rate per rank", align="right", bold=True)
    for line, groups in enumerate(placement.groups):
        y = _HEAD_IN + (line + 1) * _LINE_IN
        color = GROUP_COLOR[groups.name]
        axes.plot(_COLUMNS_IN[0] + 0.05, y, marker="o", markersize=6, color=color)
        count, width = groups.members.shape
        texts = (
            f"    {groups.name}",
            groups.purpose,
            f"{count:,} x {width:,}",
            _ranks_text(groups),
        )
        for left_in, text in zip(_COLUMNS_IN, texts, strict=False):
            style.write(axes, left_in, y, text)
        style.write(axes, _RATE_IN, y, format_rate(groups.bytes_per_s), align="right")
        _draw_hops(axes, groups, y)
    if not placement.groups:
        style.write(axes, _LEFT_IN, _HEAD_IN + _LINE_IN, "none: there is one rank")


def _ranks_text(groups: PlacedGroups) -> str:
    own = _own_ranks(groups)
    if len(own) <= 4:
        return ", ".join(map(str, own))
    return f"{own[0]}, {own[1]}, ... {own[-1]:,}"


def _draw_hops(axes: Axes, groups: PlacedGroups, y: float) -> None:
    left_in = _COLUMNS_IN[-1]
    for level, share in groups.hop_share.items():
        part_in, face = _BAR_IN * share, LEVEL_COLOR[level]
        axes.add_patch(
            Rectangle((left_in, y - 0.1), part_in, 0.2, facecolor=face, edgecolor="white", lw=0.6)
        )
        name, percent = LEVEL_NAMES[level], f"{100 * share:.0f} %"
        texts = (name if share == 1 else f"{name} {percent}", percent)
        text = next((t for t in texts if len(t) * _CHARACTER_IN < part_in), "")
        style.write(
            axes, left_in + part_in / 2, y, text,
            size_pt=_BAR_PT, color=style.ink_on(face), align="center",
        )  # fmt: skip
        left_in += part_in


def _subtitle(placement: Placement) -> str:
    parts = [f"rank order {placement.rank_order}"]
    domain = min(placement.domain_gpus, placement.gpus)
    parts.append(f"{-(-placement.gpus // domain):,} x {domain} GPUs")
    for name, gpus in (("leaf", placement.leaf_gpus), ("pod", placement.pod_gpus)):
        if gpus:
            parts.append(f"{gpus:,} GPUs per {name}")
    word = _color_word(placement)
    named = {"pp": "pipeline stage", "dp": "copy of the model", "cp": "context rank"}
    parts.append(f"colour: {named.get(word, 'tensor rank')}")
    return "   |   ".join(parts)
