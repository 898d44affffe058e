"""What does an operation that only communicates cost, and what does it issue?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from simulator.cost.collectives import CollectiveCost, CollectiveKind, Group, collective_cost
from simulator.described.cluster.network import Network
from simulator.program.ir import Category, Collective, Kind, Part, Traffic, Work

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that is to be issued.

    Attributes:
        name: What it moves.
        kind: What the group does.
        axis: Degree of the plan that the group belongs to.
        group: Who takes part.
        num_bytes: Message size as nccl-tests counts it [B].
    """

    name: str
    kind: CollectiveKind
    axis: str
    group: Group
    num_bytes: float


def collectives_work(calls: Sequence[Call], network: Network, category: Category) -> Work:
    """One operation that runs collectives one after another; groups of one are left out."""
    costs = [collective_cost(c.kind, c.num_bytes, c.group, network) for c in calls]
    named = [(str(call.kind), cost) for call, cost in zip(calls, costs, strict=True)]
    issued = tuple(
        Collective(
            call.name, Kind(call.kind), call.axis, call.group.ranks, call.num_bytes,
            cost.port_bytes,
        )
        for call, cost in zip(calls, costs, strict=True)
        if call.group.ranks > 1 and call.num_bytes
    )  # fmt: skip
    num_bytes = calls[0].num_bytes if calls else 0.0
    return communication_work(named, num_bytes, category, issued)


def communication_work(
    costs: Sequence[tuple[str, CollectiveCost]],
    num_bytes: float,
    category: Category,
    collectives: tuple[Collective, ...] = (),
) -> Work:
    """One operation that runs named transfers or collectives one after another."""
    parts = tuple(Part(str(name), category, cost.seconds) for name, cost in costs if cost.seconds)
    traffic = Traffic(
        _total(cost.port_bytes for _, cost in costs),
        math.fsum(cost.latency_s for _, cost in costs),
        max((cost.sm_count for _, cost in costs), default=0),
        _total(cost.link_bytes for _, cost in costs),
    )
    return Work(
        math.fsum(cost.seconds for _, cost in costs),
        parts,
        num_bytes=num_bytes,
        traffic=traffic,
        collectives=collectives,
    )


def _total(shares: Iterable[Mapping[_Key, float]]) -> dict[_Key, float]:
    total: dict[_Key, float] = {}
    for share in shares:
        for key, num_bytes in share.items():
            total[key] = total.get(key, 0.0) + num_bytes
    return total
