"""What does a pass add to a program that another of its rank has added before?

Passes between the first and the last of a step do the same, microbatch after microbatch: they
gather the same weights, wait for what came before and reduce the same gradients. What one has added
is written down, and added again for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simulator.program.ir import Memory, Operation, Program
from simulator.program.states.gather_units import Unit
from simulator.program.states.gathered_memory import RankGradients

_LOOKED_BACK_AT = 2
"""Reductions under way that a pass may wait for: the one before the last."""


@dataclass(slots=True)
class RankState:
    """What data parallelism has under way on a rank between two of its passes.

    Attributes:
        computed: Last computed run; -1 before the first.
        updated: Last update of its weights; -1 before the first.
        reductions: Those since the last update.
        awaited: Those that the next pass waits for, where every backward reduces.
        held: Units that are gathered.
        buffered: What was last gathered into.
        in_flight: What the last reduction reads, while the next piece runs.
        gradients: Those that exist since the last update.
    """

    computed: int = -1
    updated: int = -1
    reductions: list[int] = field(default_factory=list)
    awaited: tuple[int, ...] = ()
    held: set[Unit] = field(default_factory=set)
    buffered: Memory = ()
    in_flight: Memory = ()
    gradients: RankGradients = field(default_factory=RankGradients)

    def standing(self) -> Hashable:
        """All that decides what the next pass adds, but for the numbers of earlier operations."""
        if not (self.held or self.reductions or self.awaited or self.buffered or self.in_flight):
            return self.computed < 0
        counts = self.computed < 0, len(self.awaited), len(self.reductions[-_LOOKED_BACK_AT:])
        return frozenset(self.held), self.buffered, self.in_flight, counts

    def follow(self, relative: RankState, first: int) -> None:
        """Be as a pass leaves a rank, but for what it computes, counted from its first one."""
        before = self.before()
        if relative.awaited:
            self.reductions = []
        self.reductions += _numbered(relative.reductions, first, before)
        self.awaited = _numbered(relative.awaited, first, before)
        self.held, self.buffered = {*relative.held}, relative.buffered
        self.in_flight = relative.in_flight

    def copy(self) -> RankState:
        """The same, whatever happens to this one."""
        gradients = self.gradients.copy()
        return replace(self, reductions=[*self.reductions], held={*self.held}, gradients=gradients)

    def taken_reductions(self) -> tuple[int, ...]:
        """Those since the last update; somebody else waits for them now."""
        taken, self.reductions = self.reductions, []
        return tuple(taken)

    def before(self) -> list[int]:
        """Earlier operations that the next pass may wait for; as many wherever it stands alike."""
        return [self.computed, *self.awaited, *self.reductions[-_LOOKED_BACK_AT:]]


def _numbered(relative: Sequence[int], first: int, before: Sequence[int]) -> tuple[int, ...]:
    """Operations by their numbers, given those of a pass from 0 up and those before it from -1."""
    return tuple([first + n if n >= 0 else before[-1 - n] for n in relative])


class RepeatedPass(NamedTuple):
    """What a pass has added. Its operations count from its first one.

    Those before it count from -1 down, in the order of :meth:`RankState.before`.

    Attributes:
        operations: What it has added, what each of it waits for, and the operations of its lanes.
        receives: The one that waits for what another pass made.
        end: The last run of layers.
        arrives: The one after which the pass that needs its result has it; -1 without any.
        computed: The same, where data parallelism has to know; -1 where not.
        leaves: Else what is under way on its rank after it, with new reductions alone; None where
            it has changed nothing.
    """

    operations: Sequence[tuple[Operation, tuple[int, ...], Sequence[list[int]]]]
    receives: int
    end: int
    arrives: int
    computed: int
    leaves: RankState | None

    def add(self, program: Program, state: RankState, microbatch: int) -> int:
        """Add the same for another microbatch; returns the first operation."""
        operations = program.operations
        first = number = len(operations)
        before: list[int] = []
        for operation, after, lanes in self.operations:
            before = before or (state.before() if after else [])
            waits = _numbered(after, first, before) if after else after
            operations.append(operation.again(microbatch, waits))
            for lane in lanes:
                lane.append(number)
            number += 1
        if self.leaves is not None:
            state.follow(self.leaves, first)
        if self.computed >= 0:
            state.computed = first + self.computed
        return first

    def elsewhere(self, program: Program, move: Callable[[Operation], Operation]) -> RepeatedPass:
        """The same on another rank, which each operation is moved to; nothing is added yet."""
        moved = []
        for operation, after, _ in self.operations:
            there = move(operation)
            moved.append(
                (there, after, [program.lanes.setdefault(lane, []) for lane in there.lanes])
            )
        return self._replace(operations=moved)


def recorder(program: Program, state: RankState) -> Callable[[int, int, int], RepeatedPass | None]:
    """Writes down what a pass adds from now on.

    Args:
        program: What it adds to.
        state: Of its rank, which it changes.

    Returns:
        A function to call when it has been added, with the operation that waits for what another
        pass made, the last run of layers, and the operation after which its result has arrived or
        -1. None if it waits for more than it may.
    """
    first, was = len(program.operations), state.copy()
    places = {number: -1 - place for place, number in enumerate(state.before())}

    def relative(numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple([n - first if n >= first else places[n] for n in numbers])

    def written(receives: int, end: int, arrives: int) -> RepeatedPass | None:
        operations = program.operations[first:]
        waits = [operation.after for operation in operations]
        earlier = {n for numbers in (*waits, state.awaited) for n in numbers if n < first}
        if not earlier <= places.keys():
            return None
        leaves = None
        if replace(was, computed=state.computed) != state:
            leaves = state.copy()
            leaves.reductions = [n - first for n in state.reductions if n >= first]
            leaves.awaited = relative(state.awaited)
        lanes = [[program.lanes[lane] for lane in operation.lanes] for operation in operations]
        return RepeatedPass(
            [*zip(operations, map(relative, waits), lanes, strict=True)], receives - first,
            end - first, max(-1, arrives - first), max(-1, state.computed - first), leaves,
        )  # fmt: skip

    return written
