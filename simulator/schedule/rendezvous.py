"""Does an order still finish where a send blocks until its receive is posted?

The model: after every slot a rank posts the send of its result and the receive of its
next slot's input together, and waits for both before it goes on. That is how Megatron-LM's
fused ``send_forward_recv_backward`` and torch's batched ``isend``/``irecv`` behave when the
transport buffers nothing. Orders that fail here need receives that are posted further ahead.
"""

from __future__ import annotations

from collections import Counter

from simulator.schedule.slots import Order, Placement, Slot, joint_groups
from simulator.schedule.unit_time import Product, dependencies, product_of

_Exchange = set[Product]
"""Products that a rank sends or receives at one point; it waits for all of them."""


def blocked_ranks(order: Order, chunks: int, placement: Placement) -> list[int]:
    """Ranks that never finish under blocking sends; empty if the order is safe.

    Args:
        order: One list of slots per rank.
        chunks: Model chunks per rank.
        placement: Which rank runs which virtual stage.
    """
    stages = len(order)
    exchanges = [_exchanges(slots, stages, chunks, placement) for slots in order]
    position = [0] * stages
    posted = Counter(product for steps in exchanges for product in steps[0])
    progress = True
    while progress:
        progress = False
        for rank, steps in enumerate(exchanges):
            while position[rank] < len(steps) and _is_matched(steps[position[rank]], posted):
                position[rank] += 1
                progress = True
                if position[rank] < len(steps):
                    posted.update(steps[position[rank]])
    return [rank for rank, steps in enumerate(exchanges) if position[rank] < len(steps)]


def _is_matched(exchange: _Exchange, posted: Counter[Product]) -> bool:
    """Whether sender and receiver have both come to every product of the exchange."""
    sides = 2
    return all(posted[product] == sides for product in exchange)


def _exchanges(
    slots: list[Slot], stages: int, chunks: int, placement: Placement
) -> list[_Exchange]:
    """What a rank sends and receives before, between and after its slots."""
    exchanges: list[_Exchange] = [set()]
    for group in joint_groups(slots):
        exchanges[-1] |= _received(group, stages, chunks, placement)
        exchanges.append(_sent(group, stages, chunks, placement))
    return exchanges


def _received(group: list[Slot], stages: int, chunks: int, placement: Placement) -> set[Product]:
    return {
        needed
        for slot in group
        for needed in dependencies(slot, stages, chunks, placement)
        if placement.rank(needed.stage, stages) != placement.rank(slot.stage, stages)
    }


def _sent(group: list[Slot], stages: int, chunks: int, placement: Placement) -> set[Product]:
    fed = [(slot, placement.feeds(slot, stages, chunks)) for slot in group]
    return {
        product_of(slot)
        for slot, stage in fed
        if stage is not None and placement.rank(stage, stages) != placement.rank(slot.stage, stages)
    }
