"""Orders that trade bubble for memory: two chunks per rank, laid out as a V.

All microbatches repeat one building block: the time at which each rank runs the forwards
and input gradients of its two chunks for microbatch 0. Microbatch n follows n periods
later. The slower the wave travels through the block, the longer activations live and the
more of them are held. The blocks are those of the authors; how orders are squeezed and weight
gradients fill the gaps is ours, within the memory that the authors state.

Source:
    Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362, section 3); blocks
    from the authors' scheduler (``zbv_greedy.py`` of sail-sg/zero-bubble-pipeline-parallelism),
    memory and bubble rates from the table on their project page.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.schedule.orders.list_scheduling import list_schedule
from simulator.schedule.slots import Order, Phase, Placement, Slot

PERIOD = 6
"""Ticks between microbatches: two chunks times forward, input and weight gradient."""

Block = Callable[[int, int], tuple[int, int, int, int]]
"""Ticks at which a rank of so many starts, for microbatch 0, the forwards of its first and second
chunk and the input gradients of its second and first: (rank, stages)."""


def v_min_block(rank: int, stages: int) -> tuple[int, int, int, int]:
    """One tick per rank on every way; a wait where ranks would have two things to do in one."""
    wait = 2 if stages % 3 == 0 else 0
    return (
        rank,
        2 * stages - 1 - rank,
        2 * stages + wait + rank,
        4 * stages + wait - 1 - rank,
    )


def v_half_block(rank: int, stages: int) -> tuple[int, int, int, int]:
    """Two ticks per rank down the ranks, one up; a wait as in V-Min."""
    wait = 3 if stages % 2 == 0 else 0
    return (
        2 * rank,
        3 * stages - 2 - rank,
        3 * stages + wait - 1 + 2 * rank,
        6 * stages + wait - 2 - rank,
    )


def v_min_in_flight(stages: int) -> int:
    """Chunk activations that V-Min holds: those of (p + 4) // 3 microbatches."""
    return 2 * ((stages + 4) // 3)


def v_half_in_flight(stages: int) -> int:
    """Chunk activations that V-Half holds: those of (p + 2) // 2 microbatches."""
    return 2 * ((stages + 2) // 2)


def v_min(stages: int, chunks: int, microbatches: int) -> Order:
    """A third of the memory of 1F1B, about two thirds of its bubble.

    Source:
        Qi et al. (arXiv 2405.15362, section 3).
    """
    return _repeat_block(v_min_block, stages, chunks, microbatches, v_min_in_flight(stages))


def v_half(stages: int, chunks: int, microbatches: int) -> Order:
    """Half of the memory of 1F1B, at most half of its bubble.

    Source:
        Qi et al. (arXiv 2405.15362, section 3).
    """
    return _repeat_block(v_half_block, stages, chunks, microbatches, v_half_in_flight(stages))


def _repeat_block(block: Block, stages: int, chunks: int, microbatches: int, limit: int) -> Order:
    """The block for every microbatch, squeezed; weight gradients fill the gaps."""
    queues = []
    for rank in range(stages):
        ticks = [
            (start + PERIOD * microbatch, slot._replace(microbatch=microbatch))
            for microbatch in range(microbatches)
            for start, slot in zip(block(rank, stages), _first_slots(rank, stages), strict=True)
        ]
        urgent = [slot for _, slot in sorted(ticks)]
        weights = [
            slot._replace(phase=Phase.BACKWARD_WEIGHT)
            for slot in urgent
            if slot.phase is Phase.BACKWARD_INPUT
        ]
        queues.append((urgent, weights))
    return list_schedule(queues, chunks, Placement.V, limit)


def _first_slots(rank: int, stages: int) -> tuple[Slot, ...]:
    """What a rank does for microbatch 0 beside weight gradients, in order."""
    down, up = rank, 2 * stages - 1 - rank
    return (
        Slot(Phase.FORWARD, down, 0),
        Slot(Phase.FORWARD, up, 0),
        Slot(Phase.BACKWARD_INPUT, up, 0),
        Slot(Phase.BACKWARD_INPUT, down, 0),
    )
