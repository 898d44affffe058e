"""The order of Varuna, made for slow networks and full recomputation."""

from __future__ import annotations

from simulator.schedule.info import Note, PassCosts, ScheduleInfo
from simulator.schedule.orders.order_tools import list_schedule
from simulator.schedule.slots import Order, Phase, Placement, Slot, slots_of


def varuna(stages: int, chunks: int, microbatches: int) -> Order:
    """A rank runs a backward whenever its gradient is there, and otherwise the next forward.

    Only inputs are kept, so forwards may run far ahead and hide late gradients. Backwards
    are whole in this order; the rule sees them as recomputation and input gradient, which
    the stage before waits for, and weight gradient. Each takes one tick, as a forward does.
    The last rank need not recompute, since its backward follows its forward at once.

    Source:
        Athlur et al., Varuna (arXiv 2111.04007, section 3.2); precedence and ticks of the
        schedule generator in Varuna's repository.
    """
    urgency = (Phase.BACKWARD_WEIGHT, Phase.BACKWARD_INPUT, Phase.FORWARD)
    queues = _queues(urgency, stages, microbatches)

    def duration(slot: Slot) -> float:
        recomputes = slot.phase is Phase.BACKWARD_INPUT and slot.stage < stages - 1
        return 2.0 if recomputes else 1.0

    split = list_schedule(queues, chunks, Placement.LOOP, limit=microbatches, duration=duration)
    return [_without_split(row) for row in split]


def varuna_of(stages: int, chunks: int, microbatches: int, costs: PassCosts) -> Order:
    """What ranks do that follow the rule at run time: a backward if one is there, else a forward.

    A gradient that a slow rank or link delays is not waited for while there are forwards, so
    ranks run further ahead the slower things are. Backwards run whole.

    Source:
        Athlur et al., Varuna (arXiv 2111.04007, section 3.2).
    """
    queues = _queues((Phase.BACKWARD, Phase.FORWARD), stages, microbatches)
    return list_schedule(
        queues, chunks, Placement.LOOP, microbatches, costs.slot_s, costs.transfer_s
    )


def _queues(urgency: tuple[Phase, ...], stages: int, microbatches: int) -> list[list[list[Slot]]]:
    todo = range(microbatches)
    return [[slots_of(phase, rank, todo) for phase in urgency] for rank in range(stages)]


def _without_split(row: list[Slot]) -> list[Slot]:
    whole = {Phase.FORWARD: Phase.FORWARD, Phase.BACKWARD_INPUT: Phase.BACKWARD}
    return [slot._replace(phase=whole[slot.phase]) for slot in row if slot.phase in whole]


def varuna_in_flight(rank: int, stages: int, _chunks: int, microbatches: int) -> int:
    """Three per rank behind, since a gradient takes three ticks per rank there and back.

    Derived from the ticks of its generator (:func:`varuna`).
    """
    behind = stages - 1 - rank
    return min(max(1, 3 * behind), microbatches)


def varuna_messages(stages: int, _chunks: int, _microbatches: int) -> int:
    """Two, where there is a rank between the first and the last: forwards run ahead."""
    return min(2, 2 * max(0, stages - 2))


VARUNA = ScheduleInfo(
    name="varuna",
    order=varuna,
    costed_order=varuna_of,
    summary="a backward whenever one is ready, else a forward; for full recomputation",
    source="Varuna, arXiv 2111.04007, and the generator in its repository",
    in_flight=varuna_in_flight,
    buffers=varuna_messages,
    note=Note(
        text="A rank runs a backward whenever its gradient has arrived, else the next forward. It "
        "is made for slow networks and full recomputation, where a rank keeps only its inputs and "
        "running ahead is cheap. The order is planned for backwards that recompute; the picture "
        "uses the times of the other schedules, without recomputation. In a job, ranks follow the "
        "rule as results arrive, and may hold more or fewer activations.",
        bubble="",
        activations="min(m, 3 * (p - 1))",
    ),
)
