"""How much memory does PyTorch's caching allocator reserve for a sequence of blocks?

Over a step, blocks are taken and given back one by one, in the order of the operations.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator.allocator_replay import Part, Replay
from simulator.results.allocator.caching_allocator import CachingAllocator, Request, Stack, request


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
    has_room = math.isinf(room_bytes)
    asked = _Asked()
    parts = [asked.part(each, has_room=has_room) for each in distinct]
    present = {each.pool for each in asked.requests}
    most_bytes = 0
    for pools in [{pool} for pool in present] if is_free else [present]:
        allocator = CachingAllocator(settings, **limits)
        stacks = {
            n: allocator.stack(each) for n, each in enumerate(asked.requests) if each.pool in pools
        }
        of_pools = parts if len(pools) == len(present) else [_among(stacks, part) for part in parts]
        Replay(orders, begun, of_pools, stacks, allocator).run_steps(steps)
        most_bytes += allocator.most_reserved_bytes
    return float(most_bytes)


class _Asked:
    """Sizes that are asked for on streams, by their number.

    Attributes:
        requests: What each asks of the allocator.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._numbers: dict[int, dict[float, int]] = defaultdict(dict)

    def part(self, exchange: Exchange, *, has_room: bool) -> Part:
        """What an exchange takes, and what is free after it."""
        takes, gives, own_stream_takes, own_stream_gives, buffers, lingers = exchange
        lingering = lingers if has_room else ()
        return (
            self._all_numbers(lingering + takes, own_stream_takes, buffers),
            self._all_numbers(lingering + gives, own_stream_gives, buffers),
        )

    def _all_numbers(self, *streams: tuple[float, ...]) -> tuple[int, ...]:
        numbers: list[int] = []
        for stream, sizes in enumerate(streams):
            known = self._numbers[stream]
            for size in dict.fromkeys(sizes):
                if size not in known:
                    known[size] = len(self.requests)
                    self.requests.append(request(size, stream=stream))
            numbers += map(known.__getitem__, sizes)
        return tuple(numbers)


def _among(stacks: Mapping[int, Stack], part: Part) -> Part:
    takes, gives = part
    return tuple([n for n in takes if n in stacks]), tuple([n for n in gives if n in stacks])
