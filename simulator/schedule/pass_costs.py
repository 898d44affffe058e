"""What does an order need to know that is decided from the job at hand?

Most orders are fixed by their sizes. Those that are searched or found at run time depend on
how long passes and sends take and on what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulator.schedule.slots import Phase, Slot
from simulator.schedule.unit_time import EQUAL_COSTS


@dataclass(frozen=True)
class PassCosts:
    """Time and memory of the passes of one microbatch, in any units.

    Attributes:
        seconds: Duration by phase and virtual stage.
        transfer_s: Time that a result takes from one rank to another, as (sender, receiver).
        saved_bytes: Activations that a forward leaves, per virtual stage.
        pending_bytes: What of them, or made from them, an input gradient leaves for the weight
            gradient, per virtual stage.
    """

    seconds: Mapping[tuple[Phase, int], float]
    transfer_s: Callable[[int, int], float]
    saved_bytes: Sequence[float]
    pending_bytes: Sequence[float]

    def slot_s(self, slot: Slot) -> float:
        """Duration of a slot."""
        return self.seconds[slot.phase, slot.stage]


def even_pass_costs(stages: int, costs: Mapping[Phase, float] = EQUAL_COSTS) -> PassCosts:
    """Every stage alike, free transfers, and nothing freed half-way."""
    seconds = {(phase, stage): s for phase, s in costs.items() for stage in range(stages)}
    return PassCosts(seconds, lambda *_: 0.0, [1.0] * stages, [1.0] * stages)
