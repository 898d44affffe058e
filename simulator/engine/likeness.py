"""Which operations of a program are like others that came before them?

Two operations are alike where they do the same work on the same lanes and wait for alike ones.
All is columnar, one entry per operation, lane position or dependency.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simulator.program.ir import Program

_Numbers = NDArray[np.int64]


class Likeness:
    """The operations of a program, as numbers to compare.

    Attributes:
        lanes: Operations of each lane.
    """

    def __init__(self, program: Program) -> None:
        operations = program.operations
        self.lanes = [np.asarray(lane, dtype=np.int64) for lane in program.lanes.values()]
        known: dict[Hashable, int] = {}
        keys = ((id(operation.work), operation.lanes) for operation in operations)
        self._work = np.asarray([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
        self._counts = np.asarray([len(op.after) for op in operations], dtype=np.int64)
        self._before = np.fromiter(
            chain.from_iterable(operation.after for operation in operations),
            dtype=np.int64,
            count=int(self._counts.sum()),
        )
        """What each operation waits for, one operation after the other."""
        self._waiting = np.repeat(np.arange(len(operations)), self._counts)
        """Who waits for it."""

    def alike(self, steps: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each operation is like the one that is so many steps later on its lanes.

        Args:
            steps: Of each lane.
        """
        later, is_alike = self._later(steps)
        found = later[is_alike]
        is_alike[is_alike] = (self._work[found] == self._work[is_alike]) & (
            self._counts[found] == self._counts[is_alike]
        )
        waiting = is_alike[self._waiting]
        firsts = np.cumsum(self._counts) - self._counts
        which = self._waiting[waiting]
        turns = np.flatnonzero(waiting) - firsts[which]
        agree = later[self._before[waiting]] == self._before[firsts[later[which]] + turns]
        is_alike[which[~agree]] = False
        return is_alike

    def _later(self, steps: Sequence[int]) -> tuple[_Numbers, NDArray[np.bool_]]:
        """The operation so many steps later, and whether all lanes agree on it."""
        later = np.full(len(self._work), -1)
        for lane, number in zip(self.lanes, steps, strict=True):
            later[lane[: len(lane) - number]] = lane[number:]
        agree = later >= 0
        for lane, number in zip(self.lanes, steps, strict=True):
            agree[lane[: len(lane) - number]] &= later[lane[: len(lane) - number]] == lane[number:]
            agree[lane[len(lane) - number :]] = False
        return later, agree

    def waits(self, ended: NDArray[np.bool_]) -> _Numbers:
        """For how many of the given operations each one waits."""
        counts = np.bincount(self._waiting[ended[self._before]], minlength=len(self._work))
        for lane in self.lanes:
            counts[lane[1:]] += ended[lane[:-1]]
        return counts
