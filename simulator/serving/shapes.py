"""What does one rank hold and compute of a model that is served?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from simulator.program.layer.layer_kinds import layer_kinds, layer_tensors
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.model_ends import embedding_tensors, head_tensors
from simulator.program.layer.tensors import (
    ParameterTensor,
    TensorRole,
    matrix_shape,
    tensor_shard_numel,
)
from simulator.serving.described import Deployment
from simulator.serving.kernels.parameters import FORMATS

_CACHE_BYTES = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625}
_SIXTEEN_BITS = 2.0


class Product(NamedTuple):
    """A weight as one rank multiplies with it: inputs ``k``, outputs ``n``."""

    n: int
    k: int
    weight_format: str


class LayerShape(NamedTuple):
    """A kind of layer on one rank.

    Attributes:
        layers: Layers of the kind in the whole model.
        window: Tokens that it attends to at most; 0 is all.
        attention: Products of attention.
        mlp: Products of a dense MLP or of shared experts, and of the router.
        has_experts: Whether it has routed experts.
    """

    layers: int
    window: int
    attention: tuple[Product, ...]
    mlp: tuple[Product, ...]
    has_experts: bool


def layer_shapes(deployment: Deployment) -> tuple[LayerShape, ...]:
    """The kinds of layers of a deployment's model, as one rank sees them."""
    kinds = layer_kinds(deployment.model)
    first = {kind: index for index, kind in reversed(list(enumerate(kinds)))}
    counts = Counter(kinds)
    return tuple(_shape(deployment, kind, first[kind], count) for kind, count in counts.items())


def _shape(deployment: Deployment, kind: LayerKind, index: int, count: int) -> LayerShape:
    tensors = [t for t in layer_tensors(deployment.model, index) if not t.is_vector]
    attention = [t for t in tensors if t.in_mixer]
    mlp = [t for t in tensors if not t.in_mixer and not t.is_routed]
    return LayerShape(
        count,
        kind.window,
        tuple(_fused(_products(deployment, attention))),
        tuple(_fused(_products(deployment, mlp))),
        any(t.is_routed for t in tensors),
    )


def _products(deployment: Deployment, tensors: list[ParameterTensor]) -> Iterator[Product]:
    for tensor in tensors:
        if len(tensor.shape) < 2:
            continue
        _count, rows, columns = matrix_shape(tensor, deployment.tp)
        if tensor.name in ("attention.key", "attention.value") and _is_latent(deployment):
            # Absorbed into per-head products of few inputs; their bytes count.
            yield Product(rows, columns, weight_format(deployment, tensor))
            continue
        n, k = (columns, rows) if tensor.inputs_first else (rows, columns)
        yield Product(n, k, weight_format(deployment, tensor))


def _fused(products: Iterator[Product]) -> Iterator[Product]:
    """Products that read the same input are one: query, key and value; gate and up."""
    outputs: dict[tuple[int, str], int] = {}
    for product in products:
        key = (product.k, product.weight_format)
        outputs[key] = outputs.get(key, 0) + product.n
    for (k, form), n in outputs.items():
        yield Product(n, k, form)


def weight_format(deployment: Deployment, tensor: ParameterTensor) -> str:
    """Format of one tensor's weights.

    Embedding, head, norms and routers stay in 16 bits. Of 4-bit models with experts only MLPs
    are in 4 bits, in MXFP4 the routed ones alone. The 8 bits of DeepSeek's models have a scale for
    each block, as ``fp8_block`` has.

    Source: the published checkpoints of DeepSeek-R1 (nvidia, FP4), gpt-oss and DeepSeek-V3; of
    models without experts AMD's Llama-3.1-405B (MXFP4).
    """
    form: str = deployment.weights
    if form in ("fp16", "bf16", "fp32") or tensor.is_vector or tensor.role is TensorRole.ROUTER:
        return form if form in ("fp16", "bf16", "fp32") else "bf16"
    is_attention = tensor.in_mixer
    if form == "mxfp4" and not tensor.is_routed and deployment.model.experts is not None:
        return "bf16"
    if form == "nvfp4" and is_attention and _is_latent(deployment):
        return "bf16"
    if form == "fp8" and _is_latent(deployment):
        return "fp8_block"
    return form


def weight_bytes(deployment: Deployment) -> float:
    """Bytes of weights on the fullest rank: the whole model over its stages, ends included."""
    model, tp = deployment.model, deployment.tp
    layers = 0.0
    for kind, count in Counter(layer_kinds(model)).items():
        index = layer_kinds(model).index(kind)
        for tensor in layer_tensors(model, index):
            numel = _shard_numel(deployment, tensor)
            layers += count * numel * FORMATS[weight_format(deployment, tensor)].weight_bytes
    ends = (*embedding_tensors(model), *head_tensors(model))
    end_bytes = math.fsum(_SIXTEEN_BITS * tensor_shard_numel(tensor, tp) for tensor in ends)
    return layers / deployment.pp + end_bytes / min(deployment.pp, 2)


def _shard_numel(deployment: Deployment, tensor: ParameterTensor) -> int:
    if not tensor.is_routed:
        return tensor_shard_numel(tensor, deployment.tp)
    ranks = deployment.tp * deployment.attention_dp
    return tensor_shard_numel(tensor, ranks // deployment.ep, deployment.ep)


def adapter_numel(deployment: Deployment) -> float:
    """Numbers of one adapter on a rank: two matrices beside each product but routed experts'."""
    adapters = deployment.adapters
    if adapters is None:
        return 0.0
    kinds = layer_kinds(deployment.model)
    numel = 0.0
    for kind, count in Counter(kinds).items():
        for tensor in layer_tensors(deployment.model, kinds.index(kind)):
            if len(tensor.shape) >= 2 and not (
                tensor.is_routed or tensor.role is TensorRole.ROUTER
            ):
                matrices, rows, columns = matrix_shape(tensor, deployment.tp)
                numel += count * matrices * adapters.rank * (rows + columns)
    return numel / deployment.pp


def cache_element_bytes(deployment: Deployment) -> float:
    """Bytes of one number of the cache."""
    return _CACHE_BYTES[deployment.cache]


def kv_heads_per_rank(deployment: Deployment) -> int:
    """Heads of keys that a rank keeps; with more ranks than heads, copies."""
    return max(1, -(-deployment.model.kv_heads // deployment.tp))


def cache_bytes_per_token(deployment: Deployment) -> float:
    """Bytes that one token of a request takes on a rank, over the layers of its stage.

    Layers with a window keep no more than that and are left out.
    """
    model = deployment.model
    layers = sum(1 for kind in layer_kinds(model) if not kind.window) or model.layers
    latent = model.latent_attention
    if latent is not None:
        numbers = latent.kv_lora_rank + latent.qk_rope_head_dim
    else:
        numbers = 2 * kv_heads_per_rank(deployment) * model.head_dim
    return numbers * cache_element_bytes(deployment) * layers / deployment.pp


def _is_latent(deployment: Deployment) -> bool:
    return deployment.model.latent_attention is not None
