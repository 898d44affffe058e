"""What does the page's picture of memory over time draw?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.exporters.html.page import packed
from simulator.exporters.html.timeline_data import both
from simulator.plots import style
from simulator.plots.memory import fullest, fullest_moments
from simulator.program.ir import Owner
from simulator.results.rank_classes import class_words, spread
from simulator.results.step import ClassMemory, StepResult

_MOST_CLASSES = 64
_MOST_MOMENTS = 4000
"""Each slice of time shows its fullest moment, so that no peak is lost."""


def memory_data(result: StepResult) -> dict[str, Any]:
    """Curves by owner of each rank class, as the script ``memory.js`` reads them."""
    classes = result.timeline.program.classes
    worst = fullest(result)
    shown = sorted({worst, *spread(len(classes), _MOST_CLASSES)})
    return {
        "fullest": shown.index(worst),
        "classes": [
            {"name": class_words(classes[i]), **_curves(result.memory[i], result.step_time_s)}
            for i in shown
        ],
    }


def _curves(memory: ClassMemory, step_s: float) -> dict[str, Any]:
    moments = fullest_moments(memory, step_s, _MOST_MOMENTS)
    return {
        "time_s": packed(memory.time_s[moments]),
        "peak_s": memory.peak_time_s,
        "peak_bytes": memory.peak_allocated_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "owners": [
            {"name": style.words(owner), "color": both(color), "bytes": curve}
            for owner, color in style.OWNER_COLOR.items()
            if (curve := _curve(memory, owner, moments)) is not None
        ],
    }


def _curve(memory: ClassMemory, owner: Owner, moments: NDArray[np.int64]) -> float | str | None:
    """One number where nothing changes, a column where something does, None for nothing."""
    held = memory.owner_bytes.get(owner)
    if held is None or not np.any(held):
        return None
    curve = held[moments]
    return float(curve[0]) if np.all(curve == curve[0]) else packed(curve)
