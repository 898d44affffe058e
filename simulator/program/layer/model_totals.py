"""How many parameters has a model, and how many operations does training need, by which convention?

MFU counts what the model needs: six per matrix parameter and token, and attention over
the *whole* sequence, masked half included (PaLM, arXiv 2204.02311, appendix B), or in a
layer with a window over the window (``calculate_gemma2_tflops_training_per_device`` of
AI-Hypercomputer/maxtext). Norms, activations, embedding lookups and modules that predict further
tokens are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from simulator.described.huggingface.parameter_counts import ParameterCount
from simulator.described.model import Model
from simulator.program.layer.layer_kinds import layer_kinds, layer_parts, layer_tensors
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.model_ends import (
    embedding_tensors,
    head_tensors,
    multi_token_tensors,
)
from simulator.program.layer.tensors import ParameterTensor

_PARTS = {"norm": "norms", "shared_expert": "shared_experts", "ssm": "recurrence"}
"""Parts by the first word of their tensors' names, where it is another."""

_FORWARD_AND_BACKWARD = 3
"""Backward needs twice the products of forward."""


def model_flop_per_token(model: Model, seq_len: int, *, masked: bool = True) -> float:
    """FLOP that one token of training needs, forward and backward: 6 N + 12 l a d s.

    Args:
        model: The network.
        seq_len: Tokens of a sequence.
        masked: Whether scores count that a causal mask leaves out. Without them, query i has i
            keys, or as many as its window; chunks of a scan (Mamba-2) always count in full.
    """
    attention = _attention_flop(model, seq_len, masked=masked)
    forward = 2.0 * _matrix_numel(model) + attention + _ends_flop(model)
    return _FORWARD_AND_BACKWARD * forward


def matrix_flop(model: Model, tensors: Iterable[ParameterTensor]) -> float:
    """What one token needs forward for its products with some tensors of a layer [FLOP]."""
    return 2.0 * _active_matrix_numel(model, tensors)


def layer_flop(
    model: Model, kind: LayerKind, tensors: Iterable[ParameterTensor], seq_len: int
) -> float:
    """What one token needs forward for a whole layer with these tensors [FLOP]."""
    return matrix_flop(model, tensors) + _layer_flop(model, kind, seq_len, masked=True)


def _matrix_numel(model: Model) -> float:
    kinds = layer_kinds(model)
    return math.fsum(
        kinds.count(kind) * _active_matrix_numel(model, layer_tensors(model, kinds.index(kind)))
        for kind in dict.fromkeys(kinds)
    )


def _active_matrix_numel(model: Model, tensors: Iterable[ParameterTensor]) -> float:
    """Elements of the matrices that one token is multiplied with."""
    experts = model.experts
    return math.fsum(
        tensor.numel * (experts.top_k / experts.count if experts and tensor.is_routed else 1.0)
        for tensor in tensors
        if not tensor.is_vector
    )


def _attention_flop(model: Model, seq_len: int, *, masked: bool) -> float:
    return math.fsum(
        _layer_flop(model, kind, seq_len, masked=masked) for kind in layer_kinds(model)
    )


def _layer_flop(model: Model, kind: LayerKind, seq_len: int, *, masked: bool) -> float:
    """FLOP of a layer's scores and weighted values, of one token forward."""
    keys = min(kind.window or seq_len, seq_len)
    whole = math.fsum(part.flop(model, keys) for part in layer_parts(kind))
    return whole if masked else whole * _seen_share(model, kind, seq_len, keys)


def _seen_share(model: Model, kind: LayerKind, seq_len: int, keys: int) -> float:
    """Share of a layer's scores that a causal mask leaves: query i sees i keys at most."""
    if not model.causal or kind.mixer == "mamba2":
        return 1.0
    seen = keys * (keys + 1) / 2 + (seq_len - keys) * keys
    return seen / (seq_len * keys)


def _ends_flop(model: Model) -> float:
    """What one token needs forward for its logits, and to and from a narrower embedding [FLOP].

    Scores of classes are left out: a sequence has one product with them.
    """
    width = model.embedding_dim or model.hidden
    projections = 4.0 * model.hidden * width if model.embedding_dim else 0.0
    return 2.0 * model.vocab * width * (not model.classes) + projections


def parameter_count(model: Model, *, with_multi_token: bool = False) -> int:
    """Parameters of the model; tied embeddings count once.

    Args:
        model: The network.
        with_multi_token: Count the multi-token-prediction modules too. Published
            sizes leave them out (DeepSeek-V3 is called a 671B model without them).
    """
    tensors = (*_all_tensors(model), *(multi_token_tensors(model) if with_multi_token else ()))
    return sum(tensor.numel for tensor in tensors)


def parameter_count_by_part(model: Model) -> ParameterCount:
    """Parameters that an optimizer trains, by part; multi-token-prediction modules do not count.

    The balancing term of a router (arXiv 2408.15664) is a buffer, since no gradient reaches it. A
    router with a trained bias is one whose experts have biases too (gpt-oss).
    """
    whole: Counter[str] = Counter()
    active: Counter[str] = Counter()
    for tensor in _all_tensors(model):
        if tensor.name == "router.bias" and not model.mlp_bias:
            continue
        part = _part(tensor)
        whole[part] += tensor.numel
        active[part] += _active_numel(model, tensor)
    return ParameterCount(model.name, whole, active)


def _part(tensor: ParameterTensor) -> str:
    if tensor.name.startswith("head.norm"):
        return "final_norm"
    first = tensor.name.partition(".")[0]
    return _PARTS.get(first, first)


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
