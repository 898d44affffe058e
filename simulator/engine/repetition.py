"""Which part of a simulation repeats itself, so that it may be passed over?

In the middle of a pipeline's step the same happens again and again. What a simulation does
next depends on what has ended and on what is under way, and for how long. Where that is as it
was some time before, and the operations that follow are like those that followed then, they
take the same time: their starts and ends are written down without simulating them.

Moments are compared only when nothing else is about to happen, so that rounding of the clock
cannot order things of one instant differently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.program.ir import Program

_Numbers = NDArray[np.int64]


class OperationTable:
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

    def recurs(self, steps: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each operation is like the one that is so many steps later on its lanes.

        Args:
            steps: Of each lane.
        """
        later, recurs = self._later(steps)
        found = later[recurs]
        recurs[recurs] = (self._work[found] == self._work[recurs]) & (
            self._counts[found] == self._counts[recurs]
        )
        waiting = recurs[self._waiting]
        firsts = np.cumsum(self._counts) - self._counts
        which = self._waiting[waiting]
        turns = np.flatnonzero(waiting) - firsts[which]
        agree = later[self._before[waiting]] == self._before[firsts[later[which]] + turns]
        recurs[which[~agree]] = False
        return recurs

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


TOLERANCE = 1e-13
"""Moments closer than this share of the time since the start are the same."""

_MOST_PERIODS = 6
"""Periods of the order within which everything must repeat itself. Between unlike stages, two or
three microbatches may take turns."""

_LEAST_SHARE = 0.05
"""Part of the program that is worth passing over."""


@dataclass(frozen=True, slots=True)
class Records:
    """How far a simulation is; one entry per operation.

    Attributes:
        start_s: When it started [s].
        end_s: When it ended [s]; negative before.
        waits_for: How many others it waits for.
    """

    start_s: list[float]
    end_s: list[float]
    waits_for: list[int]


class Skip(NamedTuple):
    """What was passed over.

    Attributes:
        seconds: How long it takes [s].
        under_way: What is under way after it, by what was under way before.
    """

    seconds: float
    under_way: dict[int, int]


class _Moment(NamedTuple):
    """Where the lanes are.

    Attributes:
        time_s: When the operation ended that calls for a look [s].
        ended: How many operations have ended on each lane.
        is_busy: Whether the next one is under way.
    """

    time_s: float
    ended: list[int]
    is_busy: list[bool]


class _Period(NamedTuple):
    """What lies between two equal moments.

    Attributes:
        end: The second one.
        steps: How many operations of each lane end in it.
        seconds: How long it takes [s].
    """

    end: _Moment
    steps: list[int]
    seconds: float


class Repetition:
    """Watches a simulation and passes over what repeats itself.

    Args:
        program: What is simulated.
        records: How far it is; what is passed over is written there, too.
    """

    def __init__(self, program: Program, records: Records) -> None:
        self._program = program
        self._records = records
        self._lanes = list(program.lanes.values())
        self._ended = [0] * len(self._lanes)
        self._moments: deque[_Moment] = deque(maxlen=_MOST_PERIODS + 1)
        self.marks = _marks(program)
        """Operations whose end calls for a look; few, and the same ones in every period."""

    def skip(self, mark: int) -> Skip | None:
        """Pass over all that follows and is known; None if that is little.

        Args:
            mark: The operation that has ended; nothing else may be about to happen.
        """
        self._moments.appendleft(self._moment(mark))
        period = self._period()
        repeats = self._repeats(period) if period else 0
        if not period or repeats * sum(period.steps) < _LEAST_SHARE * self._positions:
            return None
        return self._passed_over(period, repeats)

    @cached_property
    def _table(self) -> OperationTable:
        return OperationTable(self._program)

    @cached_property
    def _positions(self) -> int:
        return sum(len(lane) for lane in self._lanes)

    def _moment(self, mark: int) -> _Moment:
        end_s, waits_for = self._records.end_s, self._records.waits_for
        is_busy = []
        for number, lane in enumerate(self._lanes):
            ended = self._ended[number]
            while ended < len(lane) and end_s[lane[ended]] >= 0:
                ended += 1
            self._ended[number] = ended
            is_busy.append(ended < len(lane) and not waits_for[lane[ended]])
        return _Moment(end_s[mark], self._ended.copy(), is_busy)

    def _period(self) -> _Period | None:
        now, *past = self._moments
        for before in past:
            if now.is_busy == before.is_busy:
                steps = [a - b for a, b in zip(now.ended, before.ended, strict=True)]
                period = _Period(now, steps, now.time_s - before.time_s)
                if self._leads_back(period):
                    return period
        return None

    def _leads_back(self, period: _Period) -> bool:
        """Whether what is under way, and all that ran beside it, happened as a period before."""
        start_s, end_s = self._records.start_s, self._records.end_s
        tolerance_s = TOLERANCE * period.end.time_s
        since_s = min(
            start_s[lane[ended]] for lane, ended, _, busy in self._on_lanes(period) if busy
        )

        def differs(time_s: list[float], new: int, old: int) -> bool:
            return abs(time_s[new] - time_s[old] - period.seconds) > tolerance_s

        for lane, ended, steps, busy in self._on_lanes(period):
            if busy and (not steps or differs(start_s, lane[ended], lane[ended - steps])):
                return False
            for position in range(ended - 1, ended - steps - 1, -1):
                new, old = lane[position], lane[position - steps]
                if end_s[new] < since_s:
                    break
                if differs(start_s, new, old) or differs(end_s, new, old):
                    return False
        return True

    def _on_lanes(self, period: _Period) -> Iterator[tuple[list[int], int, int, bool]]:
        """Operations of each lane, how many have ended, how many in the period; if it is busy."""
        _, ended, is_busy = period.end
        return zip(self._lanes, ended, period.steps, is_busy, strict=True)

    def _repeats(self, period: _Period) -> int:
        """How often the period happens again: until something else comes or begins."""
        recurs = self._table.recurs(period.steps)
        follow = []
        for lane, ended, steps, _ in self._on_lanes(period):
            if steps:
                unlike = np.flatnonzero(~recurs[lane[ended - steps :]])
                # One more on each lane must recur, for it waits as it did before.
                follow.append((int(unlike[0]) - 1) // steps)
        most = max(0, min(follow))
        if not self._begins_another(period, most):
            return most
        return bisect_left(range(most), True, key=partial(self._begins_another, period)) - 1

    def _begins_another(self, period: _Period, repeats: int) -> bool:
        """Whether anything starts meanwhile that has no place in the period."""
        waits_for = self._waits_for(period, repeats)
        under_way = {
            lane[ended + repeats * steps]
            for lane, ended, steps, busy in self._on_lanes(period)
            if busy
        }
        ready = np.flatnonzero(waits_for == 0)
        return any(index not in under_way for index in ready.tolist())

    def _waits_for(self, period: _Period, repeats: int) -> NDArray[np.int64]:
        """For how many others each operation waits in the end; negative if it has ended."""
        passed_over = np.zeros(len(self._program.operations), dtype=np.bool_)
        for lane, ended, steps, _ in self._on_lanes(period):
            passed_over[lane[ended : ended + repeats * steps]] = True
        waits_for = np.asarray(self._records.waits_for) - self._table.waits(passed_over)
        waits_for[passed_over | (np.asarray(self._records.end_s) >= 0)] = -1
        return waits_for

    def _passed_over(self, period: _Period, repeats: int) -> Skip:
        self._records.waits_for[:] = self._waits_for(period, repeats).tolist()
        self._write(self._records.start_s, period, repeats, of_started=True)
        self._write(self._records.end_s, period, repeats, of_started=False)
        self._moments.clear()
        under_way = {
            lane[ended]: lane[ended + repeats * steps]
            for lane, ended, steps, busy in self._on_lanes(period)
            if busy
        }
        return Skip(repeats * period.seconds, under_way)

    def _write(
        self, recorded_s: list[float], period: _Period, repeats: int, *, of_started: bool
    ) -> None:
        time_s = np.asarray(recorded_s)
        passed_s = period.seconds * np.arange(1, repeats + 1)
        for lane, ended, steps, busy in self._on_lanes(period):
            last = ended + (busy and of_started)
            known_s = time_s[lane[last - steps : last]]
            time_s[lane[last : last + repeats * steps]] = (passed_s[:, None] + known_s).ravel()
        recorded_s[:] = time_s.tolist()


def _marks(program: Program) -> frozenset[int]:
    """One operation in every period of the longest lane."""
    lane = max(program.lanes.values(), key=len, default=[])
    inside = [program.operations[i] for i in lane[len(lane) // 4 : len(lane) // 2]]
    period = _shortest_period([(id(operation.work), operation.chunk) for operation in inside])
    return frozenset(lane[::period]) if 0 < 2 * period <= len(inside) else frozenset()


def _shortest_period(sequence: Sequence[Hashable]) -> int:
    """The least shift by which a sequence matches itself; its length if none does.

    Source: the prefix function of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977).
    """
    borders = [0] * len(sequence)
    for end in range(1, len(sequence)):
        border = borders[end - 1]
        while border and sequence[border] != sequence[end]:
            border = borders[border - 1]
        borders[end] = border + (sequence[border] == sequence[end])
    return len(sequence) - (borders[-1] if borders else 0)
