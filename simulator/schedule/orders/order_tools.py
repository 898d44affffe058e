"""Two ways to write an order: from a pattern of phases, or from a rule that free ranks follow.

A pattern ("six forwards of the first chunk, then ...") fixes which microbatch each slot handles,
because every stage takes its microbatches first in, first out. Under a rule every rank has queues
of slots in order of priority: whenever something ends, a free rank starts the head of the first
queue whose head is ready.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from simulator.schedule.slots import Order, Phase, Placement, Slot
from simulator.schedule.unit_time import Product, dependencies, held_change, product_of


def step(phase: Phase, stage: int) -> Slot:
    """An unnumbered slot, to be put into a pattern."""
    return Slot(phase, stage, microbatch=-1)


def joint(first: Slot, second: Slot) -> list[Slot]:
    """Two slots of a pattern that run together."""
    return [first._replace(overlaps_next=True), second]


def numbered(pattern: Iterable[Slot], microbatches: int) -> list[Slot]:
    """The pattern with its microbatches filled in; slots beyond the last one are dropped.

    Forwards and backwards of a stage count up from 0. A weight gradient takes the oldest
    microbatch of its stage whose input gradient is done and whose weight gradient is not.
    """
    forwards: Counter[int] = Counter()
    backwards: Counter[int] = Counter()
    unfinished: defaultdict[int, deque[int]] = defaultdict(deque)
    slots = []
    for phase, stage, _, overlaps_next in pattern:
        if phase is Phase.BACKWARD_WEIGHT:
            microbatch = unfinished[stage].popleft()
        else:
            count = forwards if phase is Phase.FORWARD else backwards
            microbatch = count[stage]
            count[stage] += 1
        if phase is Phase.BACKWARD_INPUT:
            unfinished[stage].append(microbatch)
        if microbatch < microbatches:
            slots.append(Slot(phase, stage, microbatch, overlaps_next))
    return slots


SlotDuration = Callable[[Slot], float]
"""Time that a slot takes, in any unit."""

TransferDuration = Callable[[int, int], float]
"""Time that a result takes from one rank to another, as (sender, receiver)."""


def one_tick(_slot: Slot) -> float:
    """Every slot takes one tick."""
    return 1.0


def no_time(_sender: int, _receiver: int) -> float:
    """Results are there at once."""
    return 0.0


@dataclass
class _Rank:
    queues: list[deque[Slot]]
    free_at: float = 0.0
    held: int = 0
    ran: list[Slot] = field(default_factory=list)


def list_schedule(
    queues: Sequence[Iterable[Iterable[Slot]]],
    chunks: int,
    placement: Placement,
    limit: int,
    duration: SlotDuration = one_tick,
    transfer: TransferDuration = no_time,
) -> Order:
    """The order in which ranks that follow the rule run their slots.

    Args:
        queues: ``queues[rank]``, the slots of each rank in queues, most urgent queue first.
            Heads run in order, so a slot that is not ready blocks those behind it.
        chunks: Model chunks per rank.
        placement: Which rank runs which virtual stage.
        limit: Activations that a rank may hold; a forward waits until there is room.
        duration: Time that a slot takes.
        transfer: Time that a result takes from one rank to another.

    Raises:
        RuntimeError: The queues block each other for ever; a fault of the caller.
    """
    ranks = [_Rank([deque(queue) for queue in mine]) for mine in queues]
    done_at: dict[Product, float] = {}

    def arrives_at(product: Product, rank: int) -> float:
        """When a rank has what it needs; infinite if that has not even started."""
        maker = placement.rank(product.stage, len(ranks))
        return done_at.get(product, math.inf) + (transfer(maker, rank) if maker != rank else 0.0)

    def is_ready(slot: Slot, index: int, now: float) -> bool:
        if slot.phase is Phase.FORWARD and ranks[index].held >= limit:
            return False
        needed = dependencies(slot, len(ranks), chunks, placement)
        return all(arrives_at(product, index) <= now for product in needed)

    moments = [0.0]
    while moments:
        now = heappop(moments)
        while moments and moments[0] <= now:
            heappop(moments)
        for index, rank in enumerate(ranks):
            if rank.free_at > now:
                continue
            heads = (queue for queue in rank.queues if queue and is_ready(queue[0], index, now))
            queue = next(heads, None)
            if queue is not None:
                slot = queue.popleft()
                rank.ran.append(slot)
                rank.held += held_change(slot)
                rank.free_at = done_at[product_of(slot)] = now + duration(slot)
                heappush(moments, rank.free_at)
                fed = placement.feeds(slot, len(ranks), chunks)
                if fed is not None:
                    taker = placement.rank(fed, len(ranks))
                    heappush(moments, arrives_at(product_of(slot), taker))
    if any(any(rank.queues) for rank in ranks):
        raise RuntimeError("list scheduling found a deadlock: the queues block each other")
    return [rank.ran for rank in ranks]
