"""What does the host do at each moment: which operator, and is it forward, backward, optimizer?

Of nested operators the innermost counts, except inside one that is a product or attention as a
whole: its helpers are part of it.

Ranges that a program names so decide the phase, if there are any (``forward``, ``## backward ##``).
Else autograd decides: what it evaluates is backward, what the thread of the step does in between is
forward, and what it does once autograd has finished is the optimizer, the clipping of gradients
with it. Collectives begin no phase. Either way ``Optimizer.step``, which torch names itself, is the
optimizer. A phase lasts until another begins.

Ignores: forward and backward of different microbatches at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.validate.measured_trace.account import PHASES, Phase
from simulator.validate.measured_trace.rows import PHASE, UPDATE, Range, Table

Segment = tuple[float, float, int]
"""Start, end, and the code of what runs."""

_FORWARD, _BACKWARD, _UPDATE = range(len(PHASES))


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
    for begins, own_end, activity, is_one in rows:
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
        open_.append((ends, activity, is_one))
    while open_:
        stop, inner, _ = open_.pop()
        if stop > clock:
            yield clock, stop, inner
            clock = stop


@dataclass(frozen=True)
class PhaseClock:
    """The phase of every moment of the host.

    Attributes:
        start_us: When each phase begins, ascending [us].
        place: Which one it is, a place in :data:`PHASES`.
    """

    start_us: NDArray[np.float64]
    place: NDArray[np.int64]

    def at(self, time_us: NDArray[np.float64]) -> NDArray[np.int64]:
        """Places in :data:`PHASES`; before the first phase it counts already."""
        if not self.start_us.size:
            return np.zeros(time_us.shape, dtype=np.int64)
        found = np.searchsorted(self.start_us, time_us, side="right") - 1
        return self.place[np.maximum(found, 0)]


def phase_clock(
    ranges: Sequence[Range],
    operators: Table,
    is_backward: NDArray[np.bool_],
    thread: int,
) -> PhaseClock:
    """The phases of one step.

    Args:
        ranges: Named ranges of the step.
        operators: Operators of the step, collectives left out.
        is_backward: Whether they belong to autograd, shape (operators,).
        thread: The thread that runs the step.
    """
    named = list(_named_marks(ranges))
    updates = [(each.start_us, _UPDATE) for each in ranges if each.name.startswith(UPDATE)]
    found = {place for _, place in named}
    marks = named if {_FORWARD, _BACKWARD} <= found else list(
        _autograd_marks(operators, is_backward, thread)
    )  # fmt: skip
    marks = sorted(marks + updates)
    changes = [
        mark for before, mark in zip([(0.0, -1), *marks], marks, strict=False)
        if mark[1] != before[1]
    ]  # fmt: skip
    return PhaseClock(
        np.asarray([start for start, _ in changes], dtype=np.float64),
        np.asarray([place for _, place in changes], dtype=np.int64),
    )


def _named_marks(ranges: Sequence[Range]) -> Iterator[tuple[float, int]]:
    for each in ranges:
        match = PHASE.match(each.name)
        words = sum(word in each.name.lower() for word in PHASES)
        if match and words == 1:
            yield each.start_us, PHASES.index(match.group(1).lower())


def _autograd_marks(
    operators: Table, is_backward: NDArray[np.bool_], thread: int
) -> Iterator[tuple[float, int]]:
    """A mark where autograd begins to evaluate, and one where the step's thread goes on."""
    if not is_backward.any():
        return
    evaluated = operators.where(is_backward)
    order = np.argsort(evaluated.start_us)
    starts, ends = evaluated.start_us[order], np.maximum.accumulate(evaluated.end_us[order])
    yield from ((start, _BACKWARD) for start in starts.tolist())
    own = operators.start_us[(operators.key == thread) & ~is_backward]
    latest = np.searchsorted(starts, own, side="right") - 1
    is_outside = (latest < 0) | (own >= ends[np.maximum(latest, 0)])
    last = float(ends[-1])
    yield from (
        (start, _UPDATE if start >= last else _FORWARD) for start in own[is_outside].tolist()
    )


def phase_of(place: int) -> Phase:
    """The phase at a place."""
    return PHASES[place]
