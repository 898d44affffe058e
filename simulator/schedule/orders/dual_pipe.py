"""Orders that run a forward and a backward as one joint operation, fed from both ends.

Joining them hides the expert-parallel all-to-all of one half behind the computation of
the other.
"""

from __future__ import annotations

from simulator.schedule.orders.numbering import joint, numbered, step
from simulator.schedule.slots import Order, Phase, Slot


def dualpipe_v(stages: int, chunks: int, microbatches: int) -> Order:
    """DualPipe cut in half: two chunks per rank, laid out as a V, one copy of the model.

    Source:
        DeepSeek's DualPipe repository, "DualPipeV", and Sea AI Lab's "cut-in-half" note;
        order of torch's ``ScheduleDualPipeV``.
    """
    del chunks
    return [
        _rank_order(rank, stages, rank, 2 * stages - 1 - rank, microbatches)
        for rank in range(stages)
    ]


def dualpipe(stages: int, chunks: int, microbatches: int) -> Order:
    """Two copies of the model, one down and one up the ranks, half of the microbatches each.

    Microbatches 0 .. m/2-1 go down (virtual stages 0 .. p-1), the others go up. Ranks r and
    p-1-r mirror each other.

    Source:
        DeepSeek-V3 technical report (arXiv 2412.19437, section 3.2.1, figure 5).
    """
    del chunks
    half = microbatches // 2
    order: Order = []
    for rank in range(stages):
        down, up = rank, 2 * stages - 1 - rank
        # The copy that starts at the nearer end leads.
        lead, trail = (down, up) if rank < stages // 2 else (up, down)
        from_end = min(rank, stages - 1 - rank)
        slots = _rank_order(from_end, stages // 2, lead, trail, half)
        order.append([_second_half(slot, stages, half) for slot in slots])
    return order


def _second_half(slot: Slot, stages: int, half: int) -> Slot:
    """The slot with its microbatch counted over both directions."""
    if slot.stage < stages:
        return slot
    return slot._replace(microbatch=slot.microbatch + half)


def _rank_order(
    from_end: int, to_middle: int, lead: int, trail: int, microbatches: int
) -> list[Slot]:
    """The slots of a rank that stands ``from_end`` ranks from its end of the pipeline.

    ``lead`` is the stage whose microbatches arrive first here, ``trail`` the one whose
    microbatches have first been all the way to the turn, ``to_middle`` ranks from the end.
    """
    f0, b0, i0 = (step(phase, lead) for phase in _BACKWARD_IN_ONE_OR_TWO)
    f1, b1, i1 = (step(phase, trail) for phase in _BACKWARD_IN_ONE_OR_TWO)
    w0, w1 = step(Phase.BACKWARD_WEIGHT, lead), step(Phase.BACKWARD_WEIGHT, trail)
    behind = from_end + 1
    ahead = to_middle - behind
    steady = [*joint(f0, b1), *joint(f1, b0)] * (microbatches - 2 * to_middle + behind)
    if ahead == 0:
        # At the turn the first backward waits for the very forward it would be joined with.
        steady[0] = f0
    drain = [b1, b0] * behind
    split_drain = [i1 if slot is b1 else i0 for slot in drain[behind:]]
    return numbered(
        [
            *[f0] * (2 * ahead),
            *[f0, f1] * behind,
            *[i1, w1, f1] * ahead,
            *steady,
            *[b1, *joint(f1, b0)] * ahead,
            *drain[:behind],
            *split_drain,
            *_weights_between(split_drain, i0, ahead, w0, w1),
        ],
        microbatches,
    )


def _weights_between(split: list[Slot], i0: Slot, ahead: int, w0: Slot, w1: Slot) -> list[Slot]:
    """The weight gradients left, oldest first, with the last ``ahead`` input gradients."""
    weights = [w0 if slot.stage == i0.stage else w1 for slot in [*split, *[i0] * ahead]]
    between = [slot for weight in weights[:ahead] for slot in (weight, i0)]
    return between + weights[ahead:]


_BACKWARD_IN_ONE_OR_TWO = (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD_INPUT)
