"""What does a captured exchange cost on a network?"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.capture.rescale import Scale, scaled_group
from simulator.capture.table import Capture, Exchange
from simulator.chakra.rank_parts import group_on
from simulator.cost.collectives import (
    CollectiveCost,
    CollectiveKind,
    collective_cost,
    send_recv_cost,
)
from simulator.described.cluster.network import Network
from simulator.program.communication import communication_work
from simulator.program.ir import Category, Collective, Kind, Work

_CATEGORIES: Mapping[str, Category] = {
    "tp": Category.TENSOR_PARALLEL,
    "cp": Category.CONTEXT_PARALLEL,
    "ep": Category.EXPERT_PARALLEL,
    "pp": Category.PIPELINE,
}
"""By degree; all others are data parallelism."""


def category_of(exchange: Exchange) -> Category:
    """Where the time of an exchange is booked."""
    return _CATEGORIES.get(exchange.axis, Category.DATA_PARALLEL)


class ExchangeCosts:
    """Works of exchanges; equal ones share it.

    Args:
        capture: Names the groups.
        network: As the job takes it.
        scale: How many ranks there are.
    """

    def __init__(self, capture: Capture, network: Network, scale: Scale) -> None:
        self._capture, self._network, self._scale = capture, network, scale
        self._works: dict[tuple[Exchange, int], Work] = {}

    def work(self, exchange: Exchange, rank: int) -> Work:
        """Work of an exchange that a captured rank issues."""
        key = exchange, rank if exchange.peer >= 0 else -1
        if key not in self._works:
            self._works[key] = self._new_work(exchange, rank)
        return self._works[key]

    def _new_work(self, one: Exchange, rank: int) -> Work:
        ranks = scaled_group(self._capture, one.group, one.axis, self._scale)
        if one.peer >= 0:
            members = self._capture.groups[one.group]
            ends = sorted(ranks[members.index(each)] for each in {rank, one.peer})
            cost = send_recv_cost(one.num_bytes, group_on(ends, self._network), self._network)
            return _work(one, 2, cost)
        group, kind = group_on(ranks, self._network), CollectiveKind(one.kind)
        return _work(one, len(ranks), collective_cost(kind, one.num_bytes, group, self._network))


def _work(one: Exchange, ranks: int, cost: CollectiveCost) -> Work:
    kind = Kind(one.kind)
    issued = Collective(one.kind, kind, one.axis, ranks, one.num_bytes, cost.port_bytes)
    shown = (issued,) if ranks > 1 and one.num_bytes else ()
    return communication_work([(one.kind, cost)], one.num_bytes, category_of(one), shown)
