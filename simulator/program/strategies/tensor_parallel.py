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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.cost.collectives import CollectiveKind
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    MemoryBound,
    Piece,
    Region,
    RingAttention,
    Role,
    Saved,
    Split,
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
    sharding = _Sharding(tp, sequence_parallel, element_bytes, gathered_bytes, keeps_gathered)
    working_share = sharding.shares[layer.working_region]
    return replace(
        layer,
        pieces=tuple(new for piece in layer.pieces for new in sharding.pieces(piece)),
        saved=tuple(sharding.saved(saved) for saved in layer.saved),
        input_bytes=layer.input_bytes * sharding.shares[layer.input_region],
        passing_bytes=tuple(size * working_share for size in layer.passing_bytes),
        freed_bytes=tuple(size * working_share for size in layer.freed_bytes),
        working_bytes=tuple(size * working_share for size in layer.working_bytes),
    )


@dataclass(frozen=True)
class _Sharding:
    """How one layer is divided; attributes as the arguments of :func:`tensor_parallel`."""

    tp: int
    sequence_parallel: bool
    element_bytes: float
    gathered_bytes: float | None
    keeps_gathered: bool

    @cached_property
    def shares(self) -> Mapping[Region, float]:
        sequence = 1.0 / self.tp if self.sequence_parallel else 1.0
        return {
            Region.WHOLE: 1.0,
            Region.SEQUENCE: sequence,
            Region.GATHERED: 1.0 if self.keeps_gathered else sequence,
            Region.TENSOR: 1.0 / self.tp,
            Region.ROUTED: sequence,
        }

    @property
    def _gathered_share(self) -> float:
        """Size of what is gathered for a product, over that of activations."""
        return (self.gathered_bytes or self.element_bytes) / self.element_bytes

    def pieces(self, piece: Piece) -> Iterator[Piece]:
        match piece:
            case Gemm(has_weight=True, split=Split.COLUMN):
                yield from self._entry(piece)
                yield self._shard_gemm(piece)
            case Gemm(has_weight=True, split=Split.ROW):
                yield self._shard_gemm(piece)
                num_bytes = piece.m * piece.n * self.element_bytes
                yield self._exit(piece, num_bytes, self._gathered_share)
            case MemoryBound(role=Role.EMBEDDING):
                yield self._shard(piece)
                yield self._exit(piece, piece.forward_bytes / 2)
            case Exchange(axis=Axis.TENSOR):
                yield piece
            case _:
                yield self._shard(piece)

    def saved(self, saved: Saved) -> Saved:
        return replace(saved, num_bytes=saved.num_bytes * self.shares[saved.region])

    def _entry(self, gemm: Gemm) -> Iterator[Exchange]:
        """Before a column product: gather the sequence forward, reduce its gradient backward.

        Separate products share what is gathered; without that, each reduces its own gradient.
        """
        num_bytes = gemm.m * gemm.k * self.element_bytes
        name = f"{gemm.name}.gather"
        if not self.sequence_parallel:
            for _ in range(gemm.products):
                kind = CollectiveKind.ALL_REDUCE
                yield Exchange(name, Axis.TENSOR, None, kind, num_bytes, serves=gemm.name)
            return
        share = 1.0 if gemm.half_precision else self._gathered_share
        yield Exchange(
            name,
            Axis.TENSOR,
            CollectiveKind.ALL_GATHER,
            CollectiveKind.REDUCE_SCATTER,
            num_bytes,
            gathers_again=self.shares[Region.GATHERED] < 1.0,
            gather_bytes=num_bytes * share,
            serves=gemm.name,
        )

    def _exit(self, piece: Piece, num_bytes: float, gathered: float = 1.0) -> Exchange:
        """After a row product or the embedding: reduce forward, gather the gradient backward."""
        name, kind = f"{piece.name}.reduce", CollectiveKind.ALL_REDUCE
        if not self.sequence_parallel:
            return Exchange(name, Axis.TENSOR, kind, None, num_bytes, serves=piece.name)
        gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
        gather_bytes = num_bytes * gathered
        return Exchange(
            name, Axis.TENSOR, scatter, gather, num_bytes,
            gather_bytes=gather_bytes, serves=piece.name,
        )  # fmt: skip

    def _shard(self, piece: Piece) -> Piece:
        match piece:
            case Gemm():
                return self._shard_gemm(piece)
            case GroupedGemm():
                return replace(piece, rows=piece.rows * self.shares[Region.ROUTED])
            case FlashAttention():
                return self._shard_attention(piece)
            case RingAttention():
                return replace(
                    piece,
                    first=self._shard_attention(piece.first),
                    step=self._shard_attention(piece.step),
                    kv_bytes=piece.kv_bytes / min(self.tp, piece.first.kv_heads),
                )
            case MemoryBound():
                return piece.scaled(self.shares[piece.region])
            case Exchange():
                ways = min(self.tp, piece.kv_heads or self.tp)
                return replace(piece, num_bytes=piece.num_bytes / ways)
            case GridProduct():
                raise AssertionError(f"{piece.name} is divided already")

    def _shard_gemm(self, gemm: Gemm) -> Gemm:
        """A weight that every rank holds whole is multiplied with the rank's own tokens."""
        if not gemm.has_weight:
            return replace(gemm, batch=max(1, gemm.batch // self.tp))
        if gemm.split is Split.ROW:
            return replace(gemm, k=gemm.k // self.tp)
        if gemm.split is Split.COLUMN:
            kv_columns = gemm.kv_columns // min(self.tp, gemm.kv_heads)
            own_columns = (gemm.n - gemm.kv_columns) // self.tp
            return replace(gemm, n=own_columns + kv_columns, kv_columns=kv_columns)
        return replace(gemm, m=math.ceil(gemm.m * self.shares[Region.SEQUENCE]))

    def _shard_attention(self, attention: FlashAttention) -> FlashAttention:
        heads, kv_heads = attention.heads // self.tp, max(1, attention.kv_heads // self.tp)
        return replace(attention, heads=heads, kv_heads=kv_heads)
