"""What is one entry of a pipeline order, and on which rank does it run?

A pipeline order is one list of slots per rank. Slots name *virtual stages*: a rank that
holds several parts of the model runs several of them. The placement says which rank
holds a virtual stage and which virtual stage feeds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple


class Phase(StrEnum):
    """What a slot computes for one microbatch, spelled as torch spells it."""

    FORWARD = "F"
    BACKWARD = "B"
    """Gradients of inputs and of weights in one go."""
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


SPLIT_PHASES = (Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
"""Of a microbatch whose backward is split."""


class Slot(NamedTuple):
    """One computation of one rank.

    Attributes:
        phase: What is computed.
        stage: Virtual stage.
        microbatch: Which microbatch.
        overlaps_next: Runs together with the following slot as one joint operation, as the
            forward and backward halves of DualPipe do.
    """

    phase: Phase
    stage: int
    microbatch: int
    overlaps_next: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{self.phase}{self.microbatch}"


Order = list[list[Slot]]
"""What every rank runs, in order: ``order[rank]``."""


def joint_groups(slots: Iterable[Slot]) -> Iterator[list[Slot]]:
    """The slots in order, those that run together in one list."""
    group: list[Slot] = []
    for slot in slots:
        group.append(slot)
        if not slot.overlaps_next:
            yield group
            group = []
    if group:
        yield group


def joined(slots: list[Slot]) -> list[Slot]:
    """The slots, every forward joined with the backward right after it."""
    followers: list[Slot | None] = [*slots[1:], None]
    return [
        slot._replace(overlaps_next=_opens_pair(slot, after))
        for slot, after in zip(slots, followers, strict=True)
    ]


def _opens_pair(slot: Slot, after: Slot | None) -> bool:
    return slot.phase is Phase.FORWARD and after is not None and after.phase is Phase.BACKWARD


class Placement(StrEnum):
    """Where the virtual stages of ``stages`` ranks with ``chunks`` parts each live.

    ``LOOP`` deals them out in rounds: stage s on rank s mod p. ``V`` goes down the ranks and
    comes back: with two chunks, stages k and 2p-1-k on rank k. ``BIDIRECTIONAL`` has two
    copies of a p-stage model: stages 0 .. p-1 go down the ranks and stages p .. 2p-1, the
    second copy, go up, so that both ends of the pipeline start and finish microbatches.
    """

    LOOP = "loop"
    V = "v"
    BIDIRECTIONAL = "bidirectional"

    @property
    def copies(self) -> int:
        """How many copies of the model the ranks of one pipeline hold together."""
        return 2 if self is Placement.BIDIRECTIONAL else 1

    def num_virtual_stages(self, stages: int, chunks: int) -> int:
        """Virtual stages of the whole pipeline, all copies counted."""
        return stages * chunks * self.copies

    def model_stage(self, stage: int, stages: int, chunks: int) -> int:
        """Which part of the model a virtual stage is, 0 .. stages * chunks - 1."""
        return stage % (stages * chunks)

    def rank(self, stage: int, stages: int) -> int:
        """Rank that runs a virtual stage."""
        lap, position = divmod(stage, stages)
        if self is Placement.LOOP or lap % 2 == 0:
            return position
        return stages - 1 - position

    def is_first(self, stage: int, stages: int, chunks: int) -> bool:
        """Whether a virtual stage starts the model, and so receives no activations."""
        return self.model_stage(stage, stages, chunks) == 0

    def is_last(self, stage: int, stages: int, chunks: int) -> bool:
        """Whether a virtual stage ends the model, and so receives no gradients."""
        return self.model_stage(stage, stages, chunks) == stages * chunks - 1

    def feeds(self, slot: Slot, stages: int, chunks: int) -> int | None:
        """Virtual stage that needs what a slot computes; None if no other stage does."""
        if slot.phase is Phase.FORWARD:
            return None if self.is_last(slot.stage, stages, chunks) else slot.stage + 1
        if slot.phase is Phase.BACKWARD_WEIGHT or self.is_first(slot.stage, stages, chunks):
            return None
        return slot.stage - 1

    def chunk(self, stage: int, stages: int) -> int:
        """Which of the parts of its rank a virtual stage is, 0 first."""
        return stage // stages


def slots_of(phase: Phase, stage: int, microbatches: Iterable[int]) -> list[Slot]:
    """The slots of one phase on one stage, in the order of ``microbatches``."""
    return [Slot(phase, stage, microbatch) for microbatch in microbatches]


def alternate(first: list[Slot], second: list[Slot]) -> list[Slot]:
    """One slot of each list in turn; what is left of the longer one at the end."""
    common = min(len(first), len(second))
    pairs = [slot for pair in zip(first, second, strict=False) for slot in pair]
    return pairs + first[common:] + second[common:]
