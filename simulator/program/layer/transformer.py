"""Which pieces does a transformer layer consist of?

Attention here, of the usual kind or with latents, fused or in separate kernels; what it shares
with other layers is in :mod:`simulator.program.layer.block`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from simulator.cost.parameters import LayerKind
from simulator.described.model import LatentAttention, Model
from simulator.described.plan.plan import Plan
from simulator.program.layer.block import MASK_BYTES, NORMS_BEFORE, Block, Shape, norm_traffic
from simulator.program.layer.pieces import FlashAttention, Gemm, Layer, MemoryBound, Region, Split

_FULL_BYTES = 4.0
"""An fp32 number."""

_SCORE_PASSES_FUSED = 2
"""A fused scale-mask-softmax kernel reads and writes each score once."""

_SCORE_PASSES_UNFUSED = 8
"""Assumption: separate scale, mask, cast to fp32, softmax (fp32) and cast back: reads plus writes,
counted in 16-bit scores."""

_IN_PLACE_MASK_PASSES, _IN_PLACE_MASK_BACKWARD_PASSES, _IN_PLACE_MASK_KERNELS = 2, 13, 4
"""Reads and writes of masking full-precision scores in place, for which no framework has a fused
kernel: Megatron's asks for 16-bit input (``is_kernel_available`` of ``fused_softmax.py``) and else
calls ``masked_fill_`` on a view of the product. Autograd takes its gradient through copies of the
base: zeros and a copy into them (3), a copy and a clone (4), the masked clone (4), and a copy back
(2), as torch dispatches it. Kernels are one forward and seven backward, in the mean."""

_EAGER_ROTARY_PASSES, _EAGER_ROTARY_KERNELS = 5.0, 8
"""A rotary embedding written out: cast up, multiply and cast down move 20 bytes per element
where a fused kernel moves 4; queries and keys apart."""


_EAGER_LATENT_PASSES, _EAGER_LATENT_BACKWARD_PASSES, _EAGER_LATENT_KERNELS = 14, 21, 17
"""Reads and writes of what Megatron-Core rotates of queries, without fusion. Forward: even and odd
columns are put apart (2), multiplied by the cosine (2), negated by half (1), swapped (2),
multiplied by the sine (2), added (3), and joined with columns that are not rotated, of which
there are none (2). Backward: the products (4), the swap (3), the sum of both branches (3), and
columns put back from three slices, each into zeros, and added (11). Kernels are those of queries,
of keys, of joining both, and of the values' copy (``_apply_rotary_pos_emb_bshd`` of
``rope_utils.py``)."""


def transformer_layer(model: Model, kind: LayerKind, plan: Plan, shape: Shape) -> Layer:
    """The pieces and saved activations of one dense layer."""
    block = attention_block(model, kind, plan, shape)
    block.mlp(model.ffn_hidden, shares_input=model.norms_per_layer == 1)
    block.close()
    return block.layer()


def attention_block(model: Model, kind: LayerKind, plan: Plan, shape: Shape) -> Block:
    """A layer up to where its MLP starts: attention and what stands between the two.

    Where attention and MLP run in parallel they share the residual at the end, and the
    norm if the model has one per layer. Their reductions over tensor-parallel ranks, which
    some frameworks merge, stay two.
    """
    block = Block(model, plan, shape)
    block.norm("attention_norm")
    if model.latent_attention:
        _latent_attention(block, model.latent_attention)
    else:
        _attention(block, kind)
    if model.norms_per_layer > NORMS_BEFORE:
        block.norm("attention_post_norm")
    if not model.parallel_block:
        block.residual("attention_residual")
    if model.norms_per_layer > 1:
        block.norm("mlp_norm")
    return block


class _Heads(NamedTuple):
    """The heads of core attention.

    Attributes:
        number, kv_number: Heads of queries, and of keys and values.
        dim, v_dim: Size of a query and key head, and of a value head.
    """

    number: int
    kv_number: int
    dim: int
    v_dim: int


def _attention(block: Block, kind: LayerKind) -> None:
    """Projections, rotary embedding, core attention and output projection."""
    model, shape = block.model, block.shape
    tokens, size = shape.tokens, shape.element_bytes
    query, key_value = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
    block.save("qkv_input", tokens * model.hidden * shape.kept_bytes, Region.GATHERED)
    block.linear(
        "qkv", query + key_value, model.hidden, Split.COLUMN,
        kv_columns=key_value, kv_heads=model.kv_heads, after_kernel=True, products=3,
    )  # fmt: skip
    if model.qkv_bias:
        block.bias("qkv", tokens * (query + key_value), Region.TENSOR, added=True)
    if model.qk_norm != "none":
        _query_key_norm(block)
    if model.positions == "rotary":
        rotated = tokens * (query + key_value // 2) * size
        _rotary(block, rotated)
    repeats = model.heads // model.kv_heads if block.stack.repeats_kv_heads else 1
    block.save("query", tokens * query * size, Region.TENSOR)
    for name in ("key", "value"):
        block.save(name, repeats * tokens * key_value // 2 * size, Region.TENSOR)
    heads = _Heads(model.heads, repeats * model.kv_heads, model.head_dim, model.head_dim)
    _core_attention(block, heads, kind.window)
    block.save("attention_context", tokens * query * size, Region.TENSOR)
    block.linear("attention_output", model.hidden, query, Split.ROW)
    if model.attention_output_bias:
        block.bias("attention_output", tokens * model.hidden, Region.SEQUENCE)


def _latent_attention(block: Block, latent: LatentAttention) -> None:
    """Low-rank query, key and value projections around attention with wide keys."""
    model, shape = block.model, block.shape
    tokens, size = shape.tokens, shape.element_bytes
    query = model.heads * latent.qk_head_dim
    block.save("latent_input", tokens * model.hidden * shape.kept_bytes, Region.SEQUENCE)
    if latent.q_lora_rank:
        block.linear("query_down", latent.q_lora_rank, model.hidden, Split.NONE)
        _latent_norm(block, "query_latent_norm", latent.q_lora_rank)
        block.save("query_latent", 2 * tokens * latent.q_lora_rank * size, Region.SEQUENCE)
    block.linear("query_up", query, latent.q_lora_rank or model.hidden, Split.COLUMN)
    down = latent.kv_lora_rank + latent.qk_rope_head_dim
    block.linear("key_value_down", down, model.hidden, Split.NONE)
    _latent_norm(block, "key_value_latent_norm", latent.kv_lora_rank)
    block.save("key_value_latent", 2 * tokens * down * size, Region.SEQUENCE)
    up = model.heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    block.linear("key_value_up", up, latent.kv_lora_rank, Split.COLUMN)
    value = model.heads * latent.v_head_dim
    _latent_rotary(block, latent)
    for name, width in (("query", query), ("key", query), ("value", value)):
        block.save(name, tokens * width * size, Region.TENSOR)
    heads = _Heads(model.heads, model.heads, latent.qk_head_dim, latent.v_head_dim)
    _core_attention(block, heads)
    block.save("attention_context", tokens * value * size, Region.TENSOR)
    block.linear("attention_output", model.hidden, value, Split.ROW)


def _latent_norm(block: Block, name: str, width: int) -> None:
    """A norm over a latent; its input and output are kept with the latent."""
    row = block.shape.tokens * width * block.shape.element_bytes
    forward, backward, kernels = norm_traffic(row, fused=block.stack.fused_rmsnorm)
    block.memory_bound(name, forward, backward, Region.SEQUENCE, kernels)


def _latent_rotary(block: Block, latent: LatentAttention) -> None:
    """Rotate part of the queries and keys, and put queries, keys and values together.

    Fused kernels read and write queries and keys once. Eager ones rotate that part of the
    queries, join it with the others, spread that of the one rotated key over all heads, and
    copy the values, as attention wants them contiguous; backward takes it all apart again.

    Source: Megatron-Core, ``qkv_up_proj_and_rope_apply`` of ``multi_latent_attention.py``.
    """
    nope, rope, value = latent.qk_nope_head_dim, latent.qk_rope_head_dim, latent.v_head_dim
    query = latent.qk_head_dim
    columns = block.shape.tokens * block.model.heads * block.shape.element_bytes
    if block.stack.fused_rotary and block.stack.fused_latent_rotary:
        _rotary(block, 2 * query * columns)
        return
    forward = _EAGER_LATENT_PASSES * rope + 2 * query + (nope + query) + 2 * value
    backward = _EAGER_LATENT_BACKWARD_PASSES * rope + 2 * query + rope + 2 * (nope + value)
    block.memory_bound(
        "rotary", forward * columns, backward * columns, Region.TENSOR, _EAGER_LATENT_KERNELS
    )


def _core_attention(block: Block, heads: _Heads, window: int = 0) -> None:
    """Scores, softmax and weighted values: one fused kernel, or the separate ones."""
    if block.plan.attention_kernel == "flash":
        _flash_attention(block, heads, window)
    else:
        _separate_attention(block, heads)


def _flash_attention(block: Block, heads: _Heads, window: int) -> None:
    """One fused kernel; of a window only the keys that it sees are counted."""
    shape = block.shape
    seq_kv = min(shape.seq_len, window or shape.seq_len)
    piece = FlashAttention(
        name="attention",
        batch=shape.sequences,
        heads=heads.number,
        kv_heads=heads.kv_number,
        seq_q=shape.seq_len,
        seq_kv=seq_kv,
        head_dim=heads.dim,
        v_head_dim=heads.v_dim,
        causal=block.model.causal and seq_kv == shape.seq_len,
        window=window if window < shape.seq_len * block.plan.cp else 0,
    )
    block.pieces.append(piece)
    block.core.add(piece.name)
    block.save("attention_log_sum", 4.0 * shape.tokens * heads.number, Region.TENSOR, core=True)


def _separate_attention(block: Block, heads: _Heads) -> None:
    """A product for the scores, mask and softmax over them, and a product with the values."""
    batch, length = block.shape.sequences * heads.number, block.shape.seq_len
    product = partial(Gemm, batch=batch, has_weight=False, split=Split.COLUMN)
    block.pieces.append(product("scores", length, length, heads.dim))
    _softmax(block, float(batch) * length * length)
    block.pieces.append(product("weighted_values", length, heads.v_dim, length))
    block.core |= {"scores", "weighted_values"}
    _layout(block, heads)


def _layout(block: Block, heads: _Heads) -> None:
    """What attention in separate kernels copies around its products.

    Forward puts the heads' outputs beside each other again; backward joins the gradients of
    queries, keys and values, and scales those of queries and keys where the product of the
    scores does that forward.

    Source: ``CoreAttention`` of Megatron-LM, and PyTorch's derivative of ``baddbmm``.
    """
    copied = 2 * block.shape.tokens * heads.number * block.shape.element_bytes
    forward, backward = copied * heads.v_dim, copied * (2 * heads.dim + heads.v_dim)
    block.pieces.append(
        MemoryBound("attention_layout", forward, backward, Region.TENSOR, strided=True)
    )
    block.core.add("attention_layout")
    if _has_softmax_kernel(block):
        block.memory_bound("attention_scale", 0.0, 2 * copied * heads.dim, Region.TENSOR, 2)


def _has_softmax_kernel(block: Block) -> bool:
    """Whether mask and softmax are one kernel, and scores are scaled by their product."""
    return block.plan.attention_kernel == "fused-softmax" or block.stack.fused_softmax


def _softmax(block: Block, scores: float) -> None:
    """Mask, softmax and dropout of so many scores, and what their backward reads."""
    size = block.shape.element_bytes
    has_kernel = _has_softmax_kernel(block)
    if has_kernel and size >= _FULL_BYTES:
        forward = _IN_PLACE_MASK_PASSES * scores * size
        backward = _IN_PLACE_MASK_BACKWARD_PASSES * scores * size
        _over_scores(block, "attention_masking", forward, backward, _IN_PLACE_MASK_KERNELS)
    passes = _SCORE_PASSES_FUSED if has_kernel else _SCORE_PASSES_UNFUSED
    moved = scores * size * passes
    _over_scores(block, "softmax", moved, moved * 1.5, max(1, passes // 2))
    drops = block.stack.dropout and block.model.attention_dropout
    saved = scores * (size if has_kernel else _FULL_BYTES)
    block.save("softmax", saved, Region.TENSOR, core=True)
    if not (has_kernel or drops) and size < _FULL_BYTES:
        block.save("softmax_cast", scores * size, Region.TENSOR, core=True)
    if drops:
        traffic = scores * (2 * size + MASK_BYTES)
        _over_scores(block, "attention_dropout", traffic, traffic)
        block.save("attention_mask", scores * MASK_BYTES, Region.TENSOR, core=True)
        block.save("attention_dropped", scores * size, Region.TENSOR, core=True)


def _over_scores(
    block: Block, name: str, forward: float, backward: float, kernels: int = 1
) -> None:
    """Append kernels over all scores, which are part of core attention."""
    block.memory_bound(name, forward, backward, Region.TENSOR, kernels)
    block.core.add(name)


def _query_key_norm(block: Block) -> None:
    """A norm over queries, and one over keys, and what their backward reads."""
    model, shape, fused = block.model, block.shape, block.stack.fused_rmsnorm
    rows = shape.tokens * (model.heads + model.kv_heads)
    forward, backward, kernels = norm_traffic(
        rows * model.head_dim * shape.element_bytes, fused=fused
    )
    block.memory_bound("query_key_norm", forward, backward, Region.TENSOR, 2 * kernels)
    block.save_norm("query_key_norm", rows, model.head_dim, Region.TENSOR, fused=fused)


def _rotary(block: Block, rotated_bytes: float) -> None:
    """Rotate queries and keys, each read and written once by a fused kernel."""
    fused = block.stack.fused_rotary
    passes, kernels = (1.0, 2) if fused else (_EAGER_ROTARY_PASSES, _EAGER_ROTARY_KERNELS)
    traffic = 2 * rotated_bytes * passes
    block.memory_bound("rotary", traffic, traffic, Region.TENSOR, kernels)
