"""Which parameter tensors does a model have, and what share of each does one rank hold?

One table drives everything that depends on parameters: weights, gradients, optimizer
states and their communication. Biases and norms are listed too, so the counts are exact
to the last parameter. Shape letters: h hidden, a heads, k kv heads, d head size, f MLP
width, v vocabulary, e experts.

Shapes are written so that the axis which is split over ranks comes first (for experts:
the experts first, then the axis that tensor parallelism splits). They are not the
layout a framework keeps in memory; only their products matter here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from simulator.described.model import Experts, LatentAttention, Model
from simulator.described.plan.plan_blocks import TensorGrid


class ParameterGroup(StrEnum):
    """Parameters that are placed, sharded and reduced alike."""

    EMBEDDING = "embedding"
    DENSE = "dense"
    """Everything of a layer but its routed experts: reduced over all data-parallel ranks."""
    EXPERT = "expert"
    """Routed experts: reduced only over the ranks that hold the same experts."""
    HEAD = "head"


class Split(StrEnum):
    """Over which ranks a tensor is divided.

    Source:
        Megatron-LM (arXiv 1909.08053, section 3) for tensor parallelism; Megatron-Core
        for key and value heads, router and latent down-projections.
    """

    REPLICATED = "replicated"
    """Whole on every rank."""
    TENSOR = "tensor"
    """First axis over tp."""
    KV_HEADS = "kv_heads"
    """First axis (heads of keys and values) over tp; with fewer heads than ranks, ranks
    share a head and hold copies of it."""
    EXPERT = "expert"
    """First axis (experts) over ep, second axis over tp."""
    EXPERT_REPLICATED = "expert_replicated"
    """First axis (experts) over ep, the rest whole on every tp rank."""


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """One parameter tensor of the whole model or of one layer.

    Attributes:
        name: What it is, unique inside its layer, for example ``attention.query``.
        shape: Axes; the one that is split comes first.
        group: Parameters it is reduced and sharded with.
        split: How it is divided among tensor- and expert-parallel ranks.
        inputs_first: Whether the leading axes of ``shape`` are the inputs of a product.
            ``torch.nn.Linear`` keeps outputs first.
    """

    name: str
    shape: tuple[int, ...]
    group: ParameterGroup = ParameterGroup.DENSE
    split: Split = Split.REPLICATED
    inputs_first: bool = False

    @property
    def numel(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def is_routed(self) -> bool:
        """Whether it belongs to routed experts."""
        return self.group is ParameterGroup.EXPERT

    @property
    def is_vector(self) -> bool:
        """Whether it is added to or scales what a product gives: a bias, or a norm's weight.

        Biases and norms of heads have two axes, and are none the less vectors.
        """
        return len(self.shape) == 1 or self.name.endswith((".bias", ".norm"))


class LayerKind(NamedTuple):
    """What distinguishes the layers of one model; equal kinds cost the same.

    Attributes:
        has_experts: Whether the MLP is a mixture of experts.
        window: Tokens the layer attends to at most; 0 is all.
    """

    has_experts: bool
    window: int


def layer_kind(model: Model, layer_index: int) -> LayerKind:
    """Kind of one layer, counted from 0."""
    return LayerKind(model.has_experts(layer_index), model.window(layer_index))


def layer_kinds(model: Model) -> tuple[LayerKind, ...]:
    """Kind of every layer, so that costs are computed once per distinct kind."""
    return tuple(layer_kind(model, index) for index in range(model.layers))


def embedding_tensors(model: Model, padded_vocab: int | None = None) -> tuple[ParameterTensor, ...]:
    """Tensors before the first layer: tokens, learned positions, projection, norm.

    Args:
        model: The network.
        padded_vocab: Rows of the token table where a framework pads it; by default
            the vocabulary itself.
    """
    group = ParameterGroup.EMBEDDING
    vocab = padded_vocab or model.vocab
    width = model.embedding_dim or model.hidden
    tensors = [ParameterTensor("embedding.tokens", (vocab, width), group, Split.TENSOR)]
    if model.max_positions:
        tensors.append(
            ParameterTensor("embedding.positions", (model.max_positions, model.hidden), group)
        )
    if model.embedding_dim:
        shape = (width, model.hidden)
        tensors.append(ParameterTensor("embedding.projection", shape, group, inputs_first=True))
    if model.embedding_norm:
        tensors += _norm(model, "embedding.norm", group)
    return tuple(tensors)


def layer_tensors(model: Model, layer_index: int) -> tuple[ParameterTensor, ...]:
    """Tensors of one layer, counted from 0, in the order in which forward uses them.

    A norm, attention, the norms between the two, MLP or experts, and a norm behind it.
    """

    def norms(first: int, end: int) -> Iterator[ParameterTensor]:
        for number in range(first, min(end, model.norms_per_layer)):
            yield from _norm(model, f"norm.{number}", ParameterGroup.DENSE)

    latent = model.latent_attention
    tensors = [*norms(0, 1), *(_latent_attention(model, latent) if latent else _attention(model))]
    tensors += norms(1, 3)
    if model.experts and model.has_experts(layer_index):
        tensors += _experts(model, model.experts)
    else:
        tensors += _mlp(model, "mlp", model.ffn_hidden, biased=model.mlp_bias)
    return (*tensors, *norms(3, 4))


def head_tensors(model: Model, padded_vocab: int | None = None) -> tuple[ParameterTensor, ...]:
    """Tensors after the last layer: final norm, untied output matrix, extra parameters.

    A tied output matrix is the token embedding itself and is not repeated.

    Args:
        model: The network.
        padded_vocab: Rows of the output matrix where a framework pads it; by default
            the vocabulary itself.
    """
    group = ParameterGroup.HEAD
    vocab = padded_vocab or model.vocab
    width = model.embedding_dim or model.hidden
    tensors = list(_norm(model, "head.norm", group)) if model.final_norm else []
    if model.embedding_dim:
        shape = (model.hidden, width)
        tensors.append(ParameterTensor("head.projection", shape, group, inputs_first=True))
    if not model.tied_embeddings:
        tensors.append(ParameterTensor("head.tokens", (vocab, width), group, Split.TENSOR))
    if model.head_bias:
        tensors.append(ParameterTensor("head.bias", (vocab,), group, Split.TENSOR))
    if model.extra_parameters:
        tensors.append(ParameterTensor("head.extra", (model.extra_parameters,), group))
    return tuple(tensors)


def multi_token_tensors(model: Model) -> tuple[ParameterTensor, ...]:
    """Tensors of all multi-token-prediction modules.

    Each module joins the normalised hidden state and the normalised embedding of the
    next token by one projection, then runs a layer like the model's last and a final
    norm. Embedding and output matrix are those of the model and are not repeated.

    Source:
        DeepSeek-V3 (arXiv 2412.19437), section 2.2, equations 21 to 23.
    """
    return tuple(
        tensor
        for number in range(model.multi_token_layers)
        for tensor in _multi_token_module(model, f"multi_token.{number}")
    )


def parameter_count(model: Model, *, with_multi_token: bool = False) -> int:
    """Parameters of the model; tied embeddings count once.

    Args:
        model: The network.
        with_multi_token: Count the multi-token-prediction modules too. Published
            sizes leave them out (DeepSeek-V3 is called a 671B model without them).
    """
    tensors = (*_all_tensors(model), *(multi_token_tensors(model) if with_multi_token else ()))
    return sum(tensor.numel for tensor in tensors)


def active_parameter_count(model: Model) -> int:
    """Parameters that one token passes through: ``top_k`` of the routed experts.

    Embedding and output matrix count in full, as in most published figures; some authors
    leave them out. Multi-token-prediction modules do not count.
    """
    return sum(_active_numel(model, tensor) for tensor in _all_tensors(model))


def tensor_shard_numel(tensor: ParameterTensor, tp: int = 1, ep: int = 1) -> int:
    """Elements of a tensor that one rank holds, the largest share where it is uneven.

    Args:
        tensor: The whole tensor.
        tp: Tensor-parallel degree; for routed experts the degree inside an expert.
        ep: Expert-parallel degree.
    """
    match tensor.split:
        case Split.REPLICATED:
            ways: tuple[int, ...] = ()
        case Split.TENSOR | Split.KV_HEADS:
            ways = (tp,)
        case Split.EXPERT:
            ways = (ep, tp)
        case Split.EXPERT_REPLICATED:
            ways = (ep,)
    split_axes = (-(-size // way) for size, way in zip(tensor.shape, ways, strict=False))
    return math.prod(split_axes) * math.prod(tensor.shape[len(ways) :])


def matrix_shape(tensor: ParameterTensor, tp: int = 1, ep: int = 1) -> tuple[int, int, int]:
    """What one rank holds of a tensor as (matrices, rows, columns).

    Biases and the weights of norms are one row, whatever their axes; each routed expert has a
    matrix of its own.

    Args: as :func:`tensor_shard_numel`.
    """
    numel, last = tensor_shard_numel(tensor, tp, ep), tensor.shape[-1]
    if tensor.is_vector:
        return 1, 1, numel
    matrices = -(-tensor.shape[0] // ep) if tensor.split is Split.EXPERT else 1
    return matrices, numel // (matrices * last), last


def grid_shard_numel(tensor: ParameterTensor, grid: TensorGrid) -> int:
    """Elements of a tensor that one rank of a tensor-parallel grid holds.

    Matrices are cut along both axes. Norms of single heads are whole on every rank, and in 3D
    learned positions are cut by their width only.

    Source:
        Colossal-AI's ``Linear2D``, ``VocabParallelEmbedding2D``, ``Embedding2D`` and their 2.5D
        and 3D namesakes.
    """
    if tensor.name in _OF_ONE_HEAD:
        return tensor.numel
    is_table = tensor.name == "embedding.positions"
    if tensor.is_vector or (is_table and grid.method == "3d"):
        return -(-tensor.numel // grid.vector_ways)
    return -(-tensor.numel // grid.weight_ways)


_OF_ONE_HEAD = frozenset({"attention.query.norm", "attention.key.norm"})


def padded_shard_numel(tensor: ParameterTensor, tp: int, shards: int) -> int:
    """Elements of a tensor-parallel share whose rows are padded to a multiple of ``shards``.

    Rows are the first axis as ``torch.nn.Linear`` keeps it: outputs. FSDP2 cuts every
    parameter along it into equal shards, and sends the padding, too
    (``torch.distributed.fsdp.fully_shard``).

    Args:
        tensor: The whole tensor, not one of routed experts.
        tp: Tensor-parallel degree.
        shards: Ranks that shard it.
    """
    numel, last = tensor_shard_numel(tensor, tp), tensor.shape[-1]
    columns = 1 if len(tensor.shape) == 1 else last
    rows = last if tensor.inputs_first else numel // columns
    return -(-rows // shards) * shards * (numel // rows)


def _all_tensors(model: Model) -> Iterator[ParameterTensor]:
    yield from embedding_tensors(model)
    kinds = layer_kinds(model)
    for kind in dict.fromkeys(kinds):
        yield from layer_tensors(model, kinds.index(kind)) * kinds.count(kind)
    yield from head_tensors(model)


def _active_numel(model: Model, tensor: ParameterTensor) -> int:
    if model.experts is None or not tensor.is_routed:
        return tensor.numel
    return tensor.numel // model.experts.count * model.experts.top_k


def _norm(model: Model, name: str, group: ParameterGroup) -> Iterator[ParameterTensor]:
    yield ParameterTensor(name, (model.hidden,), group)
    if model.norm_bias:
        yield ParameterTensor(f"{name}.bias", (model.hidden,), group)


def _attention(model: Model) -> Iterator[ParameterTensor]:
    h, a, k, d = model.hidden, model.heads, model.kv_heads, model.head_dim
    for name, heads, split in (
        ("query", a, Split.TENSOR),
        ("key", k, Split.KV_HEADS),
        ("value", k, Split.KV_HEADS),
    ):
        yield ParameterTensor(f"attention.{name}", (heads, d, h), split=split)
        if model.qkv_bias:
            yield ParameterTensor(f"attention.{name}.bias", (heads, d), split=split)
    yield _output(a, d, h)
    if model.qk_norm == "head":
        yield ParameterTensor("attention.query.norm", (d,))
        yield ParameterTensor("attention.key.norm", (d,))
    if model.qk_norm == "full":
        yield ParameterTensor("attention.query.norm", (a, d), split=Split.TENSOR)
        yield ParameterTensor("attention.key.norm", (k, d), split=Split.KV_HEADS)
    yield from _attention_extras(model)


def _latent_attention(model: Model, latent: LatentAttention) -> Iterator[ParameterTensor]:
    h, a = model.hidden, model.heads
    q_rank, kv_rank = latent.q_lora_rank, latent.kv_lora_rank
    if q_rank:
        yield ParameterTensor("attention.query_down", (h, q_rank), inputs_first=True)
        yield ParameterTensor("attention.query_down.norm", (q_rank,))
    query_shape = (a, latent.qk_head_dim, q_rank or h)
    yield ParameterTensor("attention.query", query_shape, split=Split.TENSOR)
    down_shape = (h, kv_rank + latent.qk_rope_head_dim)
    yield ParameterTensor("attention.key_value_down", down_shape, inputs_first=True)
    yield ParameterTensor("attention.key_value_down.norm", (kv_rank,))
    for name, size in (("key", latent.qk_nope_head_dim), ("value", latent.v_head_dim)):
        yield ParameterTensor(f"attention.{name}", (a, size, kv_rank), split=Split.TENSOR)
    yield _output(a, latent.v_head_dim, h)
    yield from _attention_extras(model)


def _output(heads: int, head_dim: int, hidden: int) -> ParameterTensor:
    shape = (heads, head_dim, hidden)
    return ParameterTensor("attention.output", shape, split=Split.TENSOR, inputs_first=True)


def _attention_extras(model: Model) -> Iterator[ParameterTensor]:
    if model.attention_output_bias:
        yield ParameterTensor("attention.output.bias", (model.hidden,))
    if model.attention_sinks:
        yield ParameterTensor("attention.sinks", (model.heads,), split=Split.TENSOR)


def _mlp(model: Model, name: str, width: int, *, biased: bool) -> Iterator[ParameterTensor]:
    for part in ("gate", "up") if model.gated_mlp else ("up",):
        yield ParameterTensor(f"{name}.{part}", (width, model.hidden), split=Split.TENSOR)
        if biased:
            yield ParameterTensor(f"{name}.{part}.bias", (width,), split=Split.TENSOR)
    shape = (width, model.hidden)
    yield ParameterTensor(f"{name}.down", shape, split=Split.TENSOR, inputs_first=True)
    if biased:
        yield ParameterTensor(f"{name}.down.bias", (model.hidden,))


def _experts(model: Model, experts: Experts) -> Iterator[ParameterTensor]:
    h, e, f = model.hidden, experts.count, experts.ffn_hidden
    group = ParameterGroup.EXPERT
    yield ParameterTensor("router", (e, h))
    if experts.router_bias:
        yield ParameterTensor("router.bias", (e,))
    for part in ("gate", "up") if model.gated_mlp else ("up",):
        yield ParameterTensor(f"experts.{part}", (e, f, h), group, Split.EXPERT)
        if model.mlp_bias:
            yield ParameterTensor(f"experts.{part}.bias", (e, f), group, Split.EXPERT)
    yield ParameterTensor("experts.down", (e, f, h), group, Split.EXPERT)
    if model.mlp_bias:
        yield ParameterTensor("experts.down.bias", (e, h), group, Split.EXPERT_REPLICATED)
    if experts.shared_ffn_hidden:
        yield from _mlp(model, "shared_expert", experts.shared_ffn_hidden, biased=False)
    if experts.shared_gate:
        yield ParameterTensor("shared_expert.scalar_gate", (1, h))


def _multi_token_module(model: Model, name: str) -> Iterator[ParameterTensor]:
    for norm in ("hidden_norm", "embedding_norm", "final_norm"):
        yield from _norm(model, f"{name}.{norm}", ParameterGroup.DENSE)
    join_shape = (model.hidden, 2 * model.hidden)
    yield ParameterTensor(f"{name}.join", join_shape, split=Split.TENSOR)
    for tensor in layer_tensors(model, model.layers - 1):
        yield replace(tensor, name=f"{name}.{tensor.name}")
