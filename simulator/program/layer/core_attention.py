"""How does a query look at keys: in one fused kernel or in several, and where ranks share them?

Where each of cp ranks holds 1/cp of every sequence (two chunks of it, so that causal work is
even), everything but core attention simply sees fewer tokens. In core attention

- ``ring``: keys and values travel round a ring while each step computes, and what a step gives
  is merged with what the steps before gave;
- ``all_to_all``: exchanges turn sequence shards into head shards and back;
- ``all_gather``: each rank gathers all keys and values, computes with the half of them (on
  average) that its queries may see, and gathers them again in backward;
- ``all_to_all+ring``: neighbours trade heads for the sequence that they hold together, whose
  keys and values travel round a ring over the others.

Of a sliding window, ranks that hold all keys of a head look at those in the window only. A ring
has no such kernels (Transformer Engine's ``attn_forward_func_with_cp`` refuses windows there).

Source: ring attention (arXiv 2310.01889) with the balanced order of striped attention
(arXiv 2311.09431); DeepSpeed-Ulysses (arXiv 2309.14509, section 3); Llama 3 (arXiv 2407.21783,
section 3.3.2) for all_gather; USP (arXiv 2405.07719) for the combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, wraps
from types import MappingProxyType
from typing import NamedTuple

from simulator.cost.collectives import CollectiveKind
from simulator.cost.rates import FULL_BYTES
from simulator.described.plan.fused_attention import fuses_heads
from simulator.described.plan.stack_options import MaskedModels
from simulator.program.layer.block import MASK_BYTES, Block
from simulator.program.layer.pieces import (
    Axis,
    ContextRule,
    ContextRules,
    ContextSplit,
    Exchange,
    FlashAttention,
    Gemm,
    MemoryBound,
    Piece,
    Region,
    RingAttention,
    Role,
    Split,
)

_SCORE_PASSES_FUSED = 2
"""A fused scale-mask-softmax kernel reads and writes each score once."""

_IN_PLACE_MASK_PASSES, _IN_PLACE_MASK_BACKWARD_PASSES, _IN_PLACE_MASK_KERNELS = 2, 13, 4
"""Reads and writes of masking full-precision scores in place, for which no framework has a fused
kernel: Megatron's asks for 16-bit input (``is_kernel_available`` of ``fused_softmax.py``) and else
calls ``masked_fill_`` on a view of the product. Autograd takes its gradient through copies of the
base: zeros and a copy into them (3), a copy and a clone (4), the masked clone (4), and a copy back
(2), as torch dispatches it. Kernels are one forward and seven backward, in the mean."""


_PRODUCT_PASSES = 3
"""Reads and writes of output times gradient in backward of PyTorch's softmax."""

_FILL_PASSES = 2
"""Backward of ``masked_fill_`` copies the gradient, and writes over a part of the copy."""


class Heads(NamedTuple):
    """The heads of core attention.

    Attributes:
        number, kv_number: Heads of queries, and of keys and values.
        dim, v_dim: Size of a query and key head, and of a value head.
    """

    number: int
    kv_number: int
    dim: int
    v_dim: int


def add_core_attention(block: Block, heads: Heads, window: int = 0) -> None:
    """Scores, softmax and weighted values: one fused kernel, or the separate ones."""
    if fuses_heads(block.plan, heads.number, heads.kv_number):
        _flash_attention(block, heads, window)
    else:
        _separate_attention(block, heads)


def _flash_attention(block: Block, heads: Heads, window: int) -> None:
    """One fused kernel; of a window only the keys that it sees are counted."""
    shape = block.shape
    seq_len = shape.seq_len // shape.documents
    seq_kv = min(seq_len, window or seq_len)
    piece = FlashAttention(
        name="attention",
        batch=shape.sequences * shape.documents,
        heads=heads.number,
        kv_heads=heads.kv_number,
        seq_q=seq_len,
        seq_kv=seq_kv,
        head_dim=heads.dim,
        v_head_dim=heads.v_dim,
        causal=block.model.causal and seq_kv == seq_len,
        window=window if window < seq_len * block.plan.cp else 0,
    )
    num_bytes = 4.0 * shape.tokens * heads.number
    _save_in_core(block, "attention_log_sum", num_bytes, Role.LOG_SUM)
    block.pieces.append(piece)
    block.repeat("core_attn", {piece.name: 1.0})


def _separate_attention(block: Block, heads: Heads) -> None:
    batch, length = block.shape.sequences * heads.number, block.shape.seq_len
    product = partial(Gemm, batch=batch, has_weight=False, split=Split.COLUMN)
    block.pieces.append(product("scores", length, length, heads.dim))
    _softmax(block, batch, length)
    block.pieces.append(product("weighted_values", length, heads.v_dim, length))
    block.repeat("core_attn", {"scores": 1.0, "weighted_values": 1.0})
    _layout(block, heads)


def _layout(block: Block, heads: Heads) -> None:
    """What attention in separate kernels copies around its products.

    Forward puts the heads' outputs beside each other again; backward joins the gradients of
    queries, keys and values, and scales those of queries and keys where the product of the
    scores does that forward. ``torch.matmul`` asks for sequences and heads in one dimension, and
    copies queries, keys and values, and the gradient of the outputs, where there are several
    sequences.

    Source: ``CoreAttention`` of Megatron-LM, and PyTorch's derivative of ``baddbmm``; ``matmul`` of
    PyTorch's ``LinearAlgebra.cpp``, as it is dispatched (tests).
    """
    copied = 2 * block.shape.tokens * heads.number * block.shape.element_bytes
    forward, backward = copied * heads.v_dim, copied * (2 * heads.dim + heads.v_dim)
    if not _scales_in_product(block) and block.shape.sequences > 1:
        # Their launches, from inside a product, are no work of Python's.
        forward = backward = forward + backward
    block.pieces.append(
        MemoryBound("attention_layout", forward, backward, Region.TENSOR, strided=True)
    )
    block.repeat("core_attn", {"attention_layout": 1.0})
    if _scales_in_product(block):
        block.memory_bound("attention_scale", 0.0, 2 * copied * heads.dim, Region.TENSOR, 2)


def _scales_in_product(block: Block) -> bool:
    """Whether scores are scaled by their product, and mask and softmax may be one kernel."""
    return block.plan.attention_kernel == "fused-softmax" or block.stack.fused_softmax


def _has_softmax_kernel(block: Block, batch: int, length: int) -> bool:
    """Whether mask and softmax are one kernel.

    A rank's sequences times heads, and the tokens of a sequence, decide that in 16 bits; scores in
    full precision have no such kernel anyway, and are masked in place.

    Args:
        block: Of the layer.
        batch: Sequences times heads, of all tensor-parallel ranks.
        length: Tokens of a sequence.

    Source: ``is_kernel_available`` of Megatron-LM's ``fused_softmax.py``.
    """
    longest, multiple = block.stack.fused_softmax_longest, block.stack.fused_softmax_batch
    fits = batch // block.tensor_ranks % multiple == 0 and length <= (longest or length)
    return _scales_in_product(block) and (fits or block.shape.element_bytes >= FULL_BYTES)


def _softmax(block: Block, batch: int, length: int) -> None:
    size, scores = block.shape.element_bytes, float(batch) * length * length
    has_kernel = _has_softmax_kernel(block, batch, length)
    widens = not has_kernel and _asks_for_wide_scores(block)
    if has_kernel and size >= FULL_BYTES:
        forward = _IN_PLACE_MASK_PASSES * scores * size
        backward = _IN_PLACE_MASK_BACKWARD_PASSES * scores * size
        _over_scores(block, "attention_masking", forward, backward, _IN_PLACE_MASK_KERNELS)
    if not has_kernel and _is_of(block.stack.floors_scores, block):
        _floor(block, scores)
    if block.stack.keeps_scores and _asks_for_wide_scores(block):
        _save_in_core(block, "scores", scores * size)
    _save_in_core(block, "softmax", scores * (FULL_BYTES if widens else size))
    if has_kernel:
        forward = _SCORE_PASSES_FUSED * scores * size
        _over_scores(block, "softmax", forward, 1.5 * forward)
    else:
        _eager_softmax(block, scores, widens=widens)
    if block.stack.dropout and block.model.attention_dropout:
        dropped = FULL_BYTES if widens and block.plan.autocasts else size
        traffic = scores * (2 * dropped + MASK_BYTES)
        _save_in_core(block, "attention_mask", scores * MASK_BYTES)
        _over_scores(block, "attention_dropout", traffic, traffic)
        _save_in_core(block, "attention_dropped", scores * size)
    elif widens:
        _save_in_core(block, "softmax_cast", scores * size)


def _eager_softmax(block: Block, scores: float, *, widens: bool) -> None:
    """A kernel each to scale, to mask, and for the softmax, and casts around that if it ``widens``.

    A mask that selects does so backward, too; one that is added has no pass of its own there.
    Under autocast it is fp32, and so is what it is added to. CUDA's softmax reads fp16 itself, and
    gives it back, where autocast does not cast before. Softmax reads its output backward. Where
    code has a kernel that does not take these scores, it casts them before all else; the number
    of the layer, which they are multiplied with, is its scale.

    Source: ``eager_attention_forward`` of transformers (models/gpt2, bert, llama); derivatives.yaml
    and ``softmax`` of ``SoftMax.cpp`` of PyTorch, as it dispatches them (tests); ``SoftMax.cu``,
    whose backward multiplies output and gradient before it sums; ``forward_torch_softmax`` of
    Megatron-LM's ``fused_softmax.py``, with ``apply_query_key_layer_scaling``.
    """
    size, selects = block.shape.element_bytes, _selects_scores(block)
    casts_first = widens and _scales_in_product(block)
    one, cast = 2 * (FULL_BYTES if casts_first else size), size + FULL_BYTES
    is_promoted = widens and block.plan.autocasts and not selects and not casts_first
    is_fp16 = block.plan.precision == "fp16" and not block.plan.autocasts
    reads_half = widens and is_fp16 and not casts_first
    casts_up = widens and not (is_promoted or reads_half)
    width = FULL_BYTES if widens else size
    read = size if reads_half else width
    forward = one + cast * casts_up + read + width
    backward = _PRODUCT_PASSES * width + 2 * width + read
    backward += cast * (widens and not reads_half) + one
    if widens:
        forward, backward = forward + cast, backward + cast
    mask = MemoryBound(
        "score_mask", scores * (cast if is_promoted else one),
        scores * one * selects * (_FILL_PASSES if casts_first else 1),
        Region.TENSOR, strided=True, widens=is_promoted,
    )  # fmt: skip
    kernels = 3 if widens else 2  # with the mask's, those that host_work_per_launch counts
    ratio = FULL_BYTES / size
    softmax = MemoryBound(
        "softmax", scores * forward, scores * backward, Region.TENSOR, kernels,
        gradient_widths=(ratio, 1.0 if reads_half else ratio) if widens else (1.0, 1.0),
        gradient_scratch=ratio if widens else 1.0,
    )  # fmt: skip
    block.pieces += [mask, softmax]
    block.repeat("core_attn", {"score_mask": 1.0, "softmax": 1.0})


def _floor(block: Block, scores: float) -> None:
    """The larger of masked scores and a number, a kernel of its own that keeps those scores.

    Backward compares twice, halves the gradient where both are alike, selects, and fills in place.

    Source: ``maximum`` of PyTorch's derivatives.yaml, as it is dispatched (tests).
    """
    is_promoted = block.plan.autocasts and not _selects_scores(block)
    size = FULL_BYTES if is_promoted else block.shape.element_bytes
    _save_in_core(block, "floored_scores", scores * size)
    compared, halved = 2 * (size + MASK_BYTES), 2 * size
    selected, filled = 3 * size + MASK_BYTES, 2 * size + MASK_BYTES
    floor = MemoryBound(
        "score_floor", scores * 2 * size, scores * (compared + halved + selected + filled),
        Region.TENSOR, gradient_scratch=1.0,
    )  # fmt: skip
    block.pieces.append(floor)
    block.repeat("core_attn", {floor.name: 1.0})


def _selects_scores(block: Block) -> bool:
    """Whether a mask selects among scores, and is not added to them."""
    return block.model.causal and not _is_of(block.stack.adds_causal_mask, block)


def _is_of(models: MaskedModels, block: Block) -> bool:
    """Whether those models are that of the block."""
    return block.model.positions == "rotary" if models == "rotary" else models


def _asks_for_wide_scores(block: Block) -> bool:
    """Whether the softmax of 16-bit scores is written as one of fp32 numbers."""
    is_half = block.shape.element_bytes < FULL_BYTES
    return is_half and (block.model.widens_scores or block.plan.autocasts)


def _over_scores(
    block: Block, name: str, forward: float, backward: float, kernels: int = 1
) -> None:
    block.memory_bound(name, forward, backward, Region.TENSOR, kernels)
    block.repeat("core_attn", {name: 1.0})


def _save_in_core(block: Block, name: str, num_bytes: float, role: Role = Role.OTHER) -> None:
    block.save(name, num_bytes, Region.TENSOR, role=role)
    block.repeat("core_attn", {}, dropped=(name,))


def _of_attention(
    rule: Callable[[FlashAttention, ContextSplit], Iterator[Piece]],
) -> ContextRule:
    """The rule for fused kernels; whatever else the layer runs stays as it is."""

    @wraps(rule)
    def of_any(piece: Piece, split: ContextSplit) -> Iterator[Piece]:
        if isinstance(piece, FlashAttention):
            yield from rule(piece, split)
        else:
            yield piece

    return of_any


@_of_attention
def _over_ring(attention: FlashAttention, split: ContextSplit) -> Iterator[Piece]:
    yield _ring(attention, split.cp, split)


@_of_attention
def _over_heads(attention: FlashAttention, split: ContextSplit) -> Iterator[Piece]:
    yield from _head_shards(attention, split.cp, Axis.CONTEXT, split.element_bytes)


@_of_attention
def _over_heads_and_ring(attention: FlashAttention, split: ContextSplit) -> Iterator[Piece]:
    traders, element_bytes = split.heads_ranks, split.element_bytes
    for part in _head_shards(attention, traders, Axis.CONTEXT_HEADS, element_bytes):
        if isinstance(part, FlashAttention) and traders < split.cp:
            yield _ring(part, split.cp // traders, split)
        else:
            yield part


def _ring(attention: FlashAttention, steps: int, split: ContextSplit) -> RingAttention:
    """Own keys first; then each step works on half of what travels, if it is causal."""
    head_dims = attention.head_dim + attention.v_head_dim
    tokens = attention.batch * attention.seq_kv
    seq_kv = max(1, attention.seq_kv // 2) if attention.causal else attention.seq_kv
    return RingAttention(
        attention.name,
        first=attention,
        step=replace(attention, seq_kv=seq_kv, causal=False),
        steps=steps,
        kv_bytes=tokens * attention.kv_heads * head_dims * split.element_bytes,
        sum_ratio=split.sum_ratio,
    )


@_of_attention
def _over_gathered_keys(attention: FlashAttention, split: ContextSplit) -> Iterator[Piece]:
    """All keys and values on every rank; causal queries see half of them, or their window."""
    head_dims = attention.head_dim + attention.v_head_dim
    tokens = attention.batch * attention.seq_q * split.cp
    num_bytes = tokens * attention.kv_heads * head_dims * split.element_bytes
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    yield Exchange(
        "keys_and_values", Axis.CONTEXT, gather, scatter, num_bytes,
        gathers_again=True, kv_heads=attention.kv_heads,
    )  # fmt: skip
    seen = _of_whole_sequence(attention, split.cp)
    seq_kv = max(1, seen.seq_kv // 2) if seen.causal else seen.seq_kv
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
        _of_whole_sequence(attention, ranks),
        heads=max(1, attention.heads // ranks),
        kv_heads=max(1, attention.kv_heads // ranks),
    )
    outputs = tokens * attention.heads * attention.v_head_dim
    yield Exchange("heads_to_sequence", axis, kind, kind, outputs * element_bytes)


def _of_whole_sequence(attention: FlashAttention, ranks: int) -> FlashAttention:
    """The kernel on what several ranks hold: a window counts once it is shorter than that."""
    seq_len = attention.seq_q * ranks
    if 0 < attention.window < seq_len:
        return replace(attention, seq_q=seq_len, seq_kv=attention.window, causal=False)
    return replace(attention, seq_q=seq_len, seq_kv=seq_len)


ATTENTION_CONTEXT: ContextRules = MappingProxyType(
    {
        "ring": _over_ring,
        "all_to_all": _over_heads,
        "all_gather": _over_gathered_keys,
        "all_to_all+ring": _over_heads_and_ring,
    }
)
"""What core attention exchanges, by method."""
