"""What does each operation of a program wait for, and who waits for it?"""

from __future__ import annotations

import itertools
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
