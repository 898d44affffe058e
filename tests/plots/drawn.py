"""What is drawn in a figure?"""

from __future__ import annotations

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure


def artists(figure: Figure, panel: int = 0) -> dict[str, PolyCollection]:
    """The collections of a panel by name."""
    found = [c for c in figure.axes[panel].collections if isinstance(c, PolyCollection)]
    return {str(c.get_gid()): c for c in found}


def face(collection: PolyCollection) -> str:
    return to_hex(collection.get_facecolor()[0]).upper()


def texts(figure: Figure) -> list[str]:
    """What is written in all panels."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]
