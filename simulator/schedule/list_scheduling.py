"""Orders that come out of a rule: whenever a rank is free, it takes the best ready slot.

Every rank has queues of slots in order of priority. Time goes in ticks; at every tick a
free rank starts the head of the first queue whose head is ready. Transfers are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from simulator.schedule.slots import Order, Phase, Placement, Slot
from simulator.schedule.unit_time import Product, dependencies, held_change, product_of


def one_tick(slot: Slot) -> int:
    """Every slot takes one tick."""
    del slot
    return 1


@dataclass
class _Rank:
    queues: list[deque[Slot]]
    free_at: int = 0
    held: int = 0
    ran: list[Slot] = field(default_factory=list)


def list_schedule(
    queues: Sequence[Iterable[Iterable[Slot]]],
    chunks: int,
    placement: Placement,
    limit: int,
    ticks: Callable[[Slot], int] = one_tick,
) -> Order:
    """The order in which ranks that follow the rule run their slots.

    Args:
        queues: ``queues[rank]``, the slots of each rank in queues, most urgent queue first.
            Heads run in order, so a slot that is not ready blocks those behind it.
        chunks: Model chunks per rank.
        placement: Which rank runs which virtual stage.
        limit: Activations that a rank may hold; a forward waits until there is room.
        ticks: Duration of a slot [ticks].

    Raises:
        RuntimeError: The queues block each other for ever; a fault of the caller.
    """
    ranks = [_Rank([deque(queue) for queue in mine]) for mine in queues]
    done_at: dict[Product, int] = {}

    def is_ready(slot: Slot, rank: _Rank, now: int) -> bool:
        if slot.phase is Phase.FORWARD and rank.held >= limit:
            return False
        needed = dependencies(slot, len(ranks), chunks, placement)
        return all(product in done_at and done_at[product] <= now for product in needed)

    for now in count():
        if not any(any(rank.queues) for rank in ranks):
            break
        for rank in ranks:
            if rank.free_at > now:
                continue
            heads = (queue for queue in rank.queues if queue and is_ready(queue[0], rank, now))
            queue = next(heads, None)
            if queue is not None:
                slot = queue.popleft()
                rank.ran.append(slot)
                rank.held += held_change(slot)
                rank.free_at = done_at[product_of(slot)] = now + ticks(slot)
        if all(rank.free_at <= now for rank in ranks):
            raise RuntimeError(f"list scheduling is stuck at tick {now}")
    return [rank.ran for rank in ranks]
