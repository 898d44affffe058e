"""What does a pipeline have to know of its slots, and whom does it ask for the rest?

It knows orders and transfers alone: which slots of a rank begin or end something, where the passes
of a virtual stage belong and which way their results go. What a run of layers costs, which weights
must be brought together for it and where its activations go are the answers of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Lane, Memory, Stream
from simulator.schedule.slots import Phase, Placement, Slot


class Gather(NamedTuple):
    """Weights that are brought together for a piece.

    Attributes:
        operations: What the piece waits for.
        takes: Memory of the weights, from when they are asked for.
    """

    operations: tuple[int, ...] = ()
    takes: Memory = ()


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
        """Slots that begin or end anything, but turns of their own."""
        return frozenset().union(
            self.first_forwards, self.first_backwards, self.last_backwards,
            self.turn_starts ^ self.turn_ends,
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


class Task(NamedTuple):
    """A slot about to become operations.

    Attributes:
        rank: Whose it is.
        slot: What it is.
        is_first, is_last: Whether it is the first or the last of its phase for some weights.
        reduces: Whether gradients are reduced while it runs.
        exposed: Share of its exchanges with experts that delays it.
    """

    rank: int
    slot: Slot
    is_first: bool
    is_last: bool
    reduces: bool
    exposed: float


class Route(NamedTuple):
    """Where the passes of one phase of a virtual stage belong.

    Attributes:
        run: Their layers.
        chunk: Which part of their rank it is.
        fed: Virtual stage that needs what they compute; None if no other does.
        target: Rank of that stage; -1 if there is none.
        lanes: Those that a transfer to it occupies.
        feeds: Phase of that stage.
        turns: Whether the model ends here, so that forward leads straight to its backward.
    """

    run: Slice
    chunk: int
    fed: int | None
    target: int
    lanes: tuple[Lane, Lane]
    feeds: Phase
    turns: bool


@dataclass
class Routes:
    """Routes of all passes, each found once.

    Attributes:
        placement: Which rank holds which virtual stage.
        stages: Ranks of the pipeline.
        chunks: Virtual stages per rank.
        runs: Layers of each virtual stage.
    """

    placement: Placement
    stages: int
    chunks: int
    runs: Sequence[Slice]
    found: dict[tuple[Phase, int], Route] = field(default_factory=dict)

    def of(self, slot: Slot) -> Route:
        """The route of a slot."""
        key = slot[:2]
        route = self.found.get(key)
        if route is None:
            route = self.found[key] = self._find(slot)
        return route

    def _find(self, slot: Slot) -> Route:
        placement, stages, chunks = self.placement, self.stages, self.chunks
        fed = placement.feeds(slot, stages, chunks)
        target = -1 if fed is None else placement.rank(fed, stages)
        source, is_forward = placement.rank(slot.stage, stages), slot.phase is Phase.FORWARD
        return Route(
            run=self.runs[placement.model_stage(slot.stage, stages, chunks)],
            chunk=placement.chunk(slot.stage, stages),
            fed=fed,
            target=target,
            lanes=self._lanes(source, target, is_forward=is_forward),
            feeds=Phase.FORWARD if is_forward else Phase.BACKWARD,
            turns=is_forward and fed is None,
        )

    def _lanes(self, source: int, target: int, *, is_forward: bool) -> tuple[Lane, Lane]:
        """Send and receive lanes; each receive lane has one sender, so order is kept."""
        loops = self.placement is Placement.LOOP
        to_next = is_forward if loops else target > source
        send = Stream.SEND_NEXT if to_next else Stream.SEND_PREVIOUS
        receive = Stream.RECV_PREVIOUS if to_next else Stream.RECV_NEXT
        return (source, send), (target, receive)


def without_common(taken: Memory, given: Memory) -> tuple[Memory, Memory]:
    """Blocks that are taken and stay, and those that are given back and were there before."""
    stays, rest = list(taken), list(given)
    for block in taken:
        if block in rest:
            rest.remove(block)
            stays.remove(block)
    return tuple(stays), tuple(rest)
