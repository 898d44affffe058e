"""The order of Varuna, made for slow networks and full recomputation."""

from __future__ import annotations

from simulator.schedule.list_scheduling import list_schedule
from simulator.schedule.slots import Order, Phase, Placement, slots_of

RECOMPUTED_TICKS = {Phase.FORWARD: 1, Phase.BACKWARD: 3}
"""A backward is the recomputed forward and two more for the gradients (assumption)."""


def varuna(stages: int, chunks: int, microbatches: int) -> Order:
    """A rank runs a backward whenever one is ready, and otherwise the next forward.

    Only inputs are kept, so forwards may run far ahead and hide late gradients. Varuna
    starts the recomputation shortly before its gradient arrives; here it is the first part
    of the backward slot. The rule is the paper's, the order is not checked against Varuna.

    Source:
        Athlur et al., Varuna (arXiv 2111.04007, section 3.2).
    """
    urgency = (Phase.BACKWARD, Phase.FORWARD)
    queues = [
        [slots_of(phase, rank, range(microbatches)) for phase in urgency] for rank in range(stages)
    ]
    return list_schedule(queues, chunks, Placement.LOOP, limit=microbatches, ticks=RECOMPUTED_TICKS)
