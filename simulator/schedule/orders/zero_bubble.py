"""Orders that split the backward: input gradients first, weight gradients into the bubbles.

Nobody waits for a weight gradient, so it can run wherever a rank would be idle.
"""

from __future__ import annotations

from simulator.schedule.orders.one_f_one_b import interleaved_slots, round_length
from simulator.schedule.orders.zero_bubble_search import searched_order
from simulator.schedule.pass_costs import PassCosts, even_pass_costs
from simulator.schedule.slots import Order, Phase, Slot, slots_of


def zb_h1(stages: int, chunks: int, microbatches: int) -> Order:
    """1F1B with its memory, and a third of its bubble where all phases take equal time.

    The bubble is (p - 1)(tF + tI - tW): rank r puts its weight gradients off by r
    microbatches, so that they fill what it would wait for at the end.

    Source:
        Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241, section 2.1).
    """
    del chunks
    return [
        _split_1f1b(
            slots_of(Phase.FORWARD, rank, range(microbatches)),
            slots_of(Phase.BACKWARD_INPUT, rank, range(microbatches)),
            ahead=stages - rank,
            delay=rank,
        )
        for rank in range(stages)
    ]


def zb_h2(stages: int, chunks: int, microbatches: int) -> Order:
    """Twice the memory of 1F1B, and no bubble where all phases take equal time.

    The bubble between a rank's own start and end is (p - 1)(tF + tI - 2 tW): twice as many
    forwards run ahead, and weight gradients are put off twice as long, as in ZB-H1.

    Source:
        Qi et al. (arXiv 2401.10241, section 2.2).
    """
    del chunks
    return [
        _split_1f1b(
            slots_of(Phase.FORWARD, rank, range(microbatches)),
            slots_of(Phase.BACKWARD_INPUT, rank, range(microbatches)),
            ahead=2 * (stages - rank) - 1,
            delay=2 * rank,
        )
        for rank in range(stages)
    ]


def zb_1p(stages: int, chunks: int, microbatches: int) -> Order:
    """ZB-H1 over several interleaved chunks; with one chunk it is ZB-H1.

    Source:
        Qi et al. (arXiv 2401.10241, section 4); order of torch's
        ``ScheduleInterleavedZeroBubble``, which calls itself ZB1P.
    """
    ahead = (chunks - 1) * round_length(stages, microbatches) + stages
    sizes = (stages, chunks, microbatches)
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

    Here for passes of equal length, with which no bubble is left.

    Source:
        Qi et al. (arXiv 2401.10241, section 3).
    """
    return zb_2p_of(stages, chunks, microbatches, even_pass_costs(stages))


def zb_2p_of(stages: int, chunks: int, microbatches: int, costs: PassCosts) -> Order:
    """The same for the passes of a job: what fits depends on what they take and hold."""
    del chunks
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
