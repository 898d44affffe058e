"""Orders that feed the pipeline from both ends, or from both halves of a V.

DualPipe runs a forward and a backward as one joint operation, which hides the expert-parallel
all-to-all of one half behind the computation of the other.
"""

from __future__ import annotations

from simulator.schedule.info import Note, ScheduleInfo, one_message
from simulator.schedule.orders.order_tools import joint, numbered, step
from simulator.schedule.slots import Order, Phase, Placement, Slot


def dualpipe_v(stages: int, _chunks: int, microbatches: int) -> Order:
    """DualPipe cut in half: two chunks per rank, laid out as a V, one copy of the model.

    Source:
        DeepSeek's DualPipe repository, "DualPipeV", and Sea AI Lab's "cut-in-half" note;
        order of torch's ``ScheduleDualPipeV``.
    """
    return [
        _rank_order(rank, stages, rank, 2 * stages - 1 - rank, microbatches)
        for rank in range(stages)
    ]


def dualpipe(stages: int, _chunks: int, microbatches: int) -> Order:
    """Two copies of the model, one down and one up the ranks, half of the microbatches each.

    Microbatches 0 .. m/2-1 go down (virtual stages 0 .. p-1), the others go up. Ranks r and
    p-1-r mirror each other.

    Source:
        DeepSeek-V3 technical report (arXiv 2412.19437, section 3.2.1, figure 5).
    """
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


def chimera(stages: int, _chunks: int, microbatches: int) -> Order:
    """Half of every p microbatches go down the ranks, half go up, each as in 1F1B.

    Every rank holds two stages, one of each copy of the model. With equal times for forward
    and backward and p even the slots of the two directions interlock without a conflict:
    every slot has its place on a grid, and this order is the grid read along time. Units of
    p microbatches follow each other without a gap ("direct concatenation").

    Source:
        Li and Hoefler, Chimera (arXiv 2107.06925, sections 3.1, 3.2 and 3.5).
    """
    grid: list[list[tuple[int, Slot]]] = [[] for _ in range(stages)]
    for index in range(microbatches):
        # Pairs of microbatches start at both ends every second tick, p/2 pairs per unit.
        pair, goes_up = divmod(index, 2)
        unit, pair_in_unit = divmod(pair, stages // 2)
        start = 2 * stages * unit + 2 * pair_in_unit
        for position in range(stages):
            stage = position + stages * goes_up
            rank = stages - 1 - position if goes_up else position
            turned = start + 2 * stages - 1 - position
            grid[rank].append((start + position, Slot(Phase.FORWARD, stage, index)))
            grid[rank].append((turned, Slot(Phase.BACKWARD, stage, index)))
    return [[slot for _, slot in sorted(ticks)] for ticks in grid]


def even_directions(stages: int, _chunks: int, microbatches: int) -> tuple[str, str] | None:
    """Both directions have the same ranks and microbatches to themselves."""
    if stages % 2:
        return "plan.pp must be even", f"use plan.pp = {stages + 1}"
    if microbatches % 2:
        return "the number of microbatches must be even", f"use {microbatches + 1} microbatches"
    return None


def two_per_rank(stages: int, _chunks: int, microbatches: int) -> tuple[str, str] | None:
    """The pipeline fills before it drains."""
    if microbatches >= 2 * stages:
        return None
    return "needs at least 2 pp microbatches", f"use {2 * stages} microbatches, or a smaller pp"


def dualpipe_sizes(stages: int, chunks: int, microbatches: int) -> tuple[str, str] | None:
    """Even, and two microbatches per rank."""
    sizes = (stages, chunks, microbatches)
    return even_directions(*sizes) or two_per_rank(*sizes)


def dualpipe_in_flight(_rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """One more than the stages of the model (arXiv 2412.19437, table 2)."""
    return min(stages * chunks + 1, chunks * microbatches)


def chimera_in_flight(rank: int, stages: int, _chunks: int, microbatches: int) -> int:
    """p/2 + 1 on the outer ranks, p on the middle ones (arXiv 2107.06925, section 3)."""
    from_end = min(rank, stages - 1 - rank)
    return min(stages // 2 + 1 + from_end, microbatches)


DUALPIPE = ScheduleInfo(
    name="dualpipe",
    order=dualpipe,
    summary="two copies of the model in opposite directions; forward and backward overlap",
    source="DeepSeek-V3, arXiv 2412.19437",
    in_flight=dualpipe_in_flight,
    buffers=one_message,
    placement=Placement.BIDIRECTIONAL,
    rule=dualpipe_sizes,
    splits_backward=True,
    joins_passes=True,
    note=Note(
        text="Two copies of the model, fed from both ends. Where the two directions meet, the "
        "forward of one and the backward of the other run together (framed), so the "
        "expert-parallel all-to-all of each overlaps with the other's computation. The picture "
        "does not show that gain: a joint slot takes the sum of its halves.",
        bubble="(p / 2 - 1) * (tF + 2 * tB - 3 * tW)",
        bubble_when="tF = tI",
        activations="min(m, p + 1)",
    ),
)


DUALPIPEV = ScheduleInfo(
    name="dualpipev",
    order=dualpipe_v,
    summary="half of DualPipe: one copy of the model, two chunks per rank as a V",
    source="DeepSeek DualPipe; torch ScheduleDualPipeV",
    in_flight=dualpipe_in_flight,
    buffers=one_message,
    placement=Placement.V,
    chunks=(2, 2),
    rule=two_per_rank,
    splits_backward=True,
    torch_name="DualPipeV",
    joins_passes=True,
    note=Note(
        text="Half of DualPipe: the second model copy of a rank becomes a second chunk, placed as "
        "a V. It has the same joint slots with one copy of the weights.",
        bubble="(p - 1) * (tF + 2 * tB - 3 * tW) / 2",
        bubble_when="tF = tI",
        activations="min(m, p + 1 / 2)",
    ),
)


CHIMERA = ScheduleInfo(
    name="chimera",
    order=chimera,
    summary="two copies of the model in opposite directions; half the bubble of 1F1B",
    source="Chimera, arXiv 2107.06925",
    in_flight=chimera_in_flight,
    placement=Placement.BIDIRECTIONAL,
    rule=even_directions,
    note=Note(
        text="Two copies of the model. Half of the microbatches go down and half go up, each "
        "direction as in 1F1B and in the bubbles of the other. Units of p microbatches follow "
        "each other; if backwards take longer than forwards, they do not interlock exactly, as "
        "the picture shows.",
        bubble="(p - 2) / 2 * (tF + tB)",
        bubble_when="tB = tF",
        activations="min(m, p)",
    ),
)
