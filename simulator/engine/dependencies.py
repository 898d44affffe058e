"""What does each operation of a program wait for, and what is said if it waits for ever?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from simulator.program.ir import Program


class Dependencies(NamedTuple):
    """Who waits for whom.

    Attributes:
        counts: How many others each operation waits for: those that it names, and the one
            before it on each of its lanes.
        followers: The operations that wait for each one.
    """

    counts: list[int]
    followers: list[list[int]]


def dependencies(program: Program) -> Dependencies:
    """The dependencies of all operations of a program."""
    followers: list[list[int]] = [[] for _ in program.operations]
    counts = [len(operation.after) for operation in program.operations]
    for index, operation in enumerate(program.operations):
        for before in operation.after:
            followers[before].append(index)
    for lane in program.lanes.values():
        for before, index in itertools.pairwise(lane):
            followers[before].append(index)
            counts[index] += 1
    return Dependencies(counts, followers)


_MOST_SHOWN = 6
"""Operations that are named of those that cannot start."""


class DeadlockError(RuntimeError):
    """Operations wait for each other in a circle: the program is wrong, not the user."""


def deadlock_error(program: Program, blocked: Sequence[int]) -> DeadlockError:
    """The error that names the first operations that can never start."""
    names = []
    for index in blocked[:_MOST_SHOWN]:
        op = program.operations[index]
        lanes = ", ".join(f"{program.classes[c].name}/{s.value}" for c, s in op.lanes)
        names.append(f"{op.kind.value} of microbatch {op.microbatch}, chunk {op.chunk} on {lanes}")
    return DeadlockError(
        f"{len(blocked)} of {len(program.operations)} operations can never start; the first are: "
        + "; ".join(names)
    )
