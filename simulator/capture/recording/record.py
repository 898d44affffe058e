"""What is written down of a rank while its code runs?

Rows, appended as things happen; :mod:`.table` turns them into columns. Storages of the device
are blocks: each is taken at one moment and given back at a later one. A moment is the number of
operations recorded before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from simulator.capture.table import BlockOwner, Call, Exchange, Phase


class Kept(IntEnum):
    """How sure an owner is: a surer one replaces a less sure one."""

    GUESSED = 0
    SEEN = 1
    SAID = 2


@dataclass(slots=True)
class Block:
    """One storage on the device.

    Attributes:
        num_bytes: As the allocator counts it [B].
        owner: Who holds it.
        module: Path of the module that took it.
        phase: When it was taken.
        taken: Moment at which it was taken.
        given: Moment at which it was given back; -1 while it is held.
        given_phase: The phase then.
        shards: Data-parallel ranks that hold a part each; 1 where all hold the same.
        sure: How sure the owner is.
    """

    num_bytes: int
    owner: BlockOwner
    module: int
    phase: Phase
    taken: int
    given: int = -1
    given_phase: Phase = Phase.OTHER
    shards: int = 1
    sure: Kept = Kept.GUESSED


@dataclass(slots=True)
class Operation:
    """One operator that reached the device, or one exchange.

    Attributes:
        call: Number of what it does among the distinct calls.
        stream: The stream it was issued on; exchanges that run beside one have their own.
        phase: When.
        module: Number of the module's path.
        exchange: Number of the exchange; -1 for a kernel.
    """

    call: int
    stream: int
    phase: Phase
    module: int
    exchange: int = -1


@dataclass(slots=True)
class Record:
    """Everything that one rank did.

    Attributes:
        rank: Which one.
        operations: In the order of issue.
        waits: Pairs (operation, earlier operation it waits for on another stream).
        calls: Distinct calls by number.
        exchanges: In the order of issue.
        groups: Ranks of every group, by number.
        paths: Module paths by number; the first is the model itself.
        blocks: All storages, in the order in which they were taken.
        sizes: (moment, block, bytes taken or given back), in order [B].
        steps: Moments at which steps begin, and how many changes of memory came before.
        kept_step: The step that is kept, from 0, where so many ran.
        updated_by: Optimizers that stepped in each step, by number.
        notes: What the code asked for that was left out, for people.
    """

    rank: int
    operations: list[Operation] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    calls: dict[Call, int] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    groups: dict[tuple[int, ...], int] = field(default_factory=dict)
    paths: dict[str, int] = field(default_factory=lambda: {"": 0})
    blocks: list[Block] = field(default_factory=list)
    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    kept_step: int = 1
    updated_by: list[set[int]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def moment(self) -> int:
        """Operations so far."""
        return len(self.operations)

    def end_update(self, end: tuple[int, int], optimizers: set[int]) -> None:
        """Take note of an update: it ends a step, or a part of one.

        Where optimizers take turns, as those of a generator and a discriminator do, a step lasts
        until one has its turn again.

        Args:
            end: Where the record was when it ended, as in ``steps``.
            optimizers: Those that stepped; none before the first step.
        """
        if self.updated_by and not optimizers & self.updated_by[-1]:
            self.updated_by[-1] |= optimizers
            self.steps[-1] = end
            return
        if self.steps:
            self.updated_by.append(set(optimizers))
        self.steps.append(end)

    @property
    def has_kept_step(self) -> bool:
        """Whether the step to be kept is whole: each optimizer of the step before had its turn."""
        over = len(self.steps) - self.kept_step - 2
        return over > 0 or (over == 0 and self.updated_by[-1] >= self.updated_by[0])

    def number_of(self, path: str) -> int:
        """Number of a module's path."""
        return self.paths.setdefault(path, len(self.paths))

    def number_of_call(self, call: Call) -> int:
        """Number of a call; the same calls share one."""
        return self.calls.setdefault(call, len(self.calls))

    def note(self, text: str) -> None:
        """Say once what was left out."""
        self.notes.setdefault(text)
