"""What are the embedding, the head and the loss of a model made of, and its multi-token modules?

As for layers (:mod:`simulator.program.layer.layer_kinds`), their tensors, and what one device would
do for one microbatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from simulator.cost.collectives import CollectiveKind
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.described.plan.stack import Stack
from simulator.described.plan.stack_options import CrossEntropy
from simulator.program.layer.block import MASK_BYTES, Block, Shape
from simulator.program.layer.layer_kinds import layer_tensors
from simulator.program.layer.losses import CHUNK_OF_HEAD, LOSSES, Copies, LossKernel
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    Gemm,
    Layer,
    MemoryBound,
    Region,
    Role,
    Split,
)
from simulator.program.layer.tensors import (
    ParameterGroup,
    ParameterTensor,
    TensorRole,
    TensorSplit,
    norm_tensors,
)

_LOG_SUM_BYTES = 4.0
_TILE_TOKENS, _TILE_WORDS, _SUM_BYTES = 4096, 32768, 4.0
"""The logarithm of a token's sum of exponentials is fp32."""
_CAP_PASSES, _CAP_KERNELS = (6.0, 7.0), 3
"""Reads and writes, forward and backward, of a quotient, tanh and a product; the gradient of tanh
reads its result, too."""


def repeats_embedding(model: Model, plan: Plan) -> bool:
    """Whether each tensor-parallel rank holds all rows of the token embedding.

    Ignores: that the rank's part of the sequence is cut out of what it looked up, not exchanged.
    """
    return not (plan.stack.splits_embedding or model.tied_embeddings)


def embedding_tensors(
    model: Model, padded_vocab: int | None = None, *, is_whole: bool = False
) -> tuple[ParameterTensor, ...]:
    """Tensors before the first layer: tokens, learned positions, projection, norm.

    Args:
        model: The network.
        padded_vocab: Rows of the token table where a framework pads it; by default
            the vocabulary itself.
        is_whole: Whether each tensor-parallel rank holds all rows.
    """
    group = ParameterGroup.EMBEDDING
    vocab = padded_vocab or model.vocab
    width = model.embedding_dim or model.hidden
    split = TensorSplit.REPLICATED if is_whole else TensorSplit.TENSOR
    tensors = [ParameterTensor("embedding.tokens", (vocab, width), group, split)]
    if model.max_positions:
        shape, role = (model.max_positions, model.hidden), TensorRole.POSITIONS
        tensors.append(ParameterTensor("embedding.positions", shape, group, role=role))
    if model.embedding_dim:
        shape = (width, model.hidden)
        tensors.append(ParameterTensor("embedding.projection", shape, group, inputs_first=True))
    if model.embedding_norm:
        tensors += norm_tensors(model, "embedding.norm", group)
    return tuple(tensors)


def head_tensors(model: Model, padded_vocab: int | None = None) -> tuple[ParameterTensor, ...]:
    """Tensors after the last layer: final norm, untied output matrix, extra parameters.

    A tied output matrix is the token embedding itself and is not repeated; that of classes is
    another one.

    Args:
        model: The network.
        padded_vocab: Rows of the output matrix where a framework pads it; by default
            the vocabulary itself.
    """
    group = ParameterGroup.HEAD
    vocab = padded_vocab or model.vocab
    width = model.embedding_dim or model.hidden
    tensors = list(norm_tensors(model, "head.norm", group)) if model.final_norm else []
    if model.embedding_dim:
        shape = (model.hidden, width)
        tensors.append(ParameterTensor("head.projection", shape, group, inputs_first=True))
    if model.classes:
        tensors.append(ParameterTensor("head.classes", (model.classes, width), group))
    elif not model.tied_embeddings:
        tensors.append(ParameterTensor("head.tokens", (vocab, width), group, TensorSplit.TENSOR))
    if model.head_bias and not model.classes:
        split = TensorSplit.TENSOR
        tensors.append(ParameterTensor("head.bias", (vocab,), group, split, role=TensorRole.BIAS))
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


def _multi_token_module(model: Model, name: str) -> Iterator[ParameterTensor]:
    for norm in ("hidden_norm", "embedding_norm", "final_norm"):
        yield from norm_tensors(model, f"{name}.{norm}", ParameterGroup.DENSE)
    join_shape = (model.hidden, 2 * model.hidden)
    yield ParameterTensor(f"{name}.join", join_shape, split=TensorSplit.TENSOR)
    for tensor in layer_tensors(model, model.layers - 1):
        yield replace(tensor, name=f"{name}.{tensor.name}")


def embedding_layer(model: Model, plan: Plan, shape: Shape, padded_vocab: int) -> Layer:
    """Token lookup, projection, learned positions, norm and dropout, as the model has them.

    The gradient of the table is filled with zeros before rows are added to it
    (``embedding_dense_backward_cuda`` of PyTorch's ``Embedding.cu``).
    """
    block = Block(model, plan, shape)
    size = shape.stream_bytes if plan.streams_wide else shape.element_bytes
    row = shape.tokens * model.hidden * size
    block.pieces.append(
        MemoryBound("embedding", 2 * row, 3 * row, Region.SEQUENCE, role=Role.EMBEDDING)
    )
    width = model.embedding_dim or model.hidden
    region = Region.WHOLE if repeats_embedding(model, plan) else Region.TENSOR
    block.memory_bound("embedding_zeros", 0.0, padded_vocab * width * size, region)
    if model.embedding_dim:
        block.linear(
            "embedding_projection", model.hidden, model.embedding_dim, Split.NONE,
            tensors=("embedding.projection",),
        )  # fmt: skip
    if model.positions == "learned":
        block.memory_bound("positions", 2 * row, row, Region.SEQUENCE)
    if model.embedding_norm:
        block.norm("embedding_norm", "embedding.norm")
    if plan.stack.dropout:
        block.memory_bound("embedding_dropout", 2 * row, 2 * row, Region.SEQUENCE)
        mask = shape.tokens * model.hidden * MASK_BYTES
        block.save("embedding_mask", mask, Region.SEQUENCE)
    return block.layer()


def join_layer(model: Model, plan: Plan, shape: Shape) -> Layer:
    """Normed hidden state and normed embedding of the next token, joined by one product."""
    block = Block(model, plan, shape)
    block.norm("hidden_norm", "hidden_norm")
    block.norm("embedding_norm", "embedding_norm")
    join_bytes = shape.tokens * 2 * model.hidden * shape.kept_bytes
    block.save("join_input", join_bytes, Region.GATHERED)
    block.linear("join", model.hidden, 2 * model.hidden, Split.COLUMN)
    return block.layer()


def head_layer(model: Model, plan: Plan, shape: Shape, padded_vocab: int) -> Layer:
    """Final norm and output product over the (padded) vocabulary, or over classes."""
    stack = plan.stack
    block = Block(model, plan, shape)
    if model.final_norm:
        block.norm("final_norm", "head.norm")
    if model.classes:
        return _with_classes(block)
    head_bytes = shape.tokens * model.hidden * shape.element_bytes
    matrix = "embedding.tokens" if model.tied_embeddings else "head.tokens"
    block.save("head_input", head_bytes, Region.GATHERED, weights=(matrix,))
    width = model.embedding_dim or model.hidden
    if model.embedding_dim:
        block.linear(
            "head_projection", width, model.hidden, Split.NONE, tensors=("head.projection",)
        )
    if plan.autocasts:
        block.autocast("head", padded_vocab * width, shape.tokens * width)
    elif plan.casts_in_kernels:
        block.autocast("head", padded_vocab * width, 0)
    block.pieces.append(
        Gemm(
            "head", shape.tokens, padded_vocab, width,
            split=Split.COLUMN, half_precision=True, role=Role.LOGITS, tensors=(matrix,),
        )
    )  # fmt: skip
    logits_bytes = float(shape.tokens * padded_vocab) * shape.element_bytes
    if plan.gathers_logits:
        gather = CollectiveKind.ALL_GATHER
        block.pieces.append(Exchange("head.logits", Axis.TENSOR, gather, None, logits_bytes))
    kind = _loss_kind(model, plan)
    if kind in ("eager", "copied"):
        block.work((logits_bytes,), (logits_bytes,), _logits_region(stack))
    if kind == "linear-fused":
        _fuse_head(block, padded_vocab, matrix)
    if kind == "chunked-head":
        _chunk_head(block, padded_vocab)
    if plan.makes_logits_again:
        block.save("head_log_sum", _LOG_SUM_BYTES * shape.tokens, Region.SEQUENCE)
        block.work((), (0.0,), Region.WHOLE)
    if kind == "tiled":
        _tile_head(block, padded_vocab, matrix)
    return block.layer()


def _with_classes(block: Block) -> Layer:
    """A product with one token of each sequence.

    Source: transformers, ``BertForSequenceClassification`` of models/bert, which pools the first
    token. Ignored: that decoders score every token and pick one afterwards.
    """
    model, tensors = block.model, ("head.classes",)
    num_bytes = float(block.shape.sequences * model.hidden * block.shape.element_bytes)
    block.save("head_input", num_bytes, Region.WHOLE, weights=tensors)
    block.pieces.append(
        Gemm("head", block.shape.sequences, model.classes, model.hidden, tensors=tensors)
    )
    return block.layer()


def _chunk_head(block: Block, vocab: int) -> None:
    """Logits, loss and gradients of a part of the tokens at a time.

    The gradient of the input is added up in fp32, and kept in the input's format.

    Source: torchtitan 0.3, ``ChunkedLossWrapper`` of components/loss.py.
    """
    inputs, size = float(block.shape.tokens * block.model.hidden), block.shape.element_bytes
    block.save("head_input_gradient", inputs * size, Region.GATHERED)
    chunk = _copies_bytes(block.shape, vocab, CHUNK_OF_HEAD)
    block.work((chunk, _SUM_BYTES * inputs), (0.0,), Region.WHOLE)


def _tile_head(block: Block, vocab: int, matrix: str) -> None:
    """Logits of a tile at a time; backward adds up in fp32 what the head and its input get.

    Source: TRL 1.16, ``kernels/chunked_logprob.py``. Ignored: the rows of a narrower last tile.
    """
    tokens, hidden = block.shape.tokens, block.model.hidden
    tile = float(min(tokens, _TILE_TOKENS) * min(vocab, _TILE_WORDS)) * block.shape.element_bytes
    is_frozen = any(fnmatchcase(matrix, pattern) for pattern in block.plan.frozen_patterns)
    sums = _SUM_BYTES * (tokens + vocab * (not is_frozen)) * hidden
    block.work((tile,), (tile, sums), Region.WHOLE)


def _fuse_head(block: Block, vocab: int, matrix: str) -> None:
    """Logits of a part of the tokens at a time, and the weight's gradient beside them.

    Gradients are made in forward: that of the input, as large as it, is kept in its place.

    Source: Liger-Kernel, ``ops/fused_linear_cross_entropy.py``: as many parts as the vocabulary is
    wider than the input, rounded so that a part is a power of two of tokens.
    """
    tokens, size, hidden = block.shape.tokens, block.shape.element_bytes, block.model.hidden
    part = 1 << (math.ceil(tokens / math.ceil(vocab / hidden)) - 1).bit_length()
    block.save("head_gradient", float(vocab * hidden) * size, Region.WHOLE, weights=(matrix,))
    block.work((min(part, tokens) * float(vocab) * size,), (0.0,), Region.WHOLE)


def loss_layer(model: Model, plan: Plan, shape: Shape, padded_vocab: int) -> Layer:
    """Cross-entropy as the plan computes it; that of classes is an eager one of few numbers."""
    if model.classes:
        scored = replace(shape, seq_len=1)
        return _loss_layer(Block(model, plan, scored), LOSSES["eager"], model.classes)
    return _loss_layer(Block(model, plan, shape), LOSSES[_loss_kind(model, plan)], padded_vocab)


def _loss_kind(model: Model, plan: Plan) -> CrossEntropy:
    """How the loss is computed; a model that sees whole sequences shifts none of its logits.

    Source: transformers 4.40 and 5.17, ``BertForMaskedLM`` of models/bert.
    """
    kind = plan.loss_kernel
    return "eager" if kind == "eager-shifted" and not model.causal else kind


def _loss_layer(block: Block, loss: LossKernel, outputs: int) -> Layer:
    plan, shape = block.plan, block.shape
    if plan.divides_loss and loss.divided is not None:
        loss = loss.divided
    size, region = partial(_copies_bytes, shape, outputs), _logits_region(plan.stack)
    forward, backward = size(loss.forward), size(loss.backward)
    if block.model.capped_logits and loss.has_logits and loss.returned != Copies():
        _cap_logits(block, size(loss.returned), region)
    if loss.has_logits:
        _log_losses(block, outputs, region)
    block.memory_bound("cross_entropy", forward, backward, region, loss.kernels)
    if not loss.has_logits:
        return block.layer()
    if plan.pp > 1 and plan.stack.buffers_every_microbatch:
        # The pipeline keeps what its last stage returns as it keeps what others send.
        loss = loss.with_returned()
    block.save("logits", size(loss.kept), region)
    block.pieces += _loss_reductions(plan, shape)
    block.work(tuple(map(size, loss.passing)), tuple(map(size, loss.working)), region)
    block.freed_bytes = tuple(map(size, loss.freed))
    return block.layer()


def _cap_logits(block: Block, num_bytes: float, region: Region) -> None:
    """Divide logits, take tanh and multiply, by an operator each: backward reads what tanh gave.

    A loss that a compiler makes one kernel of with the logits before it takes tanh again.

    Source: transformers 4.49, ``Gemma2ForCausalLM.forward`` of models/gemma2; PyTorch,
    derivatives.yaml: ``tanh`` keeps its result.
    """
    block.save("capped_logits", num_bytes, region)
    forward, backward = (passes * num_bytes for passes in _CAP_PASSES)
    block.memory_bound("logit_cap", forward, backward, region, _CAP_KERNELS)


def _log_losses(block: Block, outputs: int, region: Region) -> None:
    """Losses that are computed once more for a log, when activations are no longer there.

    Ignores: what they hold, which is less than backward held unless a model is nearly all head.
    """
    count, logged = block.plan.stack.loss_metrics, LOSSES["eager"]
    if count:
        num_bytes = count * _copies_bytes(block.shape, outputs, logged.forward)
        block.memory_bound("loss_metrics", num_bytes, 0.0, region, count * logged.kernels)


def returned_logits_bytes(model: Model, plan: Plan, shape: Shape, outputs: int) -> float:
    """Logits of a microbatch on one rank as returned; 0 where their loss keeps them [B]."""
    loss = LOSSES[_loss_kind(model, plan)]
    if not loss.has_logits:
        return 0.0
    ways = plan.tp if _logits_region(plan.stack) is Region.TENSOR else 1
    return _copies_bytes(shape, outputs, loss.returned) / ways


def _copies_bytes(shape: Shape, outputs: int, copies: Copies) -> float:
    return copies.num_bytes(float(shape.tokens * outputs), shape.element_bytes)


def _loss_reductions(plan: Plan, shape: Shape) -> list[Exchange]:
    """Maximum, sum of exponentials and the label's logit of each token, over the vocabulary.

    Source: Megatron-LM's ``vocab_parallel_cross_entropy``, DTensor's ``loss_parallel``; fp32.
    """
    if not plan.divides_loss:
        return []
    kind, num_bytes = CollectiveKind.ALL_REDUCE, 4.0 * shape.tokens
    names = ("loss.maximum", "loss.sum", "loss.label")
    return [Exchange(name, Axis.TENSOR, kind, None, num_bytes) for name in names]


def _logits_region(stack: Stack) -> Region:
    return Region.TENSOR if stack.parallel_loss else Region.WHOLE
