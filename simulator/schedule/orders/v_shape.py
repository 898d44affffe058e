"""Orders of two chunks per rank that lie as a V: down the ranks and up again.

ZB-V fills the bubbles within 1F1B's memory. V-Half and V-Min trade bubble for memory: all
microbatches repeat one building block, the time at which each rank runs the forwards and input
gradients of its two chunks for microbatch 0; microbatch n follows n periods later. The slower the
wave travels through the block, the longer activations live and the more of them are held. The
blocks are those of the authors; how orders are squeezed and weight gradients fill the gaps is
ours, within the memory that the authors state.

Source:
    Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362, section 3); blocks
    from the authors' scheduler (``zbv_greedy.py`` of sail-sg/zero-bubble-pipeline-parallelism),
    memory and bubble rates from the table on their project page.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.schedule.info import EQUAL_TIMES, Note, ScheduleInfo, one_message
from simulator.schedule.orders.order_tools import list_schedule, numbered, step
from simulator.schedule.slots import SPLIT_PHASES, Order, Phase, Placement, Slot


def zb_v(stages: int, _chunks: int, microbatches: int) -> Order:
    """Input gradients first, weight gradients into the bubbles, chunks down and up again.

    The last stage sits on the first rank, so the loss, and with it the first backward,
    comes to a rank early and activations are balanced over the ranks.

    Source:
        ZB-V of Qi et al. (arXiv 2401.10241, section 6); order of torch's
        ``ScheduleZBVZeroBubble``.
    """
    return [_rank_order(rank, stages, microbatches) for rank in range(stages)]


def _rank_order(rank: int, stages: int, microbatches: int) -> list[Slot]:
    down, up = rank, 2 * stages - 1 - rank
    f0, i0, w0 = (step(phase, down) for phase in SPLIT_PHASES)
    f1, i1, w1 = (step(phase, up) for phase in SPLIT_PHASES)
    # The pattern is that of a full pipeline; fewer microbatches leave slots out.
    full = max(microbatches, 2 * stages - 1)
    to_turn = stages - rank
    pattern = [
        *[f0] * (2 * to_turn - 1),
        *[f1, f0] * rank,
        *[f1, i1, w1] * to_turn,
        *[f0, i0, w0, f1, i1, w1] * (full - stages),
        *[i0, i1] * rank,
        *[i0, w0] * to_turn,
        *[w1] * rank,
        *[w0] * rank,
    ]
    return numbered(pattern, microbatches)


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


def v_min_chunks(stages: int) -> int:
    """Chunk activations that V-Min holds: those of (p + 4) // 3 microbatches."""
    return 2 * ((stages + 4) // 3)


def v_half_chunks(stages: int) -> int:
    """Chunk activations that V-Half holds: those of (p + 2) // 2 microbatches."""
    return 2 * ((stages + 2) // 2)


def v_min(stages: int, chunks: int, microbatches: int) -> Order:
    """A third of the memory of 1F1B, about two thirds of its bubble.

    Source:
        Qi et al. (arXiv 2405.15362, section 3).
    """
    return _repeat_block(v_min_block, stages, chunks, microbatches, v_min_chunks(stages))


def v_half(stages: int, chunks: int, microbatches: int) -> Order:
    """Half of the memory of 1F1B, at most half of its bubble.

    Source:
        Qi et al. (arXiv 2405.15362, section 3).
    """
    return _repeat_block(v_half_block, stages, chunks, microbatches, v_half_chunks(stages))


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


def v_half_in_flight(_rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """About p chunks on every rank, half of 1F1B's (arXiv 2405.15362, project page)."""
    return min(v_half_chunks(stages), chunks * microbatches)


def v_min_in_flight(_rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """About 2p/3 chunks on every rank, a third of 1F1B's (arXiv 2405.15362, project page)."""
    return min(v_min_chunks(stages), chunks * microbatches)


def zb_v_in_flight(_rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """2p chunks: what 1F1B holds on its first rank, on every rank (arXiv 2401.10241, section 6)."""
    return min(2 * stages, chunks * microbatches)


ZB_V = ScheduleInfo(
    name="zb-v",
    order=zb_v,
    summary="split backward, two chunks as a V, memory of 1F1B, no waits between equal passes",
    source="Zero Bubble, arXiv 2401.10241; torch ScheduleZBVZeroBubble",
    in_flight=zb_v_in_flight,
    buffers=one_message,
    placement=Placement.V,
    chunks=(2, 2),
    splits_backward=True,
    torch_name="ZBVZeroBubble",
    note=Note(
        text="Two chunks per rank, placed down the ranks and up again, so the last part of the "
        "model is on the first rank. Backwards reach every rank early, activations are balanced, "
        "and no rank waits between its start and its end, with no more memory than the first rank "
        "of 1F1B.",
        bubble="0",
        bubble_when=EQUAL_TIMES,
        bubble_is_between=True,
        activations="min(m, p)",
    ),
)


V_HALF = ScheduleInfo(
    name="v-half",
    order=v_half,
    summary="split backward, two chunks as a V, half the memory of 1F1B",
    source="Controllable Memory, arXiv 2405.15362",
    in_flight=v_half_in_flight,
    buffers=one_message,
    placement=Placement.V,
    chunks=(2, 2),
    splits_backward=True,
    note=Note(
        text="A V, as one block that every microbatch repeats: two ticks per rank on the way "
        "down, one on the way up. In long pipelines, activations approach half of those of 1F1B, "
        "with at most half of its bubble.",
        bubble="(p - 1) * (tF + tB) / 2",
        bubble_when=EQUAL_TIMES,
        bubble_is_bound=True,
        activations="min(m, (p + 2) // 2)",
    ),
)


V_MIN = ScheduleInfo(
    name="v-min",
    order=v_min,
    summary="split backward, two chunks as a V, a third of the memory of 1F1B",
    source="Controllable Memory, arXiv 2405.15362",
    in_flight=v_min_in_flight,
    placement=Placement.V,
    chunks=(2, 2),
    splits_backward=True,
    note=Note(
        text="A V with one tick per rank in each direction, so activations are kept as briefly as "
        "possible. In long pipelines they approach a third of those of 1F1B, with at most two "
        "thirds of its bubble.",
        bubble="(p - 1) * (tF + tB) * 2 / 3",
        bubble_when=EQUAL_TIMES,
        bubble_is_bound=True,
        activations="min(m, (p + 4) // 3)",
    ),
)
