"""What does tensor parallelism change in a layer, with and without sequence parallelism?

Weights of column products are cut by columns, those of row products by rows, attention
by heads. Without sequence parallelism the partial outputs of a row product are
all-reduced forward, and the input gradients of a column product backward. With it the
norms and residuals are cut along the sequence, and each all_reduce becomes a
reduce_scatter and an all_gather of the same bytes.

Source: Megatron-LM (arXiv 1909.08053, section 3; arXiv 2205.05198, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.program.layer import (
    Axis,
    Exchange,
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    Piece,
    Region,
    RingAttention,
    Saved,
    Split,
    Stream,
)


def tensor_parallel(
    layer: Layer,
    tp: int,
    *,
    sequence_parallel: bool,
    element_bytes: float,
    gathered_bytes: float | None = None,
    keeps_gathered: bool = False,
) -> Layer:
    """The layer of one of ``tp`` ranks, with its exchanges.

    Args:
        layer: The layer of a single device.
        tp: Ranks that share it.
        sequence_parallel: Whether norms and residuals are cut along the sequence.
        element_bytes: Bytes of one activation [B].
        gathered_bytes: Bytes of one element that is gathered for a product with a weight in the
            plan's number format; as ``element_bytes`` if None [B].
        keeps_gathered: Whether a column product keeps the sequence that it gathered, so that
            backward need not gather it again.
    """
    if tp == 1:
        return layer
    shares = {
        Region.WHOLE: 1.0,
        Region.SEQUENCE: 1.0 / tp if sequence_parallel else 1.0,
        Region.TENSOR: 1.0 / tp,
    }
    shares[Region.ROUTED] = shares[Region.SEQUENCE]
    shares[Region.GATHERED] = 1.0 if keeps_gathered else shares[Region.SEQUENCE]
    pieces = [
        new
        for piece in layer.pieces
        for new in _with_exchanges(
            piece, tp, sequence_parallel, element_bytes, gathered_bytes or element_bytes, shares
        )
    ]
    saved = tuple(_shard_saved(saved, shares) for saved in layer.saved)
    input_bytes = layer.input_bytes * shares[layer.input_region]
    working_share = shares[layer.working_region]
    return replace(
        layer,
        pieces=tuple(pieces),
        saved=saved,
        input_bytes=input_bytes,
        passing_bytes=tuple(size * working_share for size in layer.passing_bytes),
        working_bytes=tuple(size * working_share for size in layer.working_bytes),
    )


def _with_exchanges(
    piece: Piece,
    tp: int,
    sequence_parallel: bool,
    element_bytes: float,
    gathered_bytes: float,
    shares: dict[Region, float],
) -> Iterator[Piece]:
    gathered = gathered_bytes / element_bytes
    match piece:
        case Gemm(has_weight=True, split=Split.COLUMN):
            regathers = shares[Region.GATHERED] < 1.0
            share = 1.0 if piece.half_precision else gathered
            yield from _entry(piece, sequence_parallel, regathers, element_bytes, share)
            yield _shard(piece, tp, shares)
        case Gemm(has_weight=True, split=Split.ROW):
            yield _shard(piece, tp, shares)
            num_bytes = piece.m * piece.n * element_bytes
            yield _exit(piece.name, num_bytes, sequence_parallel, gathered)
        case Stream(name="embedding"):
            yield _shard(piece, tp, shares)
            yield _exit(piece.name, piece.forward_bytes / 2, sequence_parallel)
        case Exchange(axis=Axis.TENSOR):
            yield piece
        case _:
            yield _shard(piece, tp, shares)


def _entry(
    gemm: Gemm, sequence_parallel: bool, regathers: bool, element_bytes: float, gathered: float
) -> Iterator[Exchange]:
    """Before a column product: gather the sequence forward, reduce its gradient backward.

    Products apart share what is gathered, but each reduces its own gradient where nothing is.
    """
    num_bytes = gemm.m * gemm.k * element_bytes
    name = f"{gemm.name}.gather"
    if sequence_parallel:
        gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
        yield Exchange(
            name, Axis.TENSOR, gather, scatter, num_bytes,
            gathers_again=regathers, gather_bytes=num_bytes * gathered,
        )  # fmt: skip
        return
    for _ in range(gemm.products):
        yield Exchange(name, Axis.TENSOR, None, CollectiveKind.ALL_REDUCE, num_bytes)


def _exit(name: str, num_bytes: float, sequence_parallel: bool, gathered: float = 1.0) -> Exchange:
    """After a row product or the embedding: reduce forward, gather the gradient backward."""
    if sequence_parallel:
        gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
        return Exchange(
            f"{name}.reduce", Axis.TENSOR, scatter, gather, num_bytes,
            gather_bytes=num_bytes * gathered,
        )  # fmt: skip
    return Exchange(f"{name}.reduce", Axis.TENSOR, CollectiveKind.ALL_REDUCE, None, num_bytes)


def _shard(piece: Piece, tp: int, shares: dict[Region, float]) -> Piece:
    match piece:
        case Gemm():
            return _shard_gemm(piece, tp, shares)
        case GroupedGemm():
            return replace(piece, rows=piece.rows * shares[Region.ROUTED])
        case FlashAttention():
            return _shard_attention(piece, tp)
        case RingAttention():
            return replace(
                piece,
                first=_shard_attention(piece.first, tp),
                step=_shard_attention(piece.step, tp),
                kv_bytes=piece.kv_bytes / min(tp, piece.first.kv_heads),
            )
        case Stream():
            share = shares[piece.region]
            return replace(
                piece,
                forward_bytes=piece.forward_bytes * share,
                backward_bytes=piece.backward_bytes * share,
            )
        case Exchange():
            return replace(piece, num_bytes=piece.num_bytes / min(tp, piece.kv_heads or tp))
        case GridProduct():
            raise AssertionError(f"{piece.name} is divided already")


def _shard_gemm(gemm: Gemm, tp: int, shares: dict[Region, float]) -> Gemm:
    """A weight that every rank holds whole is multiplied with the rank's own tokens."""
    if not gemm.has_weight:
        return replace(gemm, batch=max(1, gemm.batch // tp))
    if gemm.split is Split.ROW:
        return replace(gemm, k=gemm.k // tp)
    if gemm.split is Split.COLUMN:
        kv_columns = gemm.kv_columns // min(tp, gemm.kv_heads)
        own_columns = (gemm.n - gemm.kv_columns) // tp
        return replace(gemm, n=own_columns + kv_columns, kv_columns=kv_columns)
    return replace(gemm, m=math.ceil(gemm.m * shares[Region.SEQUENCE]))


def _shard_attention(attention: FlashAttention, tp: int) -> FlashAttention:
    return replace(
        attention, heads=attention.heads // tp, kv_heads=max(1, attention.kv_heads // tp)
    )


def _shard_saved(saved: Saved, shares: dict[Region, float]) -> Saved:
    return replace(saved, num_bytes=saved.num_bytes * shares[saved.region])
