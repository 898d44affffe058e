"""How is a picture written that goes into a repository?"""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from simulator.plots import style

_COLORS = 64
"""Colours of a bitmap; with text and hatches on flat colours, more cannot be seen."""


def save_small(figure: Figure, path: Path) -> Path:
    """Write a bitmap with few colours, a third of the bytes; returns its path."""
    full = io.BytesIO()
    figure.savefig(full, format="png", dpi=style.PNG_DPI, metadata={})
    with Image.open(full) as picture:
        flat = picture.convert("RGB")
    small = flat.quantize(_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return path
