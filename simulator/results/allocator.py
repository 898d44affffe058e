"""How much memory does PyTorch's caching allocator reserve for a sequence of blocks?

Over a step, blocks are taken and given back one by one, in the order of the operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator_replay import Asked, Part, Replay
from simulator.results.caching_allocator import CachingAllocator, Request, request


class Exchange(NamedTuple):
    """Blocks that an operation takes, and those that are free after it [B].

    Attributes:
        takes, gives: Of the compute stream.
        own_stream_takes, own_stream_gives: Of another stream, whose blocks serve no other.
        buffers: Of a third stream, that weights are gathered into, taken and given back.
        lingers: Of the compute stream, taken before the others and free after them where the
            device has room; one that is full waits until they are free.
    """

    takes: tuple[float, ...]
    gives: tuple[float, ...]
    own_stream_takes: tuple[float, ...] = ()
    own_stream_gives: tuple[float, ...] = ()
    buffers: tuple[float, ...] = ()
    lingers: tuple[float, ...] = ()


class _Requests(dict[Asked, Request]):
    def __missing__(self, asked: Asked) -> Request:
        made = self[asked] = request(asked[0], stream=asked[1])
        return made


def reserved_bytes(
    exchanges: Sequence[Exchange],
    settings: AllocatorSettings,
    *,
    steps: int = 1,
    started: Exchange | None = None,
    first: Sequence[Exchange] = (),
    room_bytes: float = math.inf,
    collects_above_bytes: float = math.inf,
) -> float:
    """The most that is reserved while blocks come and go [B].

    Args:
        exchanges: Of a step, in the order of the host. Of equal blocks the last one goes first.
        settings: How the allocator is set.
        steps: How often the step runs.
        started: What is taken and given back before the first.
        first: Of the first step, where it is unlike the others.
        room_bytes: What the device has; more is reserved only where nothing can be returned.
        collects_above_bytes: Reserved at most before what is unused for long is returned.
    """
    # Without a limit nothing is ever returned, so what one pool reserves is nothing to another.
    is_free = math.isinf(min(room_bytes, collects_above_bytes))
    limits = {"room_bytes": room_bytes, "collects_above_bytes": collects_above_bytes}
    before = [] if started is None else [started]
    # Equal exchanges are often one object, which is told by its identity far sooner.
    objects = {id(each): each for each in [*before, *first, *exchanges]}
    distinct: dict[Exchange, int] = {}
    number = {key: distinct.setdefault(each, len(distinct)) for key, each in objects.items()}
    begun, *orders = (
        [number[id(each)] for each in order] for order in (before, first or exchanges, exchanges)
    )
    most_bytes, requests = 0, _Requests()
    has_room = math.isinf(room_bytes)
    whole = [_asked(each, has_room=has_room) for each in distinct]
    present = {requests[one].pool for each in whole for takes in each for one in takes}
    for pools in [{pool} for pool in present] if is_free else [present]:
        parts = [
            tuple(tuple(one for one in many if requests[one].pool in pools) for many in both)
            for both in whole
        ]
        allocator = CachingAllocator(settings, **limits)
        Replay(orders, begun, parts, requests, allocator).run_steps(steps)
        most_bytes += allocator.most_reserved_bytes
    return float(most_bytes)


def _asked(exchange: Exchange, *, has_room: bool) -> Part:
    takes, gives, own_stream_takes, own_stream_gives, buffers, lingers = exchange
    lingering = lingers if has_room else ()
    both = (
        (lingering + takes, own_stream_takes, buffers),
        (lingering + gives, own_stream_gives, buffers),
    )
    return tuple(
        tuple((size, stream) for stream, sizes in enumerate(streams) for size in sizes)
        for streams in both
    )
