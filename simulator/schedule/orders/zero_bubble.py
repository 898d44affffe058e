"""Orders that split the backward: input gradients first, weight gradients into the bubbles.

Nobody waits for a weight gradient, so it can run wherever a rank would be idle.
"""

from __future__ import annotations

from simulator.schedule.info import (
    EQUAL_TIMES,
    Note,
    PassCosts,
    ScheduleInfo,
    even_pass_costs,
    one_message,
)
from simulator.schedule.orders.one_f_one_b import (
    interleaved_slots,
    other_chunks_round,
    round_length,
    whole_rounds,
)
from simulator.schedule.orders.zero_bubble_search import searched_order
from simulator.schedule.slots import Order, Phase, Slot, slots_of


def zb_h1(stages: int, _chunks: int, microbatches: int) -> Order:
    """1F1B with its memory, and a third of its bubble where all phases take equal time.

    The bubble is (p - 1)(tF + tI - tW): rank r puts its weight gradients off by r
    microbatches, so that they fill what it would wait for at the end.

    Source:
        Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241, section 2.1).
    """
    return [
        _split_1f1b(*_one_stage(rank, microbatches), ahead=stages - rank, delay=rank)
        for rank in range(stages)
    ]


def zb_h2(stages: int, _chunks: int, microbatches: int) -> Order:
    """Twice the memory of 1F1B, and no wait between passes where all take equal time.

    The bubble between a rank's own start and end is (p - 1)(tF + tI - 2 tW): twice as many
    forwards run ahead, and weight gradients are put off twice as long, as in ZB-H1.

    Source:
        Qi et al. (arXiv 2401.10241, section 2.2).
    """
    return [
        _split_1f1b(*_one_stage(rank, microbatches), ahead=2 * (stages - rank) - 1, delay=2 * rank)
        for rank in range(stages)
    ]


def _one_stage(stage: int, microbatches: int) -> tuple[list[Slot], list[Slot]]:
    """Forwards and input gradients of a rank with one stage."""
    todo = range(microbatches)
    return slots_of(Phase.FORWARD, stage, todo), slots_of(Phase.BACKWARD_INPUT, stage, todo)


def zb_1p(stages: int, chunks: int, microbatches: int) -> Order:
    """ZB-H1 over several interleaved chunks; with one chunk it is ZB-H1.

    Source:
        Qi et al. (arXiv 2401.10241, section 4); order of torch's
        ``ScheduleInterleavedZeroBubble``, which calls itself ZB1P.
    """
    sizes = (stages, chunks, microbatches)
    ahead = other_chunks_round(*sizes) + stages
    return [
        _split_1f1b(
            interleaved_slots(Phase.FORWARD, rank, *sizes),
            interleaved_slots(Phase.BACKWARD_INPUT, rank, *sizes),
            ahead=ahead - rank,
            delay=rank,
        )
        for rank in range(stages)
    ]


def zb_2p(stages: int, chunks: int, microbatches: int) -> Order:
    """The order that fills bubbles best within the activations of 2p microbatches.

    Here for passes of equal length, with which no wait is left between them.

    Source:
        Qi et al. (arXiv 2401.10241, section 3).
    """
    return zb_2p_of(stages, chunks, microbatches, even_pass_costs(stages))


def zb_2p_of(stages: int, _chunks: int, microbatches: int, costs: PassCosts) -> Order:
    """The same for the passes of a job: what fits depends on what they take and hold."""
    limits_bytes = (2 * stages * saved for saved in costs.saved_bytes)
    return searched_order(stages, microbatches, costs, limits_bytes)


def _split_1f1b(
    forward: list[Slot], backward_input: list[Slot], ahead: int, delay: int
) -> list[Slot]:
    """``ahead`` forwards, then input gradient, weight gradient and forward in turn.

    Weight gradients lag ``delay`` microbatches behind the input gradients.
    """
    weight = [slot._replace(phase=Phase.BACKWARD_WEIGHT) for slot in backward_input]
    slots = forward[:ahead]
    for index, slot in enumerate(backward_input):
        slots.append(slot)
        if index >= delay:
            slots.append(weight[index - delay])
        slots += forward[ahead + index : ahead + index + 1]
    return slots + weight[max(0, len(weight) - delay) :]


def zb_h1_in_flight(_rank: int, stages: int, _chunks: int, microbatches: int) -> int:
    """On every rank p: what 1F1B holds on its first (arXiv 2401.10241, section 2)."""
    return min(stages, microbatches)


def zb_h2_in_flight(_rank: int, stages: int, _chunks: int, microbatches: int) -> int:
    """2p - 1 on every rank (arXiv 2401.10241, section 2)."""
    return min(2 * stages - 1, microbatches)


def zb_1p_in_flight(_rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """A round through all chunks but one, and p; the same on every rank."""
    ahead = other_chunks_round(stages, chunks, microbatches) + stages
    return min(ahead, chunks * microbatches)


def zb_2p_in_flight(_rank: int, stages: int, _chunks: int, microbatches: int) -> int:
    """2p on every rank, its limit (arXiv 2401.10241, section 5.1)."""
    return min(2 * stages, microbatches)


def zb_1p_messages(stages: int, chunks: int, microbatches: int) -> int:
    """With one chunk none, as zb-h1; with several p/2, and what rounds are longer than p."""
    length = round_length(stages, microbatches)
    if chunks == 1 or not 1 < stages <= length:
        return 0
    return (stages + 1) // 2 + length - stages


ZB_H1 = ScheduleInfo(
    name="zb-h1",
    order=zb_h1,
    summary="split backward, memory of 1F1B, bubble (p-1)(tF+tI-tW)",
    source="Zero Bubble, arXiv 2401.10241",
    in_flight=zb_h1_in_flight,
    splits_backward=True,
    note=Note(
        text="The backward is split in two: input gradients, which the previous rank needs, run "
        "at once; weight gradients, which no rank waits for, run when the rank would idle. With "
        "the activations of 1F1B's first rank on every rank, a third of its bubble is left if all "
        "phases take equal time.",
        bubble="(p - 1) * (tF + tI - tW)",
        bubble_when="tW <= tI",
        activations="min(m, p)",
    ),
)


ZB_H2 = ScheduleInfo(
    name="zb-h2",
    order=zb_h2,
    summary="split backward, twice the memory of 1F1B, no waits between equal passes",
    source="Zero Bubble, arXiv 2401.10241",
    in_flight=zb_h2_in_flight,
    buffers=one_message,
    splits_backward=True,
    note=Note(
        text="Like zb-h1, with almost twice as many forwards ahead. Ranks start and end one "
        "forward apart and never wait in between; there is no bubble if the optimizer step does "
        "not synchronise them. The price is twice the activations.",
        bubble="(p - 1) * (tF + tI - 2 * tW)",
        bubble_when="tW <= tI",
        bubble_is_between=True,
        activations="min(m, 2 * p - 1)",
    ),
)


ZB_1P = ScheduleInfo(
    name="zb-1p",
    order=zb_1p,
    summary="split backward, activations of p microbatches, several chunks per rank",
    source="Zero Bubble, arXiv 2401.10241; torch ScheduleInterleavedZeroBubble",
    in_flight=zb_1p_in_flight,
    buffers=zb_1p_messages,
    chunks=(1, None),
    rule=whole_rounds,
    splits_backward=True,
    torch_name="InterleavedZeroBubble",
    note=Note(
        text="Like zb-h1 over several chunks per rank, which divides the remaining bubble by "
        "their number.",
        bubble="(p - 1) * (tF + tI - tW) / v",
        bubble_when=EQUAL_TIMES,
        activations="min(m, p)",
    ),
)


ZB_2P = ScheduleInfo(
    name="zb-2p",
    order=zb_2p,
    costed_order=zb_2p_of,
    summary="split backward, searched within the activations of 2p microbatches",
    source="Zero Bubble, arXiv 2401.10241, section 3",
    in_flight=zb_2p_in_flight,
    buffers=one_message,
    splits_backward=True,
    note=Note(
        text="Found by a search: as many forwards ahead as the activations of 2p microbatches "
        "allow, then one forward and one input gradient in turn. Weight gradients run where they "
        "fill a wait or must free memory. In a job, the search uses the times and memory of its "
        "own passes; in the picture, all are equal.",
        bubble="0",
        bubble_when=EQUAL_TIMES,
        bubble_is_between=True,
        activations="min(m, 2 * p)",
    ),
)
