"""What does a thread do at each moment, where operators call each other?

The innermost operator counts, except inside one that is a product or attention as a whole: its
helpers are part of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Segment = tuple[float, float, int]
"""Start, end, and the code of what runs."""


def innermost(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    code: NDArray[np.int16],
    is_whole: NDArray[np.bool_],
) -> Iterator[Segment]:
    """Segments without overlap, in order.

    Args:
        start: Of each operator of one thread, shape (operators,).
        end: Of the same.
        code: What it does, shape (operators,).
        is_whole: Whether it counts for all that it calls, shape (operators,).
    """
    order = np.lexsort((-end, start))
    rows = zip(start[order].tolist(), end[order].tolist(), code[order].tolist(),
               is_whole[order].tolist(), strict=True)  # fmt: skip
    open_: list[tuple[float, int, bool]] = []
    clock = -np.inf
    for begins, own_end, doing, is_one in rows:
        while open_ and open_[-1][0] <= begins:
            stop, inner, _ = open_.pop()
            if stop > clock:
                yield clock, stop, inner
                clock = stop
        ends = own_end
        if open_:
            outer_end, outer, outer_is_whole = open_[-1]
            if outer_is_whole:
                continue
            if begins > clock:
                yield clock, begins, outer
            ends = min(ends, outer_end)
        clock = max(clock, begins)
        open_.append((ends, doing, is_one))
    while open_:
        stop, inner, _ = open_.pop()
        if stop > clock:
            yield clock, stop, inner
            clock = stop
