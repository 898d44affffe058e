"""How does one campaign go, with the failures that one seed draws?

The failures are discrete events, and between two of them nothing has to be simulated: how
many checkpoints a segment of training has made safe is arithmetic
(:mod:`simulator.planning.campaign.checkpoints`). One clock that jumps from event to event is
enough, without processes or resources that could meet, so SimPy would add nothing; an
ensemble of months with hundreds of failures takes a second.

Failures are independent and memoryless: exponential gaps whose rate is the sum over all
parts. One that strikes during a restart makes it start again. Ignored are bursts, wear, and
failures that spread; while nodes are away, the rate stays that of the whole cluster.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from simulator.planning.campaign.checkpoints import NS, CheckpointCycle, Segment, Spent


@dataclass(frozen=True)
class Hazard:
    """One kind of failure.

    Attributes:
        rate_per_s: Failures of all such parts together [1/s].
        away_ns: How long a node is away after it.
        notice_ns: Warning before it.
    """

    name: str
    rate_per_s: float
    away_ns: int = 0
    notice_ns: int = 0


@dataclass(frozen=True)
class Recovery:
    """What follows a failure."""

    detection_ns: int = 0
    restart_ns: int = 0
    loading_ns: int = 0
    warm_up_ns: int = 0


@dataclass(frozen=True)
class Fleet:
    """The nodes of a campaign.

    Attributes:
        nodes: That the plan needs.
        spare_nodes: That wait to replace them.
        is_elastic: Whether it runs with fewer of them.
    """

    nodes: int
    spare_nodes: int = 0
    ranks: int = 1
    is_elastic: bool = False

    def ranks_left(self, away: int) -> int:
        """Data-parallel ranks that can work while so many nodes are away; 0 for none."""
        missing = max(0, away - self.spare_nodes)
        if not missing:
            return self.ranks
        left = self.ranks * max(0, self.nodes - missing) // self.nodes
        return left if self.is_elastic else 0


@dataclass(frozen=True)
class Conditions:
    """What a campaign meets: checkpoints, failures, what follows them, and its nodes."""

    cycle: CheckpointCycle
    hazards: tuple[Hazard, ...]
    recovery: Recovery
    fleet: Fleet = Fleet(1)


@dataclass(frozen=True)
class SimulatedRun:
    """How one campaign went.

    Attributes:
        spent_ns: What its time went into; adds up to ``wall_ns``.
        wall_ns: From the first step to the last safe one.
        failures: How often what failed.
        has_ended: Whether all work was done; False where it was given up after too many failures.
    """

    spent_ns: Mapping[Spent, int]
    wall_ns: int
    failures: Mapping[str, int]
    has_ended: bool = True


def simulated_run(
    work_ns: int, conditions: Conditions, seed: tuple[int, int], most_failures: int
) -> SimulatedRun:
    """One campaign; the same seed gives the same.

    ``work_ns`` is what steps that count take at full speed; ``seed`` that of the ensemble, and the
    member's number. After ``most_failures`` it is given up.
    """
    return _Run(work_ns, conditions, seed, most_failures).run()


class _TooManyFailuresError(Exception):
    """The campaign does not get on."""


class _Run:
    def __init__(
        self, work_ns: int, conditions: Conditions, seed: tuple[int, int], most_failures: int
    ) -> None:
        self._left_ns = work_ns
        self._cycle, self._fleet = conditions.cycle, conditions.fleet
        self._hazards, self._recovery = conditions.hazards, conditions.recovery
        self._most_failures = most_failures
        self._rates_per_s = list(accumulate(hazard.rate_per_s for hazard in self._hazards))
        self._random = Random(f"{seed[0]}/{seed[1]}")
        self._spent: Counter[Spent] = Counter()
        self._failures: Counter[str] = Counter()
        self._returns: list[int] = []
        """When each node that is away is back; a heap."""
        self._now_ns = 0
        self._failure_ns = self._next_failure_ns()

    def run(self) -> SimulatedRun:
        has_ended = True
        try:
            while self._left_ns > 0:
                self._train()
        except _TooManyFailuresError:
            has_ended = False
        return SimulatedRun(dict(self._spent), self._now_ns, dict(self._failures), has_ended)

    def _train(self) -> None:
        """Train to the end, or until nodes leave or join and everything has restarted."""
        ranks = self._ranks()
        segment = Segment(self._cycle, self._left_ns, ranks, self._fleet.ranks)
        end_ns = self._now_ns + segment.end_ns
        joining_ns = self._joining_ns(ranks, end_ns)
        if self._failure_ns < min(end_ns, joining_ns):
            self._leave(segment)
        elif joining_ns < end_ns:
            self._save(segment, joining_ns - self._now_ns)
            self._restart(detected=True)
        else:
            self._book(segment.spent_ns(segment.end_ns))

    def _leave(self, segment: Segment) -> None:
        """Something fails, or is taken away after a warning."""
        run_ns = self._failure_ns - self._now_ns
        cycle = self._cycle
        hazard = self._strike()
        if 0 < cycle.stall_ns + cycle.write_ns <= hazard.notice_ns:
            self._save(segment, run_ns)
        else:
            self._book(segment.spent_ns(run_ns))
        self._restart(detected=hazard.notice_ns > 0)

    def _save(self, segment: Segment, run_ns: int) -> None:
        """Stop at that time of a segment and lose nothing."""
        self._book(segment.spent_if_saved_ns(run_ns))
        cycle = self._cycle
        self._book({Spent.CHECKPOINT: cycle.stall_ns + cycle.write_ns})

    def _restart(self, *, detected: bool) -> None:
        """Until training continues; a failure during it makes it start again."""
        while True:
            for spent, span_ns in self._phases(detected=detected):
                if self._failure_ns < self._now_ns + span_ns:
                    self._book({spent: max(0, self._failure_ns - self._now_ns)})
                    detected = self._strike().notice_ns > 0
                    break
                self._book({spent: span_ns})
            else:
                return

    def _phases(self, *, detected: bool) -> Iterator[tuple[Spent, int]]:
        recovery = self._recovery
        if not detected:
            yield Spent.DETECTION, recovery.detection_ns
        while not self._ranks():
            yield Spent.WAITING, self._returns[0] - self._now_ns
        yield Spent.RESTART, recovery.restart_ns
        yield Spent.LOADING, recovery.loading_ns
        yield Spent.WARM_UP, recovery.warm_up_ns

    def _strike(self) -> Hazard:
        """What fails now, and when something fails next."""
        if self._failures.total() >= self._most_failures:
            raise _TooManyFailuresError
        point = self._random.random() * self._rates_per_s[-1]
        hazard = self._hazards[bisect(self._rates_per_s, point)]
        self._failures[hazard.name] += 1
        if hazard.away_ns:
            heapq.heappush(self._returns, self._failure_ns + hazard.away_ns)
        self._failure_ns = self._next_failure_ns()
        return hazard

    def _next_failure_ns(self) -> int:
        before_ns = self._failure_ns if self._failures else 0
        return before_ns + round(NS * self._random.expovariate(self._rates_per_s[-1]))

    def _joining_ns(self, ranks: int, end_ns: int) -> int:
        """When enough nodes are back for more ranks to work; ``end_ns`` if not before."""
        if ranks == self._fleet.ranks:
            return end_ns
        back = sorted(self._returns)
        counts = (self._fleet.ranks_left(len(back) - 1 - index) for index in range(len(back)))
        return next(time for time, count in zip(back, counts, strict=True) if count > ranks)

    def _ranks(self) -> int:
        while self._returns and self._returns[0] <= self._now_ns:
            heapq.heappop(self._returns)
        return self._fleet.ranks_left(len(self._returns))

    def _book(self, spent_ns: Mapping[Spent, int]) -> None:
        self._spent.update(spent_ns)
        self._now_ns += sum(spent_ns.values())
        self._left_ns -= spent_ns.get(Spent.PRODUCTIVE, 0)
