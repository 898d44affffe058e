"""How much memory does PyTorch's caching allocator reserve for a sequence of blocks?

Over a step, blocks are taken and given back one by one, in the order of the operations.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator.allocator_replay import Part, Replay
from simulator.results.allocator.caching_allocator import CachingAllocator, Request, Stack, request
from simulator.results.allocator.free_blocks import Pool
from simulator.results.allocator.small_pools import most_small_bytes


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


class Exchanges(NamedTuple):
    """What is asked of an allocator over several steps, in the order of the host.

    Of equal blocks the last one goes first.

    Attributes:
        distinct: Exchanges that differ; the others name them by number.
        before: What is taken and given back before the first step.
        first: Of the first step.
        later: Of each later one.
    """

    distinct: tuple[Exchange, ...]
    before: tuple[int, ...]
    first: tuple[int, ...]
    later: tuple[int, ...]


def told_apart(
    later: Sequence[Exchange],
    *,
    before: Sequence[Exchange] = (),
    first: Sequence[Exchange] | None = None,
) -> Exchanges:
    """Exchanges of steps; the first step is like the others unless it is given."""
    numbers: dict[Exchange, int] = {}
    orders = (before, later if first is None else first, later)
    numbered = (
        tuple([numbers.setdefault(each, len(numbers)) for each in order]) for order in orders
    )
    started, *steps = numbered
    return Exchanges(tuple(numbers), started, *steps)


def one_after_another(steps: Sequence[Exchanges]) -> Exchanges:
    """Steps that differ: the first step of the first one, and then a later one of each."""
    numbers: dict[Exchange, int] = {}

    def numbered(of: Exchanges, order: Sequence[int]) -> list[int]:
        return [numbers.setdefault(of.distinct[number], len(numbers)) for number in order]

    first = steps[0]
    before, begun = numbered(first, first.before), numbered(first, first.first)
    later = [number for step in (*steps[1:], first) for number in numbered(step, step.later)]
    return Exchanges(tuple(numbers), tuple(before), tuple(begun), tuple(later))


def reserved_bytes(
    exchanges: Exchanges,
    settings: AllocatorSettings,
    *,
    steps: int = 1,
    room_bytes: float = math.inf,
    collects_above_bytes: float = math.inf,
    least_bytes: float = -math.inf,
) -> float:
    """The most that is reserved while blocks come and go [B].

    Where that surely is less than ``least_bytes``, something between them.

    Args:
        exchanges: What is asked for.
        settings: How the allocator is set.
        steps: How many there are.
        room_bytes: What the device has; more is reserved only where nothing can be returned.
        collects_above_bytes: Reserved at most before what is unused for long is returned.
        least_bytes: Below this the callers need no number.
    """
    limits = {"room_bytes": room_bytes, "collects_above_bytes": collects_above_bytes}
    distinct, before, first, later = exchanges
    has_room = math.isinf(room_bytes)
    asked = _Asked()
    parts = [asked.part(each, has_room=has_room) for each in distinct]
    present = {each.pool for each in asked.requests}

    def replayed(pools: Collection[Pool]) -> float:
        allocator = CachingAllocator(settings, **limits)
        stacks = {
            n: allocator.stack(each) for n, each in enumerate(asked.requests) if each.pool in pools
        }
        of_pools = parts if len(pools) == len(present) else [_among(stacks, part) for part in parts]
        replay = Replay((first, later), before, of_pools, stacks, allocator)
        replay.run_steps(steps)
        return float(allocator.most_reserved_bytes)

    if math.isfinite(min(room_bytes, collects_above_bytes)):
        return replayed(present)
    # Without a limit nothing is ever returned, so what one pool reserves is nothing to another.
    small = {pool for pool in present if pool.is_small}
    large_bytes = sum(replayed({pool}) for pool in present - small)
    if least_bytes > large_bytes and math.isinf(settings.max_split_bytes):
        order = before + first + later * (steps - 1)
        bounds = (most_small_bytes(pool, asked.requests, parts, order) for pool in small)
        if (bound_bytes := large_bytes + sum(bounds)) <= least_bytes:
            return bound_bytes
    return large_bytes + sum(replayed({pool}) for pool in small)


class KeptReserves:
    """What the latest allocators reserved, for those who ask about many changes of one job.

    Most changes move its times alone.

    Attributes:
        reserved_bytes: As the function of that name.
    """

    def __init__(self) -> None:
        self.reserved_bytes = lru_cache(maxsize=64)(reserved_bytes)


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
