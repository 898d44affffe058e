"""Which order fills the bubbles of given passes within given memory?

The heuristic behind ZB-2p. Forwards run ahead until the first gradient comes, as far as
memory allows. Then each rank takes one forward and one input gradient in turn; a weight
gradient goes in between where it fits into a wait, where it must make room, or where the
wait it delays is no longer than another rank's. Three choices that the rule leaves open are
tried in all combinations, and the shortest outcome is taken.

The authors go on with an integer program from here. Fed with the pass times that they
profiled, the heuristic alone reaches the bubble rates that they print.

Source:
    Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

from simulator.schedule.info import PassCosts
from simulator.schedule.slots import SPLIT_PHASES, Order, Phase, Slot

_F, _I, _W = SPLIT_PHASES
_TINY = 1e-9
"""Relative slack of memory, for what rounding adds."""


def searched_order(
    stages: int, microbatches: int, costs: PassCosts, limits_bytes: Iterable[float]
) -> Order:
    """The shortest order that the heuristic finds.

    Args:
        stages: Ranks, one virtual stage each.
        microbatches: Per step.
        costs: Of all passes; a split backward.
        limits_bytes: Activations that each rank may hold.
    """
    limits = tuple(limits_bytes)
    choices = (_Choices(*given) for given in product((True, False), repeat=3))
    attempts = [_Attempt(stages, microbatches, costs, limits, choice) for choice in choices]
    for attempt in attempts:
        attempt.run()
    best = min(attempts, key=lambda attempt: attempt.span)
    return [rank.ran for rank in best.ranks]


@dataclass(frozen=True)
class _Choices:
    """What the rule leaves open.

    Attributes:
        stops_early: Whether a rank runs one forward less ahead if the last would delay its
            first input gradient.
        lets_ahead: Whether a rank leaves a forward out that would delay an input gradient.
        fills_waits: Whether weight gradients go into waits that are too short for them even
            where that makes the rank's bubble the longest.
    """

    stops_early: bool
    lets_ahead: bool
    fills_waits: bool


@dataclass
class _Rank:
    limit_bytes: float
    now: float = 0.0
    started: float = 0.0
    held_bytes: float = 0.0
    idle: float = 0.0
    done: dict[Phase, int] = field(default_factory=lambda: dict.fromkeys(SPLIT_PHASES, 0))
    ran: list[Slot] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Weight gradients that could run."""
        return self.done[_I] - self.done[_W]


class _Attempt:
    """One order, built along time."""

    def __init__(
        self,
        stages: int,
        microbatches: int,
        costs: PassCosts,
        limits: tuple[float, ...],
        choices: _Choices,
    ) -> None:
        self.microbatches = microbatches
        self.costs = costs
        self.choices = choices
        self.ranks = [_Rank(limit * (1 + _TINY)) for limit in limits]
        self.last = stages - 1
        self.ended: dict[tuple[Phase, int, int], float] = {}

    @property
    def span(self) -> float:
        """Longest time between a rank's own start and end."""
        return max(rank.now - rank.started for rank in self.ranks)

    def run(self) -> None:
        """Build the order."""
        self._warm_up()
        for microbatch in range(1, self.microbatches):
            forwards = self._forwards_due()
            for rank, is_due in enumerate(forwards):
                if is_due:
                    self._put_in_time(rank, _F)
            for rank in reversed(range(len(self.ranks))):
                self._make_way(rank, _I, microbatch)
                if rank == 0 and self.ranks[0].done[_F] == self.microbatches:
                    # Nobody waits for the first rank's gradients: its weights come first.
                    self._put(rank, _W, self.ranks[0].pending)
                self._put(rank, _I)
        for rank, state in enumerate(self.ranks):
            self._put(rank, _W, state.pending)

    def _warm_up(self) -> None:
        for rank in range(len(self.ranks)):
            self._put(rank, _F)
        ahead = self._ahead()
        for rank, count in enumerate(ahead):
            self._put(rank, _F, count)
        for rank in reversed(range(len(self.ranks))):
            self._put(rank, _I)

    def _ahead(self) -> list[int]:
        """Forwards of every rank that fit before its first gradient comes, and into memory."""
        ahead = [0] * len(self.ranks)
        gradient_at = self.ranks[self.last].now + self._seconds(_I, self.last)
        for rank in reversed(range(self.last)):
            state, forward_s = self.ranks[rank], self._seconds(_F, rank)
            comes_at = gradient_at + self.costs.transfer_s(rank + 1, rank)
            free_at, held = state.now, state.held_bytes
            while state.done[_F] + ahead[rank] < self.microbatches:
                held += self.costs.saved_bytes[rank]
                is_late = (
                    free_at + forward_s > comes_at
                    if self.choices.stops_early
                    else free_at >= comes_at
                )
                if held > state.limit_bytes or is_late:
                    break
                free_at += forward_s
                ahead[rank] += 1
            gradient_at = max(free_at, comes_at) + self._seconds(_I, rank)
        for rank in range(1, len(ahead)):
            # A rank that ran as far ahead as the one before it would wait for its inputs.
            if self.ranks[rank - 1].done[_F] + ahead[rank - 1] < self.microbatches:
                ahead[rank] = max(0, min(ahead[rank], ahead[rank - 1] - 1))
        return ahead

    def _forwards_due(self) -> list[bool]:
        """Which ranks run a forward before the next input gradient."""
        due = [state.done[_F] < self.microbatches for state in self.ranks]
        if self.choices.lets_ahead:
            due = [is_due and not self._would_delay(rank) for rank, is_due in enumerate(due)]
        for rank in reversed(range(self.last)):
            # Nobody runs further ahead than the rank that it feeds takes from it.
            due[rank] = due[rank] and due[rank + 1]
        return due

    def _would_delay(self, rank: int) -> bool:
        """Whether a forward makes a rank late for a gradient, by more than it can afford."""
        state = self.ranks[rank]
        if rank == self.last or state.done[_F] < self.ranks[rank + 1].done[_F] + 2:
            return False
        after = self.ranks[rank + 1]
        gradient_at = after.now + self._seconds(_F, rank + 1) + self._seconds(_I, rank + 1)
        gradient_at += self.costs.transfer_s(rank + 1, rank)
        ends_at = state.now + self._seconds(_F, rank)
        held = state.held_bytes + self.costs.saved_bytes[rank]
        for _ in range(state.pending):
            if held <= state.limit_bytes:
                break
            held -= self.costs.pending_bytes[rank]
            ends_at += self._seconds(_W, rank)
        if state.now >= gradient_at:
            return True
        return ends_at > gradient_at and gradient_at - state.now <= self._affordable(rank)

    def _affordable(self, rank: int) -> float:
        """How much longer a rank may idle and still not be the one that idles longest."""
        return max(state.idle for state in self.ranks) - self.ranks[rank].idle

    def _put_in_time(self, rank: int, phase: Phase) -> None:
        self._make_way(rank, phase, self.ranks[rank].done[phase])
        self._put(rank, phase)

    def _make_way(self, rank: int, phase: Phase, microbatch: int) -> None:
        """Weight gradients that make room for a pass, or fill the wait before it."""
        state = self.ranks[rank]
        takes = self.costs.saved_bytes[rank] if phase is _F else self._left_bytes(rank)
        while state.held_bytes + takes > state.limit_bytes and state.pending:
            self._put(rank, _W)
        arrives_at = self._arrives_at(rank, phase, microbatch)
        while state.pending and state.now + self._seconds(_W, rank) <= arrives_at:
            self._put(rank, _W)
        if state.pending and state.now < arrives_at:
            too_long = arrives_at - state.now > self._affordable(rank)
            if too_long or self.choices.fills_waits:
                self._put(rank, _W)

    def _left_bytes(self, rank: int) -> float:
        """What an input gradient adds to what is held; negative where it frees more."""
        return self.costs.pending_bytes[rank] - self.costs.saved_bytes[rank]

    def _put(self, rank: int, phase: Phase, count: int = 1) -> None:
        state, seconds = self.ranks[rank], self._seconds(phase, rank)
        for _ in range(count):
            microbatch = state.done[phase]
            start = max(state.now, self._arrives_at(rank, phase, microbatch))
            if state.ran:
                state.idle += start - state.now
            else:
                state.started = start
            state.now = self.ended[phase, rank, microbatch] = start + seconds
            state.ran.append(Slot(phase, rank, microbatch))
            state.done[phase] += 1
            match phase:
                case Phase.FORWARD:
                    state.held_bytes += self.costs.saved_bytes[rank]
                case Phase.BACKWARD_INPUT:
                    state.held_bytes += self._left_bytes(rank)
                case _:
                    state.held_bytes -= self.costs.pending_bytes[rank]

    def _arrives_at(self, rank: int, phase: Phase, microbatch: int) -> float:
        """When a pass has what other ranks send it."""
        sender = {_F: rank - 1, _I: rank + 1}.get(phase, rank)
        if sender == rank or not 0 <= sender <= self.last:
            return 0.0
        sent_at = self.ended[phase, sender, microbatch]
        return sent_at + self.costs.transfer_s(sender, rank)

    def _seconds(self, phase: Phase, rank: int) -> float:
        return self.costs.seconds[phase, rank]
