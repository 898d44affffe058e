"""Which colour, hatch, font and unit does every picture use?

One palette, built on Okabe and Ito's colours so that people with any common colour
vision deficiency can read the pictures. Computing is cool (blue, green), communication
is warm (orange, vermillion, purple), idle time is grey. Waits are hatched, so that they
differ from work in print. Fonts are sized for a figure shown ten inches wide.

Source:
    M. Okabe and K. Ito, Color Universal Design (2008), for the eight base colours; the
    others are tints and shades of those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.files import PICTURE_METADATA, PICTURES, whole_file
from simulator.program.ir import COMMUNICATION, Category, Kind, Owner

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
SERIES = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)
"""Colours of series without one of their own, in this order."""

INK = "#222222"
"""Text and marks."""
PALE_INK = "#666666"
"""Secondary text."""
GRID = "#D9D9D9"
"""Rules behind the data."""
WIDTH_IN = 10.0
"""Width of every figure [in]."""
_TITLE_PT, TEXT_PT, SMALL_PT = 12.0, 10.0, 9.0
"""Font sizes [pt]."""
PNG_DPI = 160
"""Resolution of bitmaps."""
_FARTHEST_PCT = 100.0
"""Largest error that an axis of errors shows."""

KIND_COLOR: Mapping[Kind, str] = {
    Kind.FORWARD: BLUE,
    Kind.BACKWARD: GREEN,
    Kind.BACKWARD_INPUT: SKY,
    Kind.BACKWARD_WEIGHT: "#8FCF6B",
    Kind.OPTIMIZER: "#2B2B2B",
    Kind.SEND_RECV: PURPLE,
    Kind.ALL_REDUCE: "#A66F00",
    Kind.ALL_GATHER: "#FFDC8F",
    Kind.REDUCE_SCATTER: ORANGE,
    Kind.ALL_TO_ALL: "#7A4419",
    Kind.BROADCAST: "#4B3FD1",
    Kind.REDUCE: "#EE44FF",
    Kind.SCATTER: "#0000FF",
    Kind.GATHER: "#CCFFEE",
    Kind.COPY_TO_HOST: "#A80090",
    Kind.COPY_TO_DEVICE: "#F03060",
    Kind.NVME_READ: "#00D8D8",
    Kind.NVME_WRITE: "#000048",
}
"""Colour of an operation."""

CATEGORY_COLOR: Mapping[Category, str] = {
    Category.FORWARD: BLUE,
    Category.BACKWARD: GREEN,
    Category.RECOMPUTE: YELLOW,
    Category.OPTIMIZER: "#2B2B2B",
    Category.HOST: "#6B6B6B",
    Category.TENSOR_PARALLEL: VERMILLION,
    Category.CONTEXT_PARALLEL: "#882255",
    Category.EXPERT_PARALLEL: "#7A4419",
    Category.DATA_PARALLEL: ORANGE,
    Category.PIPELINE: PURPLE,
    Category.OFFLOAD: "#A80090",
    Category.BUBBLE: "#EFEFEF",
}
"""Colour of where time goes."""

OWNER_COLOR: Mapping[Owner, str] = {
    Owner.WEIGHTS: BLUE,
    Owner.STASHED_WEIGHTS: "#7F84C8",
    Owner.GRADIENTS: GREEN,
    Owner.MASTER_WEIGHTS: "#1F4468",
    Owner.OPTIMIZER_STATES: SKY,
    Owner.ACTIVATIONS: ORANGE,
    Owner.RECOMPUTE: YELLOW,
    Owner.TEMPORARIES: "#6B6B6B",
    Owner.LOGITS: VERMILLION,
    Owner.GATHERED_WEIGHTS: "#B3D4EE",
    Owner.COMMUNICATION: PURPLE,
    Owner.PLACEHOLDER_GRADIENTS: "#8FD0B5",
    Owner.WORKSPACES: "#7A4419",
}
"""Colour of who holds memory. States are cool, what a step adds is warm."""

DARK_PAGE = "#16181C"
BUBBLE_ON_DARK = "#656B75"
_ON_DARK: Mapping[str, str] = {
    "#2B2B2B": "#F4F4F4",
    "#6B6B6B": "#756D53",
    "#7A4419": "#CEA392",
    "#882255": "#D3A9C1",
    "#1F4468": "#AE9FC5",
    "#4B3FD1": "#8F84D6",
    "#0000FF": "#6D58DB",
    "#CCFFEE": "#DCFBD7",
    "#A80090": "#AA2DA9",
    "#000048": "#7E73A1",
}
"""Colours that a dark page shows otherwise, found by search: each has three times the contrast of
the page, and no two of a palette look alike to any of the visions in the tests."""
WAIT_HATCH = "////"
"""Hatch of everything that is waiting."""
_LIGHTEST_CHUNK = 0.55
_DARK_LUMINANCE = 0.1
"""Darker colours have less than about twice the contrast of a dark page."""
_ROW_NAME_PT = 1.3 * SMALL_PT
_SMALLEST_TITLE_PT = 8.0
_BOLD_EM = 0.68
"""Width of a character of the bold default font, per font size."""


def mix(color: str, other: str, share: float) -> str:
    """The colour with ``share`` (0 to 1) of another in it, as hex."""
    pairs = zip(to_rgb(color), to_rgb(other), strict=True)
    return "#" + "".join(f"{round(255 * (a + (b - a) * share)):02X}" for a, b in pairs)


def chunk_shade(color: str, chunk: int, num_chunks: int) -> str:
    """The shade of a model chunk: the first is full, the last the lightest."""
    if num_chunks <= 1 or chunk <= 0:
        return color
    return mix(color, "#FFFFFF", _LIGHTEST_CHUNK * chunk / (num_chunks - 1))


def luminance(color: str) -> float:
    """Relative luminance, 0 for black and 1 for white.

    Ignores the straight piece of the sRGB curve near black.

    Source:
        WCAG 2.1, relative luminance.
    """
    red, green, blue = (((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color))
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def ink_on(color: str) -> str:
    """Black or white, whichever contrasts more with the colour.

    Source:
        Contrast ratio of WCAG 2.1.
    """
    light = luminance(color)
    return "#FFFFFF" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


def on_dark(color: str) -> str:
    """The colour as a dark page shows it; a tint of a shade that would be lost there."""
    if color in _ON_DARK:
        return _ON_DARK[color]
    return mix(color, "#FFFFFF", 0.45) if luminance(color) < _DARK_LUMINANCE else color


WAITS = COMMUNICATION | {Category.BUBBLE, Category.HOST}
"""Categories in which a GPU does not compute; drawn hatched."""


def wait_face(category: Category) -> str:
    """Fill of the time spent waiting for a category: a tint of its colour."""
    color = CATEGORY_COLOR[category]
    return "#F7F7F7" if category is Category.BUBBLE else mix(color, "#FFFFFF", 0.7)


def wait_hatch_color(category: Category) -> str:
    """Colour of the hatch lines on time spent waiting."""
    return "#C4C4C4" if category is Category.BUBBLE else CATEGORY_COLOR[category]


def wait_words(category: Category) -> str:
    """A wait as people write it ("tensor parallel, exposed", "bubble")."""
    return words(category) + (", exposed" if category in COMMUNICATION else "")


def wait_patch(category: Category, label: str) -> Patch:
    """Legend entry of a wait."""
    edge = wait_hatch_color(category)
    return Patch(facecolor=wait_face(category), edgecolor=edge, hatch="//////", lw=0, label=label)


def hatch_waits(collection: PolyCollection, category: Category) -> None:
    """Make boxes look like waiting."""
    collection.set_facecolor(wait_face(category))
    collection.set_edgecolor(wait_hatch_color(category))
    collection.set(linewidth=0.0, hatch=WAIT_HATCH)


def outside_patch(label: str, face: str = "#DDDDDD", hatch: str = "////") -> Patch:
    """Legend entry of what a device holds beyond tensors."""
    return Patch(facecolor=face, hatch=hatch, edgecolor="#8C8C8C", lw=0, label=label)


def outside_look(patch: Patch) -> dict[str, Any]:
    """Fill, hatch and edge of bars that look as such an entry."""
    return {
        "facecolor": patch.get_facecolor(),
        "hatch": patch.get_hatch(),
        "edgecolor": patch.get_edgecolor(),
        "linewidth": 0,
    }


def owner_patches(owners: Iterable[Owner]) -> list[Handle]:
    """Legend entries of who holds memory."""
    return [Patch(color=OWNER_COLOR[owner], lw=0, label=words(owner)) for owner in owners]


def words(name: str) -> str:
    """A member of an enum as people write it ("data_parallel" is "data parallel")."""
    return name.replace("_", " ")


def new_figure(height_in: float) -> Figure:
    """An empty figure of the common width that belongs to no window."""
    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def add_axes_in(figure: Figure, *, left: float, top: float, width: float, height: float) -> Axes:
    """Axes placed in inches from the upper left corner, in the common style."""
    w, h = figure.get_size_inches()
    axes = figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PALE_INK)
    axes.tick_params(labelsize=SMALL_PT, color=PALE_INK, labelcolor=INK)
    axes.set_axisbelow(True)
    return axes


def add_inch_axes(figure: Figure, *, top: float, height: float) -> Axes:
    """Axes as wide as the figure, without a frame, that are measured in inches downwards."""
    w, h = figure.get_size_inches()
    axes = figure.add_axes((0, 1 - (top + height) / h, 1, height / h))
    axes.set_xlim(0, w)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return axes


def write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size_pt: float = SMALL_PT,
    color: str = INK,
    align: Literal["left", "center", "right"] = "left",
    bold: bool = False,
) -> None:
    """A text whose middle is at height ``y``."""
    axes.text(
        x, y, text, fontsize=size_pt, color=color, ha=align, va="center",
        weight="bold" if bold else "normal", linespacing=1.15,
    )  # fmt: skip


def add_title(figure: Figure, title: str, subtitle: str, *, left: float) -> None:
    """A bold line and a line of figures above the axes, ``left`` inches in.

    A long title is set smaller, a very long one is cut.
    """
    width, height = figure.get_size_inches()
    room_em = (width - left - 0.2) * 72 / _BOLD_EM
    size_pt = max(_SMALLEST_TITLE_PT, min(_TITLE_PT, room_em / max(len(title), 1)))
    shown = shorten(title, int(room_em / size_pt))
    x = left / width
    figure.text(x, 1 - 0.14 / height, shown, fontsize=size_pt, weight="bold", va="top", color=INK)
    figure.text(x, 1 - 0.40 / height, subtitle, fontsize=TEXT_PT, va="top", color=PALE_INK)


def shorten(text: str, length: int) -> str:
    """At most ``length`` characters of a text, with dots where it was cut."""
    return text if len(text) <= length else text[: length - 3].rstrip() + "..."


Handle = Patch | tuple[Patch, ...]
"""A legend entry: a patch, or several patches side by side under one name."""

_LEGEND_ROW_IN, _LEGEND_MARGIN_IN, _LEGEND_WIDTH_IN = 0.21, 0.12, 9.0


def add_legend(figure: Figure, handles: Sequence[Handle], *, left: float) -> None:
    """A legend along the lower edge, outside all axes, ``left`` inches in."""
    width, height = figure.get_size_inches()
    figure.legend(
        cast("list[Artist]", list(handles)),  # a tuple is drawn by HandlerTuple
        [_legend_label(handle) for handle in handles],
        loc="lower left",
        bbox_to_anchor=(left / width, 0.06 / height),
        ncol=_legend_columns(handles),
        fontsize=SMALL_PT,
        frameon=False,
        borderaxespad=0.0,
        borderpad=0.0,
        handlelength=1.8,
        handleheight=1.0,
        columnspacing=1.6,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )


def legend_height_in(handles: Sequence[Handle]) -> float:
    """Room the legend needs [in]."""
    rows = -(-len(handles) // _legend_columns(handles))
    return _LEGEND_MARGIN_IN + _LEGEND_ROW_IN * rows


def _legend_columns(handles: Sequence[Handle]) -> int:
    """The most columns that fit, evened out over the rows they need."""
    widths = [0.55 + 0.068 * len(_legend_label(handle)) for handle in handles]
    fitting = 1
    for columns in range(2, min(7, len(handles)) + 1):
        rows = -(-len(widths) // columns)
        if (
            math.fsum(max(widths[i : i + rows]) for i in range(0, len(widths), rows))
            <= _LEGEND_WIDTH_IN
        ):
            fitting = columns
    rows = max(1, -(-len(widths) // fitting))
    return max(1, -(-len(widths) // rows))


def _legend_label(handle: Handle) -> str:
    return str((handle[0] if isinstance(handle, tuple) else handle).get_label())


def annotate(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    shift_pt: tuple[float, float] = (0.0, 0.0),
    **look: Any,
) -> None:
    """Write small text at a point in data coordinates, moved by ``shift_pt`` [pt]."""
    look = {"fontsize": SMALL_PT, "color": INK, **look}
    axes.annotate(text, at, shift_pt, textcoords="offset points", **look)


def name_axes(axes: Axes, x: str = "", y: str = "", size_pt: float = TEXT_PT) -> None:
    """Write what the axes of a panel measure beside those that have a name."""
    if x:
        axes.set_xlabel(x, fontsize=size_pt, color=INK)
    if y:
        axes.set_ylabel(y, fontsize=size_pt, color=INK)


def add_heading(axes: Axes, text: str) -> None:
    """A small bold line above a panel."""
    axes.set_title(text, loc="left", fontsize=SMALL_PT, weight="bold", color=INK)


def name_rows(axes: Axes, names: Sequence[str], row_pt: float, *, centre: float = 0.5) -> None:
    """Names beside rows of height one; every few where rows are thinner than text.

    Args:
        axes: Rows count from the top.
        names: One per row.
        row_pt: Height of a row [pt].
        centre: Where in its row a name stands, from the top.
    """
    every = 1
    while every * row_pt < _ROW_NAME_PT:
        every *= 2
    shown = range(0, len(names), every)
    axes.set_yticks([row + centre for row in shown], [names[row] for row in shown])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


STRIP_SLICES = 900
"""Slices of time in a strip of shades; each shows one share."""
LINED_ROW_PT = 8.0
"""Rows of at least this height are parted by lines."""


def add_strips(
    figure: Figure,
    axes: Axes,
    shares: NDArray[np.float64],
    step_s: float,
    names: Sequence[str],
    shades: Colormap,
    *,
    row_in: float,
    line: str,
) -> Colorbar:
    """A strip of shades over the step for every row of shares (0 to 1), shape (rows, slices).

    Args:
        figure: Has room for a scale at the right.
        axes: Where the strips go.
        shares: What the shades show.
        step_s: Length of the time axis [s].
        names: One per row.
        shades: Colours from 0 to 1.
        row_in: Height of a strip [in].
        line: Colour of what parts high strips.
    """
    rows = len(shares)
    image = axes.imshow(
        100 * shares, extent=(0, step_s, rows, 0), aspect="auto", cmap=shades, vmin=0, vmax=100,
        interpolation="nearest",
    )  # fmt: skip
    if row_in * 72 >= LINED_ROW_PT:
        axes.hlines(np.arange(1, rows), 0, step_s, color=line, linewidth=0.8)
    name_rows(axes, names, row_in * 72)
    show_seconds(axes.xaxis, step_s)
    return add_percent_scale(figure, axes, image)


def add_percent_scale(figure: Figure, axes: Axes, image: AxesImage) -> Colorbar:
    """A narrow scale from 0 to 100 % at the right of a picture of shares."""
    box = axes.get_position()
    width_in, _ = figure.get_size_inches()
    scale = figure.add_axes((box.x1 + 0.17 / width_in, box.y0, 0.12 / width_in, box.height))
    bar = figure.colorbar(image, cax=scale, ticks=[0, 100], format="%d %%", extend="max")
    bar.ax.tick_params(labelsize=SMALL_PT, length=0, labelcolor=INK)
    return bar


def show_errors(axes: Axes, farthest_pct: float, close_pct: float) -> None:
    """Make the vertical axis one of errors [%] to both sides of zero, with a band of close ones."""
    limit = next((edge for edge in (10.0, 25.0, 50.0) if farthest_pct <= edge), _FARTHEST_PCT)
    axes.set_ylim(-limit, limit)
    axes.set_yticks([-limit, 0, limit])
    axes.axhspan(-close_pct, close_pct, color=GRID, alpha=0.35, lw=0)
    axes.axhline(0, color=PALE_INK, lw=0.8)


def error_at_edge(error_pct: float) -> float:
    """Where such an axis shows an error [%]; those beyond its largest range stand at the edge."""
    return max(-_FARTHEST_PCT, min(_FARTHEST_PCT, error_pct))


def show_seconds(axis: Axis, longest_s: float, name: str = "time", *, ticks: int = 8) -> None:
    """Label an axis that holds seconds in the unit that suits its length."""
    unit, factor = time_unit(longest_s)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:.10g}"))
    axis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]))
    axis.set_label_text(f"{name} [{unit}]", fontsize=TEXT_PT, color=INK)


def time_unit(longest_s: float) -> tuple[str, float]:
    """Name and length [s] of the unit in which a span reads best."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if longest_s >= factor:
            return unit, factor
    return "ns", 1e-9


def save(figure: Figure, path: str | Path) -> None:
    """Write a picture in the format its suffix names (:data:`simulator.files.PICTURES`).

    It is there whole or not at all, in a folder that is made if need be. The same figure gives the
    same bytes.

    Raises:
        InputError: No picture is written in such a format.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in PICTURE_METADATA:
        rule = f"a picture is written as {', '.join(PICTURES[:-1])} or {PICTURES[-1]}"
        raise InputError.single("path", rule, str(path), "change the suffix")
    with mpl.rc_context({"svg.hashsalt": "clustersim"}), whole_file(Path(path)) as draft:
        metadata = dict(PICTURE_METADATA[suffix])
        figure.savefig(draft, format=suffix[1:], dpi=PNG_DPI, metadata=metadata)
