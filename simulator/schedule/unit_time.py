"""When does each slot of an order run, if communication is free?

Every rank runs its slots in order, each as soon as the slots it depends on have ended.
A forward needs the forward of the stage before; a backward needs its own forward and the
backward (or input gradient) of the stage after; a weight gradient needs its input
gradient. The two halves of a joint slot start together on the inputs of both and then take
turns. Ignored: transfers, optimizer, differences between stages. This is the model behind
the closed forms of the papers.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from simulator.errors import Fault, InputError
from simulator.schedule.slots import Order, Phase, Placement, Slot, joint_groups

EQUAL_COSTS: Mapping[Phase, float] = {
    Phase.FORWARD: 1.0,
    Phase.BACKWARD: 2.0,
    Phase.BACKWARD_INPUT: 1.0,
    Phase.BACKWARD_WEIGHT: 1.0,
}
"""Forward, input gradient and weight gradient take the same time (assumption of the papers)."""


class Product(NamedTuple):
    """What a slot leaves for others: activations, input gradients or weight gradients.

    A whole backward leaves input gradients, since that is what others wait for.
    """

    phase: Phase
    stage: int
    microbatch: int


class Blocked(NamedTuple):
    """A rank that waits for ever."""

    rank: int
    slot: Slot
    """Where it has stopped."""
    missing: Product
    """What it waits for."""


class BlockedError(InputError):
    """An order that never finishes.

    Attributes:
        blocked: The ranks that wait, and what for.
    """

    def __init__(self, blocked: Sequence[Blocked]) -> None:
        self.blocked = tuple(blocked)
        where = ", ".join(f"rank {rank} at {slot}" for rank, slot, _ in blocked)
        rule = f"the order deadlocks: {where} wait for slots that never run"
        super().__init__([Fault("order", rule, hint="check the order of the blocked ranks")])


@dataclass(frozen=True)
class SlotTimes:
    """When every slot ran, in units of the given costs.

    Attributes:
        start: ``start[rank][position]``.
        end: ``end[rank][position]``.
        busy: Time each rank spends computing.
        in_flight: Most activations, counted per virtual stage and microbatch, that each rank
            holds at once, from the forward to the end of the backward (of the weight
            gradient where it is computed on its own).
    """

    start: list[list[float]]
    end: list[list[float]]
    busy: list[float]
    in_flight: list[int]

    @property
    def makespan(self) -> float:
        """Time from the first start to the last end."""
        return max((ends[-1] for ends in self.end if ends), default=0.0)

    @property
    def bubble_share(self) -> float:
        """Share of the makespan that an average rank is idle, 0 to 1."""
        return 1.0 - math.fsum(self.busy) / (len(self.busy) * self.makespan)

    @property
    def idle_between(self) -> list[float]:
        """Idle time of each rank between its own first start and last end.

        The measure of the zero-bubble papers: the ranks start and end staggered, and the
        optimizer step does not wait for all of them.
        """
        spans = (ends[-1] - starts[0] for starts, ends in zip(self.start, self.end, strict=True))
        return [span - busy for span, busy in zip(spans, self.busy, strict=True)]


def slot_times(
    order: Order,
    chunks: int,
    placement: Placement,
    costs: Mapping[Phase, float] = EQUAL_COSTS,
) -> SlotTimes:
    """When every slot of the order runs, at the earliest.

    Args:
        order: One list of slots per rank.
        chunks: Model chunks per rank.
        placement: Which rank runs which virtual stage.
        costs: Duration of a slot, by phase; each at least 0.

    Raises:
        BlockedError: The order can never finish; names the slot each rank is blocked at.
    """
    done: dict[Product, float] = {}
    start: list[list[float]] = [[] for _ in order]
    end: list[list[float]] = [[] for _ in order]
    clock = [0.0] * len(order)
    groups = [deque(joint_groups(slots)) for slots in order]
    sizes = (len(order), chunks, placement)

    waiting: dict[Product, list[int]] = defaultdict(list)
    runnable = deque(range(len(order)))
    while runnable:
        rank = runnable.popleft()
        todo = groups[rank]
        while todo:
            if missing := _missing(todo[0], done, *sizes):
                waiting[missing[1]].append(rank)
                break
            group = todo.popleft()
            needed = (product for slot in group for product in dependencies(slot, *sizes))
            now = max(clock[rank], max((done[product] for product in needed), default=0.0))
            for slot in group:
                start[rank].append(now)
                now += costs[slot.phase]
                end[rank].append(now)
                product = product_of(slot)
                done[product] = now
                runnable.extend(waiting.pop(product, ()))
            clock[rank] = now
    blocked = [
        Blocked(rank, *missing)
        for rank, todo in enumerate(groups)
        if todo and (missing := _missing(todo[0], done, *sizes))
    ]
    if blocked:
        raise BlockedError(blocked)
    busy = [math.fsum(costs[slot.phase] for slot in slots) for slots in order]
    return SlotTimes(start, end, busy, [peak_in_flight(slots) for slots in order])


def _missing(
    group: list[Slot],
    done: Mapping[Product, float],
    stages: int,
    chunks: int,
    placement: Placement,
) -> tuple[Slot, Product] | None:
    """The first slot of a group that lacks something, and what; None if it can start."""
    for slot in group:
        for product in dependencies(slot, stages, chunks, placement):
            if product not in done:
                return slot, product
    return None


def dependencies(slot: Slot, stages: int, chunks: int, placement: Placement) -> list[Product]:
    """What must have ended before a slot starts."""
    phase, stage, microbatch, _ = slot
    if phase is Phase.FORWARD:
        first = placement.is_first(stage, stages, chunks)
        return [] if first else [Product(Phase.FORWARD, stage - 1, microbatch)]
    if phase is Phase.BACKWARD_WEIGHT:
        return [Product(Phase.BACKWARD_INPUT, stage, microbatch)]
    own = Product(Phase.FORWARD, stage, microbatch)
    if placement.is_last(stage, stages, chunks):
        return [own]
    return [own, Product(Phase.BACKWARD_INPUT, stage + 1, microbatch)]


def product_of(slot: Slot) -> Product:
    """What a slot computes."""
    phase = Phase.BACKWARD_INPUT if slot.phase is Phase.BACKWARD else slot.phase
    return Product(phase, slot.stage, slot.microbatch)


def held_change(slot: Slot) -> int:
    """Activations that a slot adds to (+1) or takes from (-1) what its rank holds."""
    if slot.phase is Phase.FORWARD:
        return 1
    return 0 if slot.phase is Phase.BACKWARD_INPUT else -1


def peak_in_flight(slots: Sequence[Slot]) -> int:
    """Most activations held at once by a rank that runs these slots in order."""
    return max(accumulate(map(held_change, slots)), default=0)
