"""Which boxes and lines do drawings of machines share?

Everything is measured in inches, downwards from the upper edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyBboxPatch

from simulator.plots import style

GPU, SWITCH, NIC, HOST = "#CFE6F5", style.BLUE, "#FBE3AE", "#E4E4E4"
"""Faces of GPUs, switches of the scale-up links, NICs and hosts."""
SCALE_UP_LINE, FABRIC_LINE, PCIE_LINE = style.BLUE, style.ORANGE, "#9A9A9A"
SMALL_PT = 7.5
"""Labels of links and small boxes [pt]."""
_CHARACTER_EM = 0.56

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle in inches; ``top`` is its upper edge."""

    left: float
    top: float
    width: float
    height: float

    @property
    def centre(self) -> Point:
        """Its middle."""
        return self.left + self.width / 2, self.top + self.height / 2

    @property
    def upper(self) -> Point:
        """The middle of its upper edge."""
        return self.left + self.width / 2, self.top

    @property
    def lower(self) -> Point:
        """The middle of its lower edge."""
        return self.left + self.width / 2, self.top + self.height

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.top + self.height


def draw_box(axes: Axes, box: Box, text: str, *, face: str, size_pt: float = 8.5) -> None:
    """A rounded box with a text in its middle, as large as fits."""
    rounding = min(0.06, 0.3 * min(box.width, box.height))
    axes.add_patch(
        FancyBboxPatch(
            (box.left, box.top), box.width, box.height,
            boxstyle=f"round,pad=0,rounding_size={rounding}",
            facecolor=face, edgecolor="#8A8A8A", linewidth=0.8, zorder=3,
        )
    )  # fmt: skip
    if not text:
        return
    longest = max(len(line) for line in text.split("\n"))
    fitting_pt = box.width * 72 / (_CHARACTER_EM * longest)
    if min(size_pt, fitting_pt) >= 4.5:
        axes.text(
            *box.centre, text, fontsize=min(size_pt, fitting_pt), color=style.ink_on(face),
            ha="center", va="center", zorder=4, linespacing=1.15,
        )  # fmt: skip


def draw_frame(axes: Axes, box: Box, title: str) -> None:
    """A pale frame around things that belong together, named in its corner."""
    axes.add_patch(
        FancyBboxPatch(
            (box.left, box.top), box.width, box.height,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor="#F8F8F8", edgecolor="#B5B5B5", linewidth=1.0, zorder=0,
        )
    )  # fmt: skip
    style.write(axes, box.left + 0.1, box.top + 0.14, title, size_pt=8.5, bold=True)


def draw_lines(
    axes: Axes, lines: Iterable[tuple[Point, Point]], color: str, width_pt: float = 1.2
) -> None:
    """Links, behind all boxes."""
    collection = LineCollection(
        [[begin, end] for begin, end in lines], colors=color, linewidths=width_pt, zorder=1
    )
    axes.add_collection(collection, autolim=False)


def label_link(axes: Axes, place: Point, text: str, *, color: str = style.INK) -> None:
    """What a link carries, on a white ground so that lines do not cross it."""
    axes.text(
        *place, text, fontsize=SMALL_PT, color=color, ha="center", va="center", zorder=5,
        linespacing=1.15,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9},
    )  # fmt: skip


def row_of_boxes(area: Box, count: int, gap_in: float) -> Sequence[Box]:
    """``count`` equal boxes side by side that fill the area."""
    width = (area.width - (count - 1) * gap_in) / count
    return [
        Box(area.left + index * (width + gap_in), area.top, width, area.height)
        for index in range(count)
    ]
