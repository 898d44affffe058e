"""Which microbatch does each slot of a pattern handle?

Wave-like schedules are easiest to read as a pattern of phases ("six forwards of the first
chunk, then ..."). Every stage takes its microbatches first in, first out, so the pattern
alone fixes the numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable

from simulator.schedule.slots import Phase, Slot


def step(phase: Phase, stage: int) -> Slot:
    """An unnumbered slot, to be put into a pattern."""
    return Slot(phase, stage, microbatch=-1)


def joint(first: Slot, second: Slot) -> list[Slot]:
    """Two slots of a pattern that run together."""
    return [first._replace(overlaps_next=True), second]


def numbered(pattern: Iterable[Slot], microbatches: int) -> list[Slot]:
    """The pattern with its microbatches filled in; slots beyond the last one are dropped.

    Forwards and backwards of a stage count up from 0. A weight gradient takes the oldest
    microbatch of its stage whose input gradient is done and whose weight gradient is not.
    """
    forwards: Counter[int] = Counter()
    backwards: Counter[int] = Counter()
    unfinished: defaultdict[int, deque[int]] = defaultdict(deque)
    slots = []
    for phase, stage, _, overlaps_next in pattern:
        if phase is Phase.BACKWARD_WEIGHT:
            microbatch = unfinished[stage].popleft()
        else:
            count = forwards if phase is Phase.FORWARD else backwards
            microbatch = count[stage]
            count[stage] += 1
        if phase is Phase.BACKWARD_INPUT:
            unfinished[stage].append(microbatch)
        if microbatch < microbatches:
            slots.append(Slot(phase, stage, microbatch, overlaps_next))
    return slots
