"""Orders that trade bubble for memory: two chunks per rank, laid out as a V.

All microbatches repeat one building block: the time at which each rank runs the forwards
and input gradients of its two chunks for microbatch 0. Microbatch n follows n periods
later. The slower the wave travels through the block, the longer activations live and the
more of them are held. Memory and bubble rates are those that the authors publish; the paces,
and how weight gradients fill the gaps, are ours, so the orders themselves differ from theirs.

Source:
    Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362, section 3);
    memory and bubble rates from the table on the authors' project page.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from simulator.schedule.list_scheduling import list_schedule
from simulator.schedule.slots import Order, Phase, Placement, Slot

PERIOD = 6
"""Ticks between microbatches: two chunks times forward, input and weight gradient."""


class Pace(NamedTuple):
    """Ticks per rank that the wave takes on each of its four ways through the ranks."""

    forward_down: int
    forward_up: int
    backward_down: int
    backward_up: int


V_MIN = Pace(1, 1, 1, 1)
V_HALF = Pace(2, 1, 2, 1)


def v_min_in_flight(stages: int) -> int:
    """Chunk activations that V-Min holds: those of (p + 4) // 3 microbatches."""
    return 2 * ((stages + 4) // 3)


def v_half_in_flight(stages: int) -> int:
    """Chunk activations that V-Half holds: those of (p + 2) // 2 microbatches."""
    return 2 * ((stages + 2) // 2)


def v_min(stages: int, chunks: int, microbatches: int) -> Order:
    """A third of the memory of 1F1B, about two thirds of its bubble.

    Source:
        Qi et al. (arXiv 2405.15362, section 3); one tick per rank on every way is ours.
    """
    return _repeat_block(V_MIN, stages, chunks, microbatches, v_min_in_flight(stages))


def v_half(stages: int, chunks: int, microbatches: int) -> Order:
    """Half of the memory of 1F1B, at most half of its bubble.

    Source:
        Qi et al. (arXiv 2405.15362, section 3); two ticks per rank downwards are ours.
    """
    return _repeat_block(V_HALF, stages, chunks, microbatches, v_half_in_flight(stages))


def _repeat_block(pace: Pace, stages: int, chunks: int, microbatches: int, limit: int) -> Order:
    """The block for every microbatch, squeezed; weight gradients fill the gaps."""
    queues = []
    for starts in _block(pace, stages):
        ticks = [
            (start + PERIOD * microbatch, slot._replace(microbatch=microbatch))
            for microbatch in range(microbatches)
            for start, slot in starts
        ]
        urgent = [slot for _, slot in sorted(ticks)]
        weights = [
            slot._replace(phase=Phase.BACKWARD_WEIGHT)
            for slot in urgent
            if slot.phase is Phase.BACKWARD_INPUT
        ]
        queues.append((urgent, weights))
    return list_schedule(queues, chunks, Placement.V, limit)


def _block(pace: Pace, stages: int) -> list[list[tuple[int, Slot]]]:
    """Start ticks of microbatch 0 on every rank.

    The wave turns three times. It may have to wait there, so that no rank has two things to
    do in one tick of the period; the shortest waits that work are taken.
    """
    ticks = range(1, PERIOD + 1)
    for waits in sorted(product(ticks, repeat=3), key=lambda waits: (sum(waits), waits)):
        block = [_starts(pace, waits, rank, stages) for rank in range(stages)]
        if all(len({start % PERIOD for start, _ in starts}) == len(starts) for starts in block):
            return block
    raise RuntimeError(f"no building block of {pace} for {stages} stages")


def _starts(pace: Pace, waits: tuple[int, ...], rank: int, stages: int) -> list[tuple[int, Slot]]:
    """Start ticks of the four slots of microbatch 0 on one rank."""
    down, up = rank, 2 * stages - 1 - rank
    to_turn = stages - 1 - rank
    first_turn = pace.forward_down * (stages - 1) + waits[0]
    second_turn = first_turn + pace.forward_up * (stages - 1) + waits[1]
    third_turn = second_turn + pace.backward_down * (stages - 1) + waits[2]
    return [
        (pace.forward_down * rank, Slot(Phase.FORWARD, down, 0)),
        (first_turn + pace.forward_up * to_turn, Slot(Phase.FORWARD, up, 0)),
        (second_turn + pace.backward_down * rank, Slot(Phase.BACKWARD_INPUT, up, 0)),
        (third_turn + pace.backward_up * to_turn, Slot(Phase.BACKWARD_INPUT, down, 0)),
    ]
