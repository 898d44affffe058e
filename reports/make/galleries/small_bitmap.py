"""How is a picture written that goes into a repository?"""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from simulator.plots import style


def save_small(figure: Figure, path: Path, colors: int = 64) -> Path:
    """Write a bitmap with few colours, a third of the bytes; returns its path.

    Args:
        figure: What to write.
        path: A .png file.
        colors: With text and hatches on flat colours, more than 64 cannot be seen; small
            marks in colours of their own need more.
    """
    full = io.BytesIO()
    figure.savefig(full, format="png", dpi=style.PNG_DPI, metadata={})
    return save_with_few_colors(full, path, colors)


def save_with_few_colors(source: Path | io.BytesIO, path: Path, colors: int) -> Path:
    """The same for a bitmap that is there already, which may be the one that is written."""
    with Image.open(source) as picture:
        flat = picture.convert("RGB")
    small = flat.quantize(colors, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return path
