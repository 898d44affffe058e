"""Which slots of a rank begin or end something, and so differ from all between them?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from simulator.schedule.slots import Phase, Slot

ENDS_BACKWARD = (Phase.BACKWARD, Phase.BACKWARD_WEIGHT)
"""Phases after which a microbatch's gradients are complete."""


@dataclass(frozen=True)
class SlotEdges:
    """First and last slots of one rank.

    Attributes:
        first_forwards, first_backwards, last_backwards: Those that are so for some weights
            between two updates.
        turn_starts, turn_ends: First and last of the backwards in a row that are of one virtual
            stage, where gradients are reduced turn by turn.
    """

    first_forwards: frozenset[Slot]
    first_backwards: frozenset[Slot]
    last_backwards: frozenset[Slot]
    turn_starts: frozenset[Slot] = frozenset()
    turn_ends: frozenset[Slot] = frozenset()

    @cached_property
    def all(self) -> frozenset[Slot]:
        """Slots that begin or end anything."""
        return frozenset().union(
            self.first_forwards, self.first_backwards, self.last_backwards, self.turn_starts,
            self.turn_ends,
        )  # fmt: skip


def slot_edges(
    slots: Sequence[Slot], *, chunks: int, update_every: int, reduces_by_turn: bool
) -> SlotEdges:
    """The edges of a rank's slots.

    Args:
        slots: In the order in which the rank runs them.
        chunks: Virtual stages of the rank; where there is one, every backward is its own turn.
        update_every: Microbatches after which the rank updates its weights; 0 is at the end.
        reduces_by_turn: Whether turns make a difference.
    """

    def updated(slot: Slot) -> tuple[int, int]:
        """Weights and update that a slot works for."""
        return slot.stage, slot.microbatch // update_every if update_every else 0

    def last_of_each(given: Iterable[Slot]) -> frozenset[Slot]:
        return frozenset({updated(slot): slot for slot in given}.values())

    forwards = [slot for slot in slots if slot.phase is Phase.FORWARD]
    backwards = [slot for slot in slots if slot.phase in ENDS_BACKWARD]
    turns = [[slot] for slot in backwards] if reduces_by_turn else []
    if reduces_by_turn and chunks > 1:
        turns = [list(turn) for _, turn in groupby(backwards, key=updated)]
    return SlotEdges(
        first_forwards=last_of_each(reversed(forwards)),
        first_backwards=last_of_each(reversed(backwards)),
        last_backwards=last_of_each(backwards),
        turn_starts=frozenset(turn[0] for turn in turns),
        turn_ends=frozenset(turn[-1] for turn in turns),
    )
