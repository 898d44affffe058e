"""What is attention made of, of the usual kind and with latents?

Shape letters: h hidden, a heads, k kv heads, d head size.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.model import LatentAttention, Model
from simulator.described.plan.plan_fields import CORE_ATTENTION
from simulator.program.layer.block import Block, norm_traffic
from simulator.program.layer.core_attention import ATTENTION_CONTEXT, Heads, add_core_attention
from simulator.program.layer.layer_part import ALL_RECOMPUTE, LayerPart
from simulator.program.layer.pieces import MemoryBound, Region, Role, Split
from simulator.program.layer.tensors import ParameterTensor, TensorRole, TensorSplit

_EAGER_ROTARY_PASSES, _EAGER_ROTARY_KERNELS = 5.0, 8
"""A rotary embedding written out: cast up, multiply and cast down move 20 bytes per element
where a fused kernel moves 4; queries and keys separately, and backward as forward
(``apply_rotary_emb`` of torchtitan, of complex numbers)."""

_HALVES_ROTARY_PASSES = 7.5
"""The same backward where halves are rotated: 30 bytes. Forward multiplies by the cosine, negates a
half, joins both, multiplies by the sine and adds, which is 20. Backward puts each half into zeros
of its own, and adds all that arrives (``apply_rotary_pos_emb`` of transformers' models/llama, as
torch dispatches it)."""

_WIDE_ROTARY_PASSES, _WIDE_ROTARY_BACKWARD_PASSES = 9.0, 14.0
"""The same with fp32 tables: 36 and 56 bytes. Both products give fp32, which is added and cast;
backward casts up, and casts what each product gives for 16-bit queries and keys down."""

_PAIRS_ROTARY_PASSES, _PAIRS_ROTARY_BACKWARD_PASSES, _PAIRS_ROTARY_KERNELS = 12.0, 25.0, 18
"""The same where pairs of fp32 numbers are rotated: 48 and 100 bytes. Forward casts up, makes four
products of halves, subtracts, adds, joins and casts down. Backward puts each of four gradients of
halves into zeros of its own, and adds them (``RotaryPositionalEmbeddings`` of torchtune's
modules/position_embeddings.py, as torch dispatches it)."""


_EAGER_LATENT_PASSES, _EAGER_LATENT_BACKWARD_PASSES, _EAGER_LATENT_KERNELS = 14, 21, 29
"""Reads and writes of what Megatron-Core rotates of queries, without fusion. Forward: even and odd
columns are separated (2), multiplied by the cosine (2), negated by half (1), swapped (2),
multiplied by the sine (2), added (3), and joined with columns that are not rotated, of which
there are none (2). Backward: the products (4), the swap (3), the sum of both branches (3), and
columns put back from three slices, each into zeros, and added (11). Kernels, as many each way, are
those of queries, of keys, of joining both, of the values' copy, and forward six each for queries
and keys that make tables of one row per position: cosine, sine, their products with a scale, and
casts (``_apply_rotary_pos_emb_bshd`` of ``rope_utils.py``)."""

_LAYOUT_KERNELS, _LENGTH_KERNELS, _LENGTH_BYTES = 3, 6, 2
"""Kernels per direction that copy queries, keys and values; kernels that make the lengths of
sequences (zeros, a sum and a running sum for queries and for keys), which read a mask of one byte
per token twice."""

_LATENT_NORM_INPUT = 0.5
"""Of a latent and its norm's output, the first stays."""


def _tensors(model: Model) -> Iterator[ParameterTensor]:
    h, a, k, d = model.hidden, model.heads, model.kv_heads, model.head_dim
    for name, heads, split in (
        ("query", a, TensorSplit.TENSOR),
        ("key", k, TensorSplit.KV_HEADS),
        ("value", k, TensorSplit.KV_HEADS),
    ):
        yield ParameterTensor(f"attention.{name}", (heads, d, h), split=split)
        if model.qkv_bias:
            yield ParameterTensor(
                f"attention.{name}.bias", (heads, d), split=split, role=TensorRole.BIAS
            )
    yield _output(a, d, h)
    if model.qk_norm == "head":
        yield ParameterTensor("attention.query.norm", (d,), role=TensorRole.HEAD_NORM)
        yield ParameterTensor("attention.key.norm", (d,), role=TensorRole.HEAD_NORM)
    if model.qk_norm == "full":
        role, by_heads = TensorRole.HEAD_NORM, TensorSplit.TENSOR
        yield ParameterTensor("attention.query.norm", (a, d), split=by_heads, role=role)
        split = TensorSplit.KV_HEADS
        yield ParameterTensor("attention.key.norm", (k, d), split=split, role=role)
    yield from _attention_extras(model)


def _latent_tensors(model: Model) -> Iterator[ParameterTensor]:
    latent = model.latent_attention
    assert latent is not None
    h, a = model.hidden, model.heads
    q_rank, kv_rank = latent.q_lora_rank, latent.kv_lora_rank
    if q_rank:
        yield ParameterTensor("attention.query_down", (h, q_rank), inputs_first=True)
        yield ParameterTensor("attention.query_down.norm", (q_rank,), role=TensorRole.NORM)
    query_shape = (a, latent.qk_head_dim, q_rank or h)
    yield ParameterTensor("attention.query", query_shape, split=TensorSplit.TENSOR)
    down_shape = (h, kv_rank + latent.qk_rope_head_dim)
    yield ParameterTensor("attention.key_value_down", down_shape, inputs_first=True)
    yield ParameterTensor("attention.key_value_down.norm", (kv_rank,), role=TensorRole.NORM)
    for name, size in (("key", latent.qk_nope_head_dim), ("value", latent.v_head_dim)):
        yield ParameterTensor(f"attention.{name}", (a, size, kv_rank), split=TensorSplit.TENSOR)
    yield _output(a, latent.v_head_dim, h)
    yield from _attention_extras(model)


def _output(heads: int, head_dim: int, hidden: int) -> ParameterTensor:
    shape = (heads, head_dim, hidden)
    return ParameterTensor("attention.output", shape, split=TensorSplit.TENSOR, inputs_first=True)


def _attention_extras(model: Model) -> Iterator[ParameterTensor]:
    if model.attention_output_bias:
        yield ParameterTensor("attention.output.bias", (model.hidden,), role=TensorRole.BIAS)
    if model.attention_sinks:
        yield ParameterTensor("attention.sinks", (model.heads,), split=TensorSplit.TENSOR)


def _add_attention(block: Block, window: int) -> None:
    model, shape = block.model, block.shape
    tokens, size = shape.tokens, shape.element_bytes
    query, key_value = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
    projections = ("attention.query", "attention.key", "attention.value")
    kept_bytes = block.kept_inputs(3) * tokens * model.hidden * shape.kept_bytes
    block.save("qkv_input", kept_bytes, Region.GATHERED, weights=projections)
    block.linear(
        "qkv", query + key_value, model.hidden, Split.COLUMN,
        kv_columns=key_value, kv_heads=model.kv_heads, made_by="norm", products=3, weights=3,
        role=Role.PROJECTION, tensors=projections,
    )  # fmt: skip
    if model.qkv_bias:
        block.bias("qkv", tokens * (query + key_value), Region.TENSOR, added=True)
    if model.qk_norm != "none":
        _query_key_norm(block)
    if model.positions == "rotary":
        rotated = tokens * (query + key_value // 2) * size
        _rotary(block, rotated)
    if block.stack.arranges_attention:
        _arrange(block, tokens * query * size, tokens * key_value * size)
    repeats = model.heads // model.kv_heads if block.plan.repeats_kv_heads else 1
    kept = tokens + shape.sequences * (block.plan.prefix_tokens or 0)
    block.save("query", tokens * query * size, Region.TENSOR, role=Role.QUERY)
    for role in (Role.KEY, Role.VALUE):
        num_bytes = repeats * kept * key_value // 2 * size
        block.save(str(role), num_bytes, Region.TENSOR, role=role, repeats=repeats)
    if _value_keeps_projection(block) and repeats == 1 and model.positions == "rotary":
        unrotated_bytes = tokens * (query + key_value // 2) * size
        block.save("projection", unrotated_bytes, Region.TENSOR, role=Role.VALUE)
    heads = Heads(model.heads, repeats * model.kv_heads, model.head_dim, model.head_dim)
    add_core_attention(block, heads, window)
    _output_product(block, tokens * query * size, query)
    if model.attention_output_bias:
        block.bias("attention_output", tokens * model.hidden, Region.SEQUENCE)


def _value_keeps_projection(block: Block) -> bool:
    """Whether the value that is kept is a view of what one product gives for all three."""
    stack, plan = block.stack, block.plan
    recomputes_core = plan.recompute == "selective" and stack.selective_policy == "core-attention"
    if recomputes_core and CORE_ATTENTION[0] in (plan.recompute_modules or CORE_ATTENTION):
        return stack.checkpointed_value_keeps_projection or stack.value_keeps_projection
    return stack.value_keeps_projection


def _arrange(block: Block, query_bytes: float, key_value_bytes: float) -> None:
    """Copies around the rotary kernel, and lengths of sequences counted for attention.

    Forward, all three are copied once, keys and values joined and copied again; backward, their
    gradients are joined, and all three copied twice.

    Source: ``CausalSelfAttention`` and ``CoreAttention`` of nanotron's ``models/llama.py``.
    """
    forward = 2 * query_bytes + 6 * key_value_bytes
    backward = 4 * query_bytes + 6 * key_value_bytes
    copies = MemoryBound(
        "attention_layout", forward, backward, Region.TENSOR, _LAYOUT_KERNELS, strided=True
    )
    block.pieces.append(copies)
    lengths_bytes = float(_LENGTH_BYTES * block.shape.tokens)
    block.memory_bound("attention_lengths", lengths_bytes, 0.0, Region.TENSOR, _LENGTH_KERNELS)


def _output_product(block: Block, context_bytes: float, width: int) -> None:
    """The product behind core attention, whose input a fused kernel keeps for itself."""
    matrix = ("attention.output",)
    weights = () if block.plan.attention_kernel == "flash" else matrix
    role = Role.CONTEXT
    block.save("attention_context", context_bytes, Region.TENSOR, role=role, weights=weights)
    role = Role.PROJECTION
    block.linear(
        "attention_output", block.model.hidden, width, Split.ROW, role=role, tensors=matrix
    )


def _add_latent_attention(block: Block, _window: int) -> None:
    model, shape, latent = block.model, block.shape, block.model.latent_attention
    assert latent is not None
    tokens, size = shape.tokens, shape.element_bytes
    query = model.heads * latent.qk_head_dim
    query_matrix, key_values = ("attention.query",), ("attention.key", "attention.value")
    query_down, key_value_down = ("attention.query_down",), ("attention.key_value_down",)
    reads_input = (*(query_down if latent.q_lora_rank else query_matrix), *key_value_down)
    kept_bytes = tokens * model.hidden * shape.kept_bytes
    block.save("latent_input", kept_bytes, Region.SEQUENCE, weights=reads_input)
    if latent.q_lora_rank:
        block.linear("query_down", latent.q_lora_rank, model.hidden, Split.NONE, tensors=query_down)
        _save_latent(block, "query_latent", latent.q_lora_rank, query_matrix)
        _latent_norm(block, "query_latent_norm", latent.q_lora_rank)
    inputs = latent.q_lora_rank or model.hidden
    block.linear("query_up", query, inputs, Split.COLUMN, tensors=query_matrix)
    down = latent.kv_lora_rank + latent.qk_rope_head_dim
    block.linear("key_value_down", down, model.hidden, Split.NONE, tensors=key_value_down)
    _save_latent(block, "key_value_latent", down, key_values)
    _latent_norm(block, "key_value_latent_norm", latent.kv_lora_rank)
    up = model.heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    block.linear("key_value_up", up, latent.kv_lora_rank, Split.COLUMN, tensors=key_values)
    value = model.heads * latent.v_head_dim
    _latent_rotary(block, latent)
    for role, width in ((Role.QUERY, query), (Role.KEY, query), (Role.VALUE, value)):
        block.save(str(role), tokens * width * size, Region.TENSOR, role=role)
    heads = Heads(model.heads, model.heads, latent.qk_head_dim, latent.v_head_dim)
    add_core_attention(block, heads)
    _output_product(block, tokens * value * size, value)
    _repeat_latents(block)


def _save_latent(block: Block, name: str, width: int, weights: tuple[str, ...]) -> None:
    """A latent, and what its norm gives, which products with these weights read."""
    num_bytes = 2 * block.shape.tokens * width * block.shape.element_bytes
    share = 1.0 - _LATENT_NORM_INPUT
    block.save(name, num_bytes, Region.SEQUENCE, weights=weights, weights_share=share)


def _repeat_latents(block: Block) -> None:
    """What modules of Megatron-Core's selective recomputation mean here.

    The input norm is a kernel of its own; those of latents are part of the product behind
    them. ``mla_up_proj`` repeats the norms of latents, and drops what the products give.
    """
    share = block.second_cast_share(block.shape)
    casts = dict.fromkeys(("query_down_cast", "key_value_down_cast"), share)
    block.repeat("layernorm", {"attention_norm": 1.0, **casts}, dropped=("latent_input",))
    repeated = [f"{name}{cast}" for name in ("query_up", "key_value_up") for cast in ("", "_cast")]
    repeated += ["query_latent_norm", "key_value_latent_norm", "rotary"]
    latents = dict.fromkeys(("query_latent", "key_value_latent"), _LATENT_NORM_INPUT)
    block.repeat(
        "mla_up_proj",
        dict.fromkeys(repeated, 1.0),
        kept=latents,
        dropped=("query", "key", "value"),
    )


def _latent_norm(block: Block, name: str, width: int) -> None:
    """A norm over a latent; its input and output are kept with the latent."""
    row = block.shape.tokens * width * block.shape.element_bytes
    forward, backward, kernels = norm_traffic(
        row, block.shape.element_bytes, fused=block.stack.fused_rmsnorm
    )
    block.memory_bound(name, forward, backward, Region.SEQUENCE, kernels)


def _latent_rotary(block: Block, latent: LatentAttention) -> None:
    """Rotate part of the queries and keys, and put queries, keys and values together.

    Fused kernels read and write queries and keys once. Eager ones rotate that part of the
    queries, join it with the others, spread that of the one rotated key over all heads, and
    copy the values, as attention wants them contiguous; backward undoes all of that.

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


def _query_key_norm(block: Block) -> None:
    model, shape, fused = block.model, block.shape, block.stack.fused_rmsnorm
    rows = shape.tokens * (model.heads + model.kv_heads)
    forward, backward, kernels = norm_traffic(
        rows * model.head_dim * shape.element_bytes, shape.element_bytes, fused=fused
    )
    block.save_norm("query_key_norm", rows, model.head_dim, Region.TENSOR, fused)
    block.memory_bound("query_key_norm", forward, backward, Region.TENSOR, 2 * kernels)


def _rotary(block: Block, rotated_bytes: float) -> None:
    """Rotate queries and keys, each read and written once by a fused kernel."""
    fused = block.stack.fused_rotary
    passes, kernels = (1.0, 2) if fused else (_EAGER_ROTARY_PASSES, _EAGER_ROTARY_KERNELS)
    halves = block.stack.rotates_halves and not fused
    backward_passes = _HALVES_ROTARY_PASSES if halves else passes
    if halves and block.stack.rotary_follows_stream and block.plan.autocasts:
        passes, backward_passes = _WIDE_ROTARY_PASSES, _WIDE_ROTARY_BACKWARD_PASSES
    if block.stack.rotates_pairs and not fused:
        passes, kernels = _PAIRS_ROTARY_PASSES, _PAIRS_ROTARY_KERNELS
        backward_passes = _PAIRS_ROTARY_BACKWARD_PASSES
    once = 2 * rotated_bytes
    block.memory_bound("rotary", once * passes, once * backward_passes, Region.TENSOR, kernels)


def _flop(model: Model, keys: int) -> float:
    """Scores and weighted values."""
    return 2.0 * model.heads * (2 * model.head_dim) * keys


def _latent_flop(model: Model, keys: int) -> float:
    latent = model.latent_attention
    assert latent is not None
    return 2.0 * model.heads * (latent.qk_head_dim + latent.v_head_dim) * keys


def _heads(model: Model) -> dict[str, int]:
    return {"heads": model.heads}


ATTENTION = LayerPart(
    title="attention",
    is_in=lambda model, _: model.latent_attention is None,
    tensors=_tensors,
    add=_add_attention,
    flop=_flop,
    tensor_sizes=_heads,
    on_grid=True,
    context=ATTENTION_CONTEXT,
    recompute=ALL_RECOMPUTE,
)

LATENT_ATTENTION = LayerPart(
    title="latent attention",
    is_in=lambda model, _: model.latent_attention is not None,
    tensors=_latent_tensors,
    add=_add_latent_attention,
    flop=_latent_flop,
    tensor_sizes=_heads,
    context=ATTENTION_CONTEXT,
    recompute=ALL_RECOMPUTE,
)
