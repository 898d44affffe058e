"""How is the box of a microbatch drawn, wide or narrow: with which edge, and how large a number?"""

from __future__ import annotations

from matplotlib.axes import Axes

from simulator.plots import style

EDGE_SHARE = 0.08
"""Most of a box's width that its white edge takes."""
_EDGE_PT = 0.8
_DIGIT_EM = 0.64
"""Width of a digit of the default font, per font size."""


def edge_pt(width_pt: float) -> float:
    """Width of a box's white edge, thin enough to leave narrow boxes their colour [pt]."""
    return min(_EDGE_PT, width_pt * EDGE_SHARE)


def add_number(
    axes: Axes,
    number: int,
    centre: tuple[float, float],
    room_pt: tuple[float, float],
    *,
    digits: int,
    sizes_pt: tuple[float, float],
    face: str,
) -> None:
    """Write a microbatch's number into its box, unless it would be too small to read.

    Args:
        axes: Where the box is.
        number: The microbatch's.
        centre: Of the box, in data coordinates.
        room_pt: Width and height that the number may take [pt].
        digits: Of the longest number of the picture; all have the size that it would have.
        sizes_pt: The smallest and the largest font size [pt].
        face: Colour of the box.
    """
    width_pt, height_pt = room_pt
    smallest_pt, largest_pt = sizes_pt
    size_pt = min(largest_pt, height_pt, width_pt / (digits * _DIGIT_EM))
    if size_pt >= smallest_pt:
        axes.text(
            *centre, str(number), fontsize=size_pt, color=style.ink_on(face), ha="center",
            va="center_baseline", clip_on=True,
        )  # fmt: skip
