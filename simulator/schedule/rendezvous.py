"""How many messages must be buffered, so that an order finishes though sends block?

The model: after every slot a rank posts the send of its result and the receive of its
next slot's input together, and waits for both before it goes on. That is how Megatron-LM's
fused ``send_forward_recv_backward`` and torch's batched ``isend``/``irecv`` behave. A send
ends when its message is received or lies in a buffer; a receive ends when its message is
there, whichever others came before it. Where the transport buffers nothing (rendezvous)
some orders wait in a ring for ever: they need buffers, or receives that are posted as far
ahead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, count
from typing import NamedTuple

from simulator.schedule.slots import Order, Placement, Slot, joint_groups
from simulator.schedule.unit_time import Product, dependencies, product_of


def buffers_needed(order: Order, chunks: int, placement: Placement) -> int:
    """Fewest messages that must fit between a rank and each one it sends to; 0 is rendezvous.

    Args:
        order: One list of slots per rank, which finishes where transfers are free.
        chunks: Model chunks per rank.
        placement: Which rank runs which virtual stage.
    """
    exchanges = _exchanges_of(order, chunks, placement)

    def finishes(buffers: int) -> bool:
        return not _blocked(exchanges, buffers)

    # Few are needed, and trying many takes long: the bound doubles until it is enough.
    bounds = chain([0], (2**power for power in count()))
    enough: int = next(bound for bound in bounds if finishes(bound))
    least = enough // 2
    beyond: int = bisect_left(range(least, enough), True, key=finishes)
    return least + beyond


def blocked_ranks(order: Order, chunks: int, placement: Placement, buffers: int = 0) -> list[int]:
    """Ranks that never finish under blocking sends; empty if the order is safe.

    Args:
        order: One list of slots per rank.
        chunks: Model chunks per rank.
        placement: Which rank runs which virtual stage.
        buffers: Messages that fit between a rank and each one it sends to.
    """
    return _blocked(_exchanges_of(order, chunks, placement), buffers)


def _blocked(exchanges: Sequence[Sequence[_Exchange]], buffers: int) -> list[int]:
    transport = _Transport(buffers)
    posted = [0] * len(exchanges)
    progress = True
    while progress:
        progress = False
        for rank, steps in enumerate(exchanges):
            while posted[rank] < len(steps) and transport.is_idle(rank):
                transport.post(steps[posted[rank]])
                posted[rank] += 1
                progress = True
    return [rank for rank in range(len(exchanges)) if not transport.is_idle(rank)]


class _Message(NamedTuple):
    sender: int
    receiver: int
    product: Product


class _Exchange(NamedTuple):
    """What a rank posts at one point; it waits for all of it."""

    sends: list[_Message]
    receives: list[_Message]


class _Transport:
    """Messages under way, and who waits for them."""

    def __init__(self, buffers: int) -> None:
        self._buffers = buffers
        self._under_way: defaultdict[tuple[int, int], list[_Message]] = defaultdict(list)
        self._sending: set[_Message] = set()
        self._awaited: set[_Message] = set()
        self._waits: Counter[int] = Counter()

    def is_idle(self, rank: int) -> bool:
        """Whether all that a rank has posted is done."""
        return not self._waits[rank]

    def post(self, exchange: _Exchange) -> None:
        """Start the sends and receives of a rank, and end those that can."""
        for message in exchange.sends:
            self._under_way[message[:2]].append(message)
            self._sending.add(message)
            self._waits[message.sender] += 1
        for message in exchange.receives:
            self._awaited.add(message)
            self._waits[message.receiver] += 1
        for line in {message[:2] for message in (*exchange.sends, *exchange.receives)}:
            self._settle(self._under_way[line])

    def _settle(self, under_way: list[_Message]) -> None:
        for message in [each for each in under_way if each in self._awaited]:
            under_way.remove(message)
            self._awaited.remove(message)
            self._waits[message.receiver] -= 1
            self._end_send(message)
        for message in under_way[: self._buffers]:
            self._end_send(message)

    def _end_send(self, message: _Message) -> None:
        if message in self._sending:
            self._sending.remove(message)
            self._waits[message.sender] -= 1


def _exchanges_of(order: Order, chunks: int, placement: Placement) -> list[list[_Exchange]]:
    return [
        _exchanges(slots, rank, len(order), chunks, placement) for rank, slots in enumerate(order)
    ]


def _exchanges(
    slots: list[Slot], rank: int, stages: int, chunks: int, placement: Placement
) -> list[_Exchange]:
    """What a rank sends and receives before, between and after its slots."""

    def sent(slot: Slot) -> list[_Message]:
        fed = placement.feeds(slot, stages, chunks)
        receiver = rank if fed is None else placement.rank(fed, stages)
        return [] if receiver == rank else [_Message(rank, receiver, product_of(slot))]

    def received(slot: Slot) -> list[_Message]:
        needed = dependencies(slot, stages, chunks, placement)
        makers = [(placement.rank(product.stage, stages), product) for product in needed]
        return [_Message(maker, rank, product) for maker, product in makers if maker != rank]

    exchanges = [_Exchange([], [])]
    for group in joint_groups(slots):
        for slot in group:
            exchanges[-1].receives.extend(received(slot))
        exchanges.append(_Exchange([message for slot in group for message in sent(slot)], []))
    return exchanges
