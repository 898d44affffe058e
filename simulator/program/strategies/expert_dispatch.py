"""How do tokens get to the ranks of their experts, and their results back?

- all_to_all: every copy of a token goes straight to the rank of its expert (GShard, arXiv
  2006.16668). Copies are sorted by expert before, and once more where several experts share
  a rank, because they arrive by sender.
- all_gather: every rank gets all tokens of the group with all routing maps and weights, and
  takes the copies of its own experts; partial sums are scattered. No rank waits for counts,
  and nothing depends on who is busy. Right for few ranks or many choices (Megatron-Core's
  ``allgather`` dispatcher).
- hierarchical: a token crosses the fabric once per node that has one of its experts, to the
  GPU on its own rail, and reaches each rank there once, over scale-up links; copies are made
  and sorted where they arrive (DeepSeek-V3, arXiv 2412.19437, section 3.2.2; DeepEP). With
  routing limited to M nodes it crosses at most M times. By symmetry of rails, (r-1)/r of what
  r ranks of a node receive comes over its links, and (n-1)/n of what n nodes do over the fabric.

Each moves backward what it moved forward, the other way.

Ignores: buffers that a dispatcher keeps, and the multiprocessors that DeepEP sets aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from simulator.cost.collectives import CollectiveKind, Group
from simulator.described.plan.plan_fields import Dispatcher
from simulator.program.layer.pieces import Axis, Exchange, MemoryBound, Region, RowSums

Inserted = Exchange | MemoryBound
"""What dispatching adds to a layer."""

_COUNT_BYTES = 8
"""Numbers of copies are 64-bit integers."""

_CHOICE_BYTES, _WEIGHT_BYTES = 1, 4
"""A routing map is boolean, its weights are fp32 (Megatron-Core)."""

_EXCHANGE = CollectiveKind.ALL_TO_ALL
_GATHER, _SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER


@dataclass(frozen=True, slots=True)
class Routing:
    """What one rank routes in one layer.

    Attributes:
        tokens: Its tokens.
        copies: Copies of them for their experts.
        experts: Routed experts of the layer.
        token_bytes: Size of one token [B].
        nodes_reached, ranks_reached: Nodes and ranks of the group that have an expert of a
            token, on average.
        busiest: Copies of the busiest rank over the mean.
        counts_copies: Whether ranks tell each other how many copies they send.
        count_kernels: Kernels that count them beside that.
        sends_weights: Whether the router's weights travel with the copies.
        indexed_width: Elements of a token where what arrived is sorted as ``x[indices]``, whose
            gradient adds rows up; 0 where chunks of it are joined.
    """

    tokens: float
    copies: float
    experts: int
    token_bytes: float
    nodes_reached: float
    ranks_reached: float
    busiest: float = 1.0
    counts_copies: bool = False
    count_kernels: int = 0
    sends_weights: bool = False
    indexed_width: int = 0


@dataclass(frozen=True, slots=True)
class Journey:
    """What is inserted around permuting, computing and unpermuting.

    Attributes:
        before: Before tokens are copied and sorted by expert.
        there: Between that and the experts.
        back: Between the experts and adding up.
        after: After that.
        sorted_rows: Rows that permuting moves, over those of the rank's own tokens and copies.
        summed_rows: Copies that are added up, over the rank's own.
        sorts_received: Whether what is permuted has arrived before, so that it grows with
            the load of the rank's experts.
    """

    before: tuple[Inserted, ...] = ()
    there: tuple[Inserted, ...] = ()
    back: tuple[Inserted, ...] = ()
    after: tuple[Inserted, ...] = ()
    sorted_rows: float = 1.0
    summed_rows: float = 1.0
    sorts_received: bool = False


def _all_to_all(routing: Routing, ep: Group, etp: int) -> Journey:
    copies_bytes = routing.copies * routing.token_bytes * routing.busiest
    gathered_bytes = copies_bytes * etp
    sorts = routing.experts > ep.ranks

    def share(name: str, forward: CollectiveKind, backward: CollectiveKind) -> Iterator[Inserted]:
        if etp > 1:
            yield Exchange(name, Axis.EXPERT_TENSOR, forward, backward, gathered_bytes)

    def sort(name: str, summed: float = 0.0) -> Iterator[Inserted]:
        sums = RowSums("sorted", backward=summed) if summed else None
        moved_bytes = 2 * gathered_bytes
        if sorts:
            yield MemoryBound(name, moved_bytes, moved_bytes, Region.ROUTED, row_sums=sums)

    def weights() -> Iterator[Inserted]:
        if routing.sends_weights:
            num_bytes = routing.copies * routing.busiest * _WEIGHT_BYTES
            yield Exchange("dispatch_weights", Axis.EXPERT, _EXCHANGE, _EXCHANGE, num_bytes)

    return Journey(
        before=tuple(_count_kernels(routing)),
        there=(
            *_counts(routing),
            Exchange("dispatch", Axis.EXPERT, _EXCHANGE, _EXCHANGE, copies_bytes),
            *weights(),
            *share("dispatch_gather", _GATHER, _SCATTER),
            *sort("dispatch_sort", routing.copies * routing.busiest * etp * routing.indexed_width),
        ),
        back=(
            *sort("combine_sort"),
            *share("combine_scatter", _SCATTER, _GATHER),
            Exchange("combine", Axis.EXPERT, _EXCHANGE, _EXCHANGE, copies_bytes),
        ),
    )


def _all_gather(routing: Routing, ep: Group, etp: int) -> Journey:
    own_bytes = routing.tokens * routing.token_bytes
    map_bytes = routing.tokens * routing.experts * _CHOICE_BYTES
    weight_bytes = routing.tokens * routing.experts * _WEIGHT_BYTES
    lines = [(Axis.EXPERT, ep.ranks), *([(Axis.EXPERT_TENSOR, ep.ranks * etp)] if etp > 1 else [])]

    def gather(name: str, size: float, *, is_learned: bool = True) -> Iterator[Inserted]:
        for axis, ranks in lines:
            yield Exchange(name, axis, _GATHER, _SCATTER if is_learned else None, size * ranks)

    return Journey(
        before=(
            *gather("dispatch_map", map_bytes, is_learned=False),
            *gather("dispatch_weights", weight_bytes),
            *gather("dispatch", own_bytes),
        ),
        after=tuple(
            Exchange("combine", axis, _SCATTER, _GATHER, own_bytes * ranks)
            for axis, ranks in reversed(lines)
        ),
        sorted_rows=float(etp),
        summed_rows=float(etp),
        sorts_received=True,
    )


def _hierarchical(routing: Routing, ep: Group, etp: int) -> Journey:
    sent = routing.tokens * routing.token_bytes * routing.busiest
    r, nodes = ep.local_ranks, ep.nodes
    ranks_bytes = sent * routing.ranks_reached
    levels = (ranks_bytes * (r - 1) / r, sent * routing.nodes_reached * (nodes - 1) / nodes)

    def exchange(name: str) -> Exchange:
        return Exchange(name, Axis.EXPERT, _EXCHANGE, _EXCHANGE, ranks_bytes, levels=levels)

    def share(name: str, forward: CollectiveKind, backward: CollectiveKind) -> Iterator[Inserted]:
        if etp > 1:
            yield Exchange(name, Axis.EXPERT_TENSOR, forward, backward, ranks_bytes * etp)

    received = routing.tokens * routing.ranks_reached + routing.copies
    return Journey(
        before=(
            *_counts(routing),
            exchange("dispatch"),
            *share("dispatch_gather", _GATHER, _SCATTER),
        ),
        after=(*share("combine_scatter", _SCATTER, _GATHER), exchange("combine")),
        sorted_rows=etp * received / (routing.tokens + routing.copies),
        summed_rows=float(etp),
        sorts_received=True,
    )


def _count_kernels(routing: Routing) -> Iterator[MemoryBound]:
    """Sums over the map of choices, and copies of them to the host."""
    if routing.counts_copies and routing.count_kernels:
        num_bytes = routing.tokens * routing.experts * _CHOICE_BYTES
        yield MemoryBound("count_copies", num_bytes, 0.0, Region.SEQUENCE, routing.count_kernels)


def _counts(routing: Routing) -> Iterator[Exchange]:
    """One number per expert, forward only (Megatron-Core gathers all ranks' instead)."""
    if routing.counts_copies:
        num_bytes = float(routing.experts * _COUNT_BYTES)
        yield Exchange("expert_counts", Axis.EXPERT, _EXCHANGE, None, num_bytes)


DISPATCHERS: Mapping[Dispatcher, Callable[[Routing, Group, int], Journey]] = {
    "all_to_all": _all_to_all,
    "all_gather": _all_gather,
    "hierarchical": _hierarchical,
}
"""(what is routed, ranks that the experts are spread over, ranks that share each) -> journey."""
