"""What does context parallelism change in a layer?

Each of cp ranks holds 1/cp of every sequence (two chunks of it, so that causal work is
even). Everything but attention simply sees fewer tokens. In attention either keys and
values travel round a ring while each step computes, or an all_to_all turns sequence
shards into head shards and back.

Source: ring attention (arXiv 2310.01889) with the balanced order of striped attention
(arXiv 2311.09431); DeepSpeed-Ulysses (arXiv 2309.14509, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.errors import UnsupportedError
from simulator.program.layer import Axis, Exchange, FlashAttention, Layer, Piece, RingAttention

_FP32_BYTES = 4.0


def context_parallel(
    layer: Layer,
    cp: int,
    *,
    method: str,
    element_bytes: float,
    fp32_gradients: bool = False,
) -> Layer:
    """The layer of one of ``cp`` ranks; its pieces already count 1/cp of the tokens.

    Args:
        layer: A layer built for the rank's own part of the sequence.
        cp: Ranks that share a sequence.
        method: ``ring`` or ``all_to_all``.
        element_bytes: Bytes of one activation [B].
        fp32_gradients: Whether gradients travel round the ring in fp32.
    """
    if cp == 1:
        return layer
    gradient_ratio = _FP32_BYTES / element_bytes if fp32_gradients else 1.0
    pieces = tuple(
        replace(new, gradient_ratio=gradient_ratio) if isinstance(new, RingAttention) else new
        for piece in layer.pieces
        for new in _exchanged(piece, cp, method=method, element_bytes=element_bytes)
    )
    core = layer.core | {piece.name for piece in pieces if isinstance(piece, RingAttention)}
    return replace(layer, pieces=pieces, core=core)


def _exchanged(piece: Piece, cp: int, *, method: str, element_bytes: float) -> Iterator[Piece]:
    if piece.name == "scores":
        raise UnsupportedError.single(
            "plan.attention",
            "context parallelism needs one fused attention kernel",
            hint="take plan.attention: flash, or plan.cp: 1",
        )
    if isinstance(piece, FlashAttention) and piece.window:
        raise UnsupportedError.single(
            "plan.cp",
            f"context parallelism is not simulated for attention windows ({piece.window} tokens)",
            cp,
            "take plan.cp: 1",
        )
    if not isinstance(piece, FlashAttention):
        yield piece
    elif method == "ring":
        yield _ring(piece, cp, element_bytes)
    else:
        yield from _head_shards(piece, cp, element_bytes)


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


def _head_shards(attention: FlashAttention, cp: int, element_bytes: float) -> Iterator[Piece]:
    """All heads of part of the sequence become part of the heads of all of it, and back."""
    tokens = attention.batch * attention.seq_q
    sides = attention.heads + attention.kv_heads
    kind = CollectiveKind.ALL_TO_ALL
    inputs = tokens * (sides * attention.head_dim + attention.kv_heads * attention.v_head_dim)
    yield Exchange("sequence_to_heads", Axis.CONTEXT, kind, kind, inputs * element_bytes)
    yield replace(
        attention,
        heads=max(1, attention.heads // cp),
        kv_heads=max(1, attention.kv_heads // cp),
        seq_q=attention.seq_q * cp,
        seq_kv=attention.seq_kv * cp,
    )
    outputs = tokens * attention.heads * attention.v_head_dim
    yield Exchange("heads_to_sequence", Axis.CONTEXT, kind, kind, outputs * element_bytes)
