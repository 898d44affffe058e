"""What does context parallelism change in a layer?

Each of cp ranks holds 1/cp of every sequence (two chunks of it, so that causal work is
even). Everything but attention simply sees fewer tokens. In attention

- ``ring``: keys and values travel round a ring while each step computes, and what a step gives
  is merged with what the steps before gave;
- ``all_to_all``: exchanges turn sequence shards into head shards and back;
- ``all_gather``: each rank gathers all keys and values, computes with the half of them (on
  average) that its queries may see, and gathers them again in backward;
- ``all_to_all+ring``: neighbours trade heads for the sequence that they hold together, whose
  keys and values travel round a ring over the others.

Source: ring attention (arXiv 2310.01889) with the balanced order of striped attention
(arXiv 2311.09431); DeepSpeed-Ulysses (arXiv 2309.14509, section 3); Llama 3 (arXiv 2407.21783,
section 3.3.2) for all_gather; USP (arXiv 2405.07719) for the combination.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    FlashAttention,
    Layer,
    Piece,
    RingAttention,
)

_FP32_BYTES = 4.0


def context_parallel(
    layer: Layer,
    cp: int,
    *,
    method: str,
    element_bytes: float,
    fp32_sums: bool = False,
    heads_ranks: int = 1,
) -> Layer:
    """The layer of one of ``cp`` ranks; its pieces already count 1/cp of the tokens.

    Args:
        layer: A layer built for the rank's own part of the sequence.
        cp: Ranks that share a sequence.
        method: One of those above.
        element_bytes: Bytes of one activation [B].
        fp32_sums: Whether a ring adds up in fp32, in which gradients then travel.
        heads_ranks: Neighbours that trade heads in ``all_to_all+ring``.
    """
    if cp == 1:
        return layer
    sum_ratio = _FP32_BYTES / element_bytes if fp32_sums else 1.0
    pieces = tuple(
        replace(new, sum_ratio=sum_ratio) if isinstance(new, RingAttention) else new
        for piece in layer.pieces
        for new in _exchanged(piece, cp, heads_ranks, method=method, element_bytes=element_bytes)
    )
    core = layer.core | {piece.name for piece in pieces if isinstance(piece, RingAttention)}
    return replace(layer, pieces=pieces, core=core)


def _exchanged(
    piece: Piece, cp: int, heads_ranks: int, *, method: str, element_bytes: float
) -> Iterator[Piece]:
    if not isinstance(piece, FlashAttention):
        yield piece
    elif method == "ring":
        yield _ring(piece, cp, element_bytes)
    elif method == "all_gather":
        yield from _gathered(piece, cp, element_bytes)
    elif method == "all_to_all":
        yield from _head_shards(piece, cp, Axis.CONTEXT, element_bytes)
    else:
        for part in _head_shards(piece, heads_ranks, Axis.CONTEXT_HEADS, element_bytes):
            if isinstance(part, FlashAttention) and heads_ranks < cp:
                yield _ring(part, cp // heads_ranks, element_bytes)
            else:
                yield part


def _ring(attention: FlashAttention, cp: int, element_bytes: float) -> RingAttention:
    """Own keys first; then each step works on half of what travels, if it is causal."""
    head_dims = attention.head_dim + attention.v_head_dim
    tokens = attention.batch * attention.seq_kv
    seq_kv = max(1, attention.seq_kv // 2) if attention.causal else attention.seq_kv
    return RingAttention(
        attention.name,
        first=attention,
        step=replace(attention, seq_kv=seq_kv, causal=False),
        steps=cp,
        kv_bytes=tokens * attention.kv_heads * head_dims * element_bytes,
    )


def _gathered(attention: FlashAttention, cp: int, element_bytes: float) -> Iterator[Piece]:
    """All keys and values on every rank; causal queries see half of them on average."""
    head_dims = attention.head_dim + attention.v_head_dim
    tokens = attention.batch * attention.seq_kv * cp
    num_bytes = tokens * attention.kv_heads * head_dims * element_bytes
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    yield Exchange(
        "keys_and_values", Axis.CONTEXT, gather, scatter, num_bytes,
        gathers_again=True, kv_heads=attention.kv_heads,
    )  # fmt: skip
    seen = attention.seq_kv * cp
    seq_kv = max(1, seen // 2) if attention.causal else seen
    yield replace(attention, seq_kv=seq_kv, causal=False)


def _head_shards(
    attention: FlashAttention, ranks: int, axis: Axis, element_bytes: float
) -> Iterator[Piece]:
    """All heads of part of the sequence become part of the heads of all of it, and back."""
    tokens = attention.batch * attention.seq_q
    sides = attention.heads + attention.kv_heads
    kind = CollectiveKind.ALL_TO_ALL
    inputs = tokens * (sides * attention.head_dim + attention.kv_heads * attention.v_head_dim)
    yield Exchange("sequence_to_heads", axis, kind, kind, inputs * element_bytes)
    yield replace(
        attention,
        heads=max(1, attention.heads // ranks),
        kv_heads=max(1, attention.kv_heads // ranks),
        seq_q=attention.seq_q * ranks,
        seq_kv=attention.seq_kv * ranks,
    )
    outputs = tokens * attention.heads * attention.v_head_dim
    yield Exchange("heads_to_sequence", axis, kind, kind, outputs * element_bytes)
