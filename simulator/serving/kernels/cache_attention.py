"""How long does attention to a cache take: one query each, or a chunk of a prompt?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.serving.kernels.parameters import DecodeFit, LatentFit, PrefillFit, joined_s

_QUERY_TILE = 128
_KEYS_PER_UNIT = 128
"""Keys that a thread block takes at once (flash decoding splits longer caches)."""
_UNITS_PER_SM = 2
_STREAM_EFFICIENCY = 0.8
"""Share of the memory bandwidth at which chunks reread their cache (assumed)."""


def decode_s(
    fit: DecodeFit,
    requests: float,
    context_tokens: float,
    *,
    kv_heads: int,
    head_bytes: float,
    bandwidth_bytes_per_s: float,
    sm_count: int,
) -> float:
    """Seconds of one layer's attention of one new token for each of some requests.

    Bytes of the cache at a share of the bandwidth, or the walk of the units of work over keys
    where they are few, plus a cost for every head. Contexts may differ: only their sum counts.

    Args:
        fit: Parameters of the family.
        requests: How many.
        context_tokens: Tokens that they attend to, all together.
        kv_heads: Heads of keys on this rank.
        head_bytes: Bytes of one token's key and value of one head.
        bandwidth_bytes_per_s: Of the device's memory.
        sm_count: Streaming multiprocessors.
    """
    if not requests:
        return 0.0
    heads = requests * kv_heads
    keys = context_tokens * kv_heads
    memory_s = keys * head_bytes / (fit.memory_efficiency * bandwidth_bytes_per_s)
    units = min(_UNITS_PER_SM * sm_count, heads * max(1.0, keys / heads / _KEYS_PER_UNIT))
    walk_s = keys / units * fit.key_s
    return fit.floor_s + heads * fit.head_s + joined_s(memory_s, walk_s)


def latent_decode_s(
    fit: LatentFit,
    requests: float,
    context_tokens: float,
    *,
    heads: int,
    token_bytes: float,
    latent_dim: int,
    value_dim: int,
    peak_flop_per_s: float,
    bandwidth_bytes_per_s: float,
) -> float:
    """Seconds of one layer's latent attention (MLA) of one new token for each of some requests.

    All heads read the same compressed cache, so it is as often computing as memory that limits.
    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1, with absorbed projections.
    """
    if not requests:
        return 0.0
    memory_s = context_tokens * token_bytes / (fit.memory_efficiency * bandwidth_bytes_per_s)
    flop = 2.0 * context_tokens * max(heads, 16) * (latent_dim + value_dim)
    compute_s = flop / (fit.efficiency * peak_flop_per_s)
    return fit.floor_s + joined_s(memory_s, compute_s)


def prefill_s(
    fit: PrefillFit,
    chunks: Sequence[tuple[int, float]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    head_bytes: float,
    peak_flop_per_s: float,
    bandwidth_bytes_per_s: float,
    sm_count: int,
) -> float:
    """Seconds of one layer's attention of chunks to themselves and to the tokens before them.

    One launch computes the chunks of all requests.

    Args:
        fit: Parameters of the family.
        chunks: Of each its tokens, and those of the same request before it.
        heads: Query heads on this rank.
        kv_heads: Heads of keys on this rank.
        head_dim: Mean of the sizes of keys and values.
        head_bytes: Bytes of one token's key and value of one head.
        peak_flop_per_s: Dense 16-bit rate.
        bandwidth_bytes_per_s: Of the device's memory.
        sm_count: Streaming multiprocessors.
    """
    if not chunks:
        return 0.0
    pairs, blocks, tokens, cached = 0.0, 0, 0, 0.0
    for new, before in chunks:
        pairs += new * (before + (new + _QUERY_TILE) / 2.0)
        blocks += math.ceil(new / _QUERY_TILE)
        tokens += new
        cached += before
    flop = 4.0 * heads * head_dim * pairs
    tiles = heads * blocks
    compute_s = flop / (fit.efficiency * peak_flop_per_s) * (1.0 + fit.tail * sm_count / tiles)
    moved_bytes = kv_heads * head_bytes * (cached + tokens) + 4.0 * heads * head_dim * tokens
    return fit.floor_s + compute_s + moved_bytes / (_STREAM_EFFICIENCY * bandwidth_bytes_per_s)
