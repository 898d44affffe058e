"""Zero bubble with 1F1B's memory: two chunks per rank, laid out as a V."""

from __future__ import annotations

from simulator.schedule.orders.numbering import numbered, step
from simulator.schedule.slots import Order, Phase, Slot


def zb_v(stages: int, chunks: int, microbatches: int) -> Order:
    """Input gradients first, weight gradients into the bubbles, chunks down and up again.

    The last stage sits on the first rank, so the loss, and with it the first backward,
    comes to a rank early and activations are balanced over the ranks.

    Source:
        ZB-V of Qi et al. (arXiv 2401.10241, section 6); order of torch's
        ``ScheduleZBVZeroBubble``.
    """
    del chunks
    return [_rank_order(rank, stages, microbatches) for rank in range(stages)]


def _rank_order(rank: int, stages: int, microbatches: int) -> list[Slot]:
    down, up = rank, 2 * stages - 1 - rank
    f0, i0, w0 = (step(phase, down) for phase in _SPLIT)
    f1, i1, w1 = (step(phase, up) for phase in _SPLIT)
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


_SPLIT = (Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
