"""How many tokens does the cache of a replica hold?

What an engine may use of a GPU, less weights, the activations of the largest step, captured
graphs and the driver's context, is cache; the rank with the least decides for all.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.errors import DoesNotFitError
from simulator.serving.defaults import engine_defaults
from simulator.serving.described import Deployment
from simulator.serving.schedulers.scheduler import Limits
from simulator.serving.shapes import adapter_numel, cache_bytes_per_token, weight_bytes
from simulator.units import format_bytes

_GRAPH_BYTES = 0.7 * 2**30
"""Memory of captured graphs and communication buffers (assumed: vLLM logs 0.5 to 1.5 GiB)."""
_ADAPTER_BYTES = 2.0
_LOGIT_BYTES = 6.0
"""Of one logit: 16 bits, and 32 bits for sampling."""


class MemoryPlan(NamedTuple):
    """Bytes of one rank.

    Attributes:
        total_bytes: Of the device.
        weights_bytes: Weights, those of loaded adapters included.
        activations_bytes: Of the largest step.
        other_bytes: Graphs, buffers and the driver.
        cache_bytes: What is left for keys and values.
        block_tokens: Tokens of a block.
        blocks: Blocks of the whole replica.
        host_blocks: Blocks of host memory that it may swap to.
    """

    total_bytes: float
    weights_bytes: float
    activations_bytes: float
    other_bytes: float
    cache_bytes: float
    block_tokens: int
    blocks: int
    host_blocks: int


def memory_plan(deployment: Deployment, limits: Limits) -> MemoryPlan:
    """Who has which bytes of a rank.

    Some engines take their share of what is free after weights and activations, the others of the
    whole device.

    Raises:
        DoesNotFitError: There is no room for a single block.
    """
    known, device = engine_defaults(deployment), deployment.profile.device
    weights = weight_bytes(deployment)
    if deployment.adapters:
        weights += _ADAPTER_BYTES * deployment.adapters.loaded * adapter_numel(deployment)
    activations = _activation_bytes(deployment, limits)
    other = device.context_bytes + _GRAPH_BYTES
    share = deployment.memory_share or known.memory_share
    if known.shares_free_memory:
        cache = share * (device.memory_bytes - weights - activations - other)
    else:
        cache = share * device.memory_bytes - weights - activations - other
    block_tokens = deployment.block_tokens or known.block_tokens
    per_block = block_tokens * cache_bytes_per_token(deployment)
    blocks = deployment.kv_blocks or int(cache / per_block) * deployment.attention_dp
    host_blocks = int(deployment.swap_bytes / per_block) * deployment.attention_dp
    if blocks < 1:
        missing, whole = format_bytes(per_block - cache), format_bytes(device.memory_bytes)
        room = f"each GPU's {whole}"
        if not known.shares_free_memory and share < 1:
            used = format_bytes(share * device.memory_bytes)
            room = f"the {used} that {deployment.engine} uses of {room}"
        raise DoesNotFitError(
            f"the weights take {format_bytes(weights)}, and all else but the cache "
            f"{format_bytes(activations + other)}, of {room}, and leave no room for the cache; "
            f"{missing} are missing: use more GPUs per replica "
            f"({_wider(deployment, weights, cache)}) or smaller weights "
            "(--set deployment.weights=fp8)"
        )
    return MemoryPlan(
        device.memory_bytes,
        weights,
        activations,
        other,
        max(0.0, cache),
        block_tokens,
        blocks,
        host_blocks,
    )


def _wider(deployment: Deployment, weights: float, cache: float) -> str:
    """Degrees to change; tensor parallelism by its option where there are the GPUs for it.

    Args:
        deployment: As it is.
        weights: Of each rank [B].
        cache: What is left of a rank, less than nothing if more is needed [B].
    """
    tp = 2 * deployment.tp
    while weights * deployment.tp / tp >= cache + weights and tp < deployment.gpus:
        tp *= 2
    fits = weights * deployment.tp / tp < cache + weights
    groups = deployment.pp * deployment.attention_dp
    return f"--set deployment.tp={tp}" if fits and tp * groups <= deployment.gpus else "tp, pp"


def _activation_bytes(deployment: Deployment, limits: Limits) -> float:
    """Of one layer with the most tokens, and of the logits of all requests (16 bits)."""
    model, tp, groups = deployment.model, deployment.tp, deployment.attention_dp
    width = 4 * model.hidden + 3 * model.ffn_hidden / tp
    tokens = limits.max_tokens / groups
    logits = min(limits.max_requests, limits.max_tokens) / groups * model.vocab * _LOGIT_BYTES
    return 2.0 * tokens * width + logits / tp
