"""What does expert parallelism change in a layer?

The routed experts of a layer are spread over ep ranks. Every rank routes its own tokens,
sends the copies to the ranks of their experts (dispatch) and gets the results back
(combine): two all_to_all forward and two backward. Where etp ranks share an expert, each
gathers the copies of the others after the dispatch, and the partial results are scattered
before the combine. Copies arrive by sender and are sorted by expert once more.

Where copies are uniform over experts, every rank receives as many as it sends; else the
busiest rank of a group decides how long its exchanges take.

Source: GShard (arXiv 2006.16668, section 3) for the exchanges; MoE Parallel Folding (arXiv
2504.14960, section 3) for etp beside tp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.program.expert_load import ExpertShare
from simulator.program.experts import PERMUTE, UNPERMUTE, is_of_routed_experts
from simulator.program.layer import (
    Axis,
    Exchange,
    GroupedGemm,
    Layer,
    Piece,
    Region,
    Saved,
    Split,
    Stream,
)

_COUNT_BYTES = 8
"""Numbers of copies are 64-bit integers."""


def expert_parallel(
    layer: Layer,
    ep: int,
    etp: int,
    *,
    element_bytes: float,
    counts_copies: bool = False,
    share: ExpertShare | None = None,
) -> Layer:
    """The layer of one of ``ep`` x ``etp`` ranks that hold the routed experts together.

    Args:
        layer: A layer whose pieces count the rank's own tokens, and all experts.
        ep: Ranks that the experts are spread over; divides their number.
        etp: Ranks that share each expert.
        element_bytes: Bytes of one activation [B].
        counts_copies: Whether ranks tell each other how many copies they send, as they must
            unless every expert gets its capacity.
        share: What the rank's experts receive; None is as much as all others.
    """
    products = [piece for piece in layer.pieces if isinstance(piece, GroupedGemm)]
    if not products or (ep * etp == 1 and share is None):
        return layer
    if share is not None:
        layer = _loaded(layer, share)
    if ep * etp == 1:
        return layer
    first = products[0]
    copies_bytes = first.groups * first.rows * first.k * element_bytes
    if share is not None:
        # An exchange ends when the port of the busiest rank has passed all of its copies.
        copies_bytes *= share.busiest
    sorts = first.groups > ep
    pieces: list[Piece] = []
    for piece in layer.pieces:
        if piece.name == UNPERMUTE:
            pieces += _combine(copies_bytes, etp, sorts=sorts)
        pieces.append(_local(piece, ep, etp))
        if piece.name == PERMUTE:
            if counts_copies:
                pieces.append(_count_exchange(first.groups))
            pieces += _dispatch(copies_bytes, etp, sorts=sorts)
    saved = tuple(_gathered(saved, etp) for saved in layer.saved)
    return replace(layer, pieces=tuple(pieces), saved=saved)


def _loaded(layer: Layer, share: ExpertShare) -> Layer:
    """The layer with what its own experts receive between permuting and unpermuting."""
    names = [piece.name for piece in layer.pieces]
    routed = range(names.index(PERMUTE) + 1, names.index(UNPERMUTE))

    def loaded(index: int, piece: Piece) -> Piece:
        if isinstance(piece, GroupedGemm):
            return replace(piece, loads=share.loads)
        if isinstance(piece, Stream) and index in routed:
            return replace(
                piece,
                forward_bytes=piece.forward_bytes * share.mean,
                backward_bytes=piece.backward_bytes * share.mean,
            )
        return piece

    saved = tuple(
        replace(each, num_bytes=each.num_bytes * share.mean) if is_of_routed_experts(each) else each
        for each in layer.saved
    )
    pieces = tuple(loaded(index, piece) for index, piece in enumerate(layer.pieces))
    return replace(layer, pieces=pieces, saved=saved)


def _count_exchange(experts: int) -> Exchange:
    """One number per expert, forward only (Megatron-Core gathers all ranks' instead)."""
    return Exchange(
        "expert_counts", Axis.EXPERT, CollectiveKind.ALL_TO_ALL, None, float(experts * _COUNT_BYTES)
    )


def _dispatch(copies_bytes: float, etp: int, *, sorts: bool) -> Iterator[Piece]:
    exchange = CollectiveKind.ALL_TO_ALL
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    gathered_bytes = copies_bytes * etp
    yield Exchange("dispatch", Axis.EXPERT, exchange, exchange, copies_bytes)
    if etp > 1:
        yield Exchange("dispatch_gather", Axis.EXPERT_TENSOR, gather, scatter, gathered_bytes)
    if sorts:
        yield Stream("dispatch_sort", 2 * gathered_bytes, 2 * gathered_bytes, Region.ROUTED)


def _combine(copies_bytes: float, etp: int, *, sorts: bool) -> Iterator[Piece]:
    exchange = CollectiveKind.ALL_TO_ALL
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    gathered_bytes = copies_bytes * etp
    if sorts:
        yield Stream("combine_sort", 2 * gathered_bytes, 2 * gathered_bytes, Region.ROUTED)
    if etp > 1:
        yield Exchange("combine_scatter", Axis.EXPERT_TENSOR, scatter, gather, gathered_bytes)
    yield Exchange("combine", Axis.EXPERT, exchange, exchange, copies_bytes)


def _local(piece: Piece, ep: int, etp: int) -> Piece:
    """Fewer experts with more rows each, and of each expert its share of the width."""
    if isinstance(piece, Stream) and piece.per_expert:
        return replace(piece, kernels=piece.kernels // ep)
    if not isinstance(piece, GroupedGemm):
        return piece
    local = replace(
        piece,
        groups=piece.groups // ep,
        rows=piece.rows * ep * etp,
        launches=max(1, piece.launches // ep),
    )
    if piece.split is Split.COLUMN:
        return replace(local, n=piece.n // etp)
    return replace(local, k=piece.k // etp)


def _gathered(saved: Saved, etp: int) -> Saved:
    is_routed = saved.region is Region.ROUTED
    return replace(saved, num_bytes=saved.num_bytes * etp) if is_routed else saved
