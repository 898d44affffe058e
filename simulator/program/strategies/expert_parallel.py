"""What does expert parallelism change in a layer?

The routed experts of a layer are spread over ep ranks. Every rank routes its own tokens,
sends them to the ranks of their experts (dispatch) and gets the results back (combine), in one
of the ways of :mod:`simulator.program.strategies.expert_dispatch`. Where etp ranks share an expert,
each gathers the copies of the others after the dispatch, and the partial results are scattered
before the combine.

Where copies are uniform over experts, every rank receives as many as it sends; else the
busiest rank of a group decides how long its exchanges take.

Source: GShard (arXiv 2006.16668, section 3) for the exchanges; MoE Parallel Folding (arXiv
2504.14960, section 3) for etp beside tp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.cost.collectives import Group
from simulator.described.model import Experts
from simulator.described.plan.plan_fields import Dispatcher
from simulator.program.grid.expert_tokens import ExpertShare, parts_reached
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    Gemm,
    GroupedGemm,
    Layer,
    MemoryBound,
    Piece,
    Region,
    Role,
    Saved,
    Split,
)
from simulator.program.strategies.expert_dispatch import (
    DISPATCHERS,
    Inserted,
    Journey,
    Routing,
)


def expert_parallel(
    layer: Layer,
    ep: Group,
    etp: int,
    *,
    experts: Experts | None,
    element_bytes: float,
    dispatcher: Dispatcher = "all_to_all",
    share: ExpertShare | None = None,
    count_kernels: int = 0,
    sends_weights: bool = False,
    overlaps_shared: bool = False,
) -> Layer:
    """The layer of one of ``ep`` x ``etp`` ranks that hold the routed experts together.

    Args:
        layer: A layer whose pieces count the rank's own tokens, and all experts.
        ep: Ranks that the experts are spread over; divides their number.
        etp: Ranks that share each expert.
        experts: How the model routes.
        element_bytes: Bytes of one activation [B].
        dispatcher: How tokens travel.
        share: What the rank's experts receive; None is as much as all others.
        count_kernels: Kernels that count copies beside the exchange of these numbers.
        sends_weights: Whether the router's weights travel with the copies.
        overlaps_shared: Whether the first product of the shared expert runs beside the dispatch,
            and the last beside the combine (Megatron-Core, ``moe_shared_expert_overlap``).
    """
    product = next((piece for piece in layer.pieces if isinstance(piece, GroupedGemm)), None)
    if product is None or experts is None:
        return layer
    if share is not None:
        layer = _loaded(layer, share)
    if ep.ranks * etp == 1:
        return layer
    routing = replace(
        _routing(product, ep, experts, element_bytes, share, indexes=_indexes(layer)),
        count_kernels=count_kernels,
        sends_weights=sends_weights,
    )
    journey = DISPATCHERS[dispatcher](routing, ep, etp)
    if overlaps_shared:
        journey = _beside_shared_expert(journey, layer)
    load = share.mean if share and journey.sorts_received else 1.0
    rows, summed = journey.sorted_rows * load, journey.summed_rows * load
    pieces: list[Piece] = []
    for piece in layer.pieces:
        own = _local(piece, ep.ranks, etp)
        match own:
            case MemoryBound(role=Role.PERMUTE):
                pieces += _serving(own, journey.before)
                pieces += [_sorted(own, rows, summed), *_serving(own, journey.there)]
            case MemoryBound(role=Role.UNPERMUTE):
                pieces += _serving(own, journey.back)
                pieces += [_sorted(own, rows, summed), *_serving(own, journey.after)]
            case _:
                pieces.append(own)
    saved = tuple(_gathered(saved, etp) for saved in layer.saved)
    return replace(layer, pieces=tuple(pieces), saved=saved)


def _beside_shared_expert(journey: Journey, layer: Layer) -> Journey:
    """The journey with tokens on their way while the shared expert computes."""
    products = [piece for piece in layer.pieces if isinstance(piece, Gemm)]
    shared = [product.name for product in products if product.role is Role.SHARED_EXPERT]
    there, back = _beside(shared[0], journey.there), _beside(shared[-1], journey.back)
    return replace(journey, there=there, back=back)


def _beside(product: str, way: tuple[Inserted, ...]) -> tuple[Inserted, ...]:
    """One way of the tokens, whose largest exchange runs beside a product."""
    exchanges = [each for each in way if isinstance(each, Exchange) and each.axis is Axis.EXPERT]
    largest = max(exchanges, key=lambda exchange: exchange.num_bytes)
    return tuple(replace(largest, beside=product) if each is largest else each for each in way)


def _sorted(piece: MemoryBound, rows: float, summed: float) -> MemoryBound:
    """The piece, with so many times the rows that it moves and the copies that it adds up."""
    sums = piece.row_sums.scaled(summed) if piece.row_sums else None
    return replace(piece.scaled(rows), row_sums=sums)


def _serving(piece: Piece, journey: tuple[Exchange | MemoryBound, ...]) -> Iterator[Piece]:
    return (replace(each, serves=piece.name) for each in journey)


def _routing(
    product: GroupedGemm,
    ep: Group,
    experts: Experts,
    element_bytes: float,
    share: ExpertShare | None,
    *,
    indexes: bool,
) -> Routing:
    """What one rank routes, by the first product of all experts with the rank's own tokens."""
    copies = product.groups * product.rows
    return Routing(
        tokens=copies / experts.top_k,
        copies=copies,
        experts=product.groups,
        token_bytes=product.k * element_bytes,
        nodes_reached=parts_reached(experts, ep.nodes),
        ranks_reached=parts_reached(experts, ep.ranks),
        # An exchange ends when the port of the busiest rank has passed all of its copies.
        busiest=share.busiest if share else 1.0,
        # Unless every expert gets its capacity, ranks have to know what comes.
        counts_copies=experts.capacity_factor is None,
        indexed_width=product.k if indexes else 0,
    )


def _indexes(layer: Layer) -> bool:
    """Whether PyTorch's indexing moves rows, here and where copies arrive."""
    sums = (piece.row_sums for piece in layer.pieces if isinstance(piece, MemoryBound))
    return any(each is not None and each.method == "sorted" for each in sums)


def _loaded(layer: Layer, share: ExpertShare) -> Layer:
    """The layer with what its own experts receive between permuting and unpermuting."""
    roles = [piece.role if isinstance(piece, MemoryBound) else None for piece in layer.pieces]
    routed = range(roles.index(Role.PERMUTE) + 1, roles.index(Role.UNPERMUTE))

    def loaded(index: int, piece: Piece) -> Piece:
        if isinstance(piece, GroupedGemm):
            return replace(piece, loads=share.loads)
        if isinstance(piece, MemoryBound) and index in routed:
            return piece.scaled(share.mean)
        return piece

    saved = tuple(
        replace(each, num_bytes=each.num_bytes * share.mean) if each.role is Role.ROUTED else each
        for each in layer.saved
    )
    pieces = tuple(loaded(index, piece) for index, piece in enumerate(layer.pieces))
    return replace(layer, pieces=pieces, saved=saved)


def _local(piece: Piece, ep: int, etp: int) -> Piece:
    """Fewer experts with more rows each, and of each expert its share of the width."""
    if isinstance(piece, MemoryBound):
        kernels = piece.kernels // ep if piece.per_expert else piece.kernels
        return replace(piece.scaled(etp if piece.region is Region.ROUTED else 1), kernels=kernels)
    if not isinstance(piece, GroupedGemm):
        return piece
    local = replace(
        piece,
        groups=piece.groups // ep,
        rows=piece.rows * ep * etp,
        launches=max(1, piece.launches // ep),
        calls=max(1, piece.calls // ep),
    )
    match piece.split:
        case Split.COLUMN:
            return replace(local, n=piece.n // etp)
        case Split.ROW:
            return replace(local, k=piece.k // etp)
        case Split.NONE:
            return local


def _gathered(saved: Saved, etp: int) -> Saved:
    is_routed = saved.region is Region.ROUTED
    return replace(saved, num_bytes=saved.num_bytes * etp) if is_routed else saved
