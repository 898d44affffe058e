"""How long do the experts of one layer take on one rank?"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from simulator.serving.kernels.parameters import FORMATS, ExpertFit, joined_s, share_left

_TILE_ROWS = (8, 16, 32, 64, 128)
"""Heights of tiles. Source: vLLM, fused_moe.py, ``get_default_config`` (16 to 128 by rows per
expert); TensorRT-LLM, CUTLASS MoE with operands swapped (8 and more)."""
_HIDDEN_BYTES, _FFN_BYTES = 8.0, 6.0
"""Bytes that a routed token moves for each number of the residual stream and of its expert's
MLP: gathered, written, read and summed in 16 bits (counted)."""

_ELSEWHERE_HIDDEN_BYTES, _ELSEWHERE_FFN_BYTES = 4.0, 10.0
"""The same of a token whose expert lies on another rank, where a kernel runs over all tokens: zeros
are written and read in place of its products.

Source: vLLM 0.14, fused_moe.py: ``fused_moe_kernel`` writes zeros for experts that the map does not
hold; the activation and the sum over a token's experts run over all rows."""

_POWER_LAW_DRAWS = 16


def touched_experts(experts: int, top_k: int, tokens: float) -> float:
    """Experts of a layer that at least one of some tokens visits, routing being even.

    Source: the expectation of a draw of ``top_k`` out of ``experts`` for each token.
    """
    return float(experts * (1.0 - (1.0 - top_k / experts) ** tokens))


def _computed_rows(rows: float, tile_half: float, times: float, relative_rate: float) -> float:
    """Rows that an expert with so many is computed with, in tiles of the best height.

    The last tile is half empty on average. A tile of few rows reads weights into the
    multiprocessor for little: with ``tile_half`` rows half of the time is lost.
    """
    best = math.inf
    for tile in _TILE_ROWS:
        overhead = 1.0 + tile_half / tile
        left = share_left(times * overhead, relative_rate)
        best = min(best, max(tile, rows + (tile - 1.0) / 2.0) * overhead * left)
    return best


def loads_by_chance(
    tokens: float, *, experts: int, top_k: int, ranks: int, groups: int = 1, picked: int = 1
) -> list[tuple[float, float]]:
    """Experts of the busiest rank that tokens visit by chance, and the rows of these together.

    All ranks wait for the busiest one. With even routing, the rows of a rank and the experts that
    these visit spread as draws do; the most of several ranks lies as many spreads above the mean
    as the highest of several normal numbers.

    Args:
        tokens: Tokens that all ranks route together.
        experts: Routed experts of the layer.
        top_k: Experts that each token visits.
        ranks: Ranks over which whole experts lie.
        groups: Equal groups of experts that the router picks among first.
        picked: Of these, how many a token's experts are in.
    """
    own = experts / ranks
    touched, rows = touched_experts(experts, top_k, tokens) / ranks, tokens * top_k / ranks
    of_a_token = _rows_variance(experts, top_k, ranks, groups, picked)
    above = expected_highest(ranks) * math.sqrt(of_a_token * ranks / top_k)
    most_touched = touched + above * math.sqrt(touched * (1.0 - touched / own))
    most_rows = rows + above * math.sqrt(rows)
    return [(min(own, most_touched), most_rows)]


def _rows_variance(experts: int, top_k: int, ranks: int, groups: int, picked: int) -> float:
    """Variance of the rows that one token has on a rank.

    The token picks groups, then experts in these: both are draws without replacement.
    """
    among = picked * experts / groups
    if among <= 1.0:
        return 0.0
    if ranks <= groups:
        spread = (groups - picked) / (groups - 1.0) if groups > 1 else 0.0
        squared_share = (1.0 - 1.0 / ranks) * spread / (ranks * picked) + 1.0 / ranks**2
    else:
        squared_share = groups / (picked * ranks**2)
    drawn = top_k * (1.0 / ranks - squared_share) * (among - top_k) / (among - 1.0)
    return drawn + top_k**2 * (squared_share - 1.0 / ranks**2)


def expected_highest(count: int) -> float:
    """Expected highest of so many standard normal numbers.

    Source: G. Blom, Statistical Estimates and Transformed Beta-Variables (1958), within 2 %.
    """
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def experts_s(
    fit: ExpertFit,
    weight_format: str,
    loads: Iterable[tuple[float, float]],
    *,
    rows_elsewhere: float = 0.0,
    hidden: int,
    ffn_hidden: int,
    matrices: int,
    peak_flop_per_s: float,
    bandwidth_bytes_per_s: float,
    relative_rate: float = 1.0,
) -> float:
    """Seconds of the grouped products of one layer's routed experts on one rank.

    Args:
        fit: Parameters of the family and format.
        weight_format: Format of the weights.
        loads: Numbers of experts that have as many rows each, with the rows of these together.
        rows_elsewhere: Rows of experts on other ranks that the kernel runs over too.
        hidden: Width of the residual stream.
        ffn_hidden: Width of an expert on this rank.
        matrices: Matrices of an expert: 3 with a gate, else 2.
        peak_flop_per_s: Dense rate of the format.
        bandwidth_bytes_per_s: Of the device's memory.
        relative_rate: Of its matrix units, over those that the family was measured with.
    """
    counted = list(loads)
    touched = math.fsum(count for count, _ in counted)
    rows = math.fsum(of_these for _, of_these in counted)
    numel = matrices * hidden * ffn_hidden
    moved_bytes = touched * numel * FORMATS[weight_format].weight_bytes
    moved_bytes += rows * (_HIDDEN_BYTES * hidden + _FFN_BYTES * ffn_hidden)
    moved_bytes += rows_elsewhere * (
        _ELSEWHERE_HIDDEN_BYTES * hidden + _ELSEWHERE_FFN_BYTES * ffn_hidden
    )
    memory_s = moved_bytes / (fit.memory_efficiency * bandwidth_bytes_per_s)
    width = 1.0 + fit.width_half / ffn_hidden
    computed = math.fsum(
        count * _computed_rows(some / count, fit.tile_half, width / fit.efficiency, relative_rate)
        for count, some in counted
    )
    flop = 2.0 * computed * numel * width
    compute_s = flop / (fit.efficiency * peak_flop_per_s)
    return fit.floor_s + joined_s(memory_s, compute_s)


def busiest_rank_rows(
    tokens: int, experts: int, top_k: int, ranks: int, exponent: float
) -> Sequence[Sequence[float]]:
    """Rows of each expert of the busiest rank, in several draws of a power law.

    Args:
        tokens: Tokens that all ranks route together.
        experts: Routed experts of the layer.
        top_k: Experts that each token visits.
        ranks: Ranks over which whole experts lie.
        exponent: Of the density of an expert's share of the tokens, not 1.

    Source:
        ai-dynamo/aiconfigurator, collector/helper.py, ``_generate_power_law_distribution``: shares
        between 1 and 0.8 tokens, or 0.01 and 2 where rows are fewer than experts; no expert gets
        a token twice, what is beyond goes to those with fewest rows; the rank with most rows is
        measured. Its draws are not known; these are of a fixed seed.
    """
    draw, power = random.Random(0), 1.0 - exponent
    least, most = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    low, width = least**power, most**power - least**power
    found = []
    for _ in range(_POWER_LAW_DRAWS):
        shares = [(width * draw.random() + low) ** (1.0 / power) for _ in range(experts)]
        row = tokens * top_k / math.fsum(shares)
        rows = _at_most_a_token_each([round(row * share) for share in shares], tokens)
        size = experts // ranks
        found.append(max((rows[at : at + size] for at in range(0, experts, size)), key=sum))
    return found


def _at_most_a_token_each(rows: Sequence[int], tokens: int) -> Sequence[float]:
    """Rows of experts that get no token twice; what is beyond fills up those with fewest."""
    kept = [min(of_one, tokens) for of_one in rows]
    beyond, ascending = sum(rows) - sum(kept), sorted(kept)
    for count in range(1, len(kept) + 1):
        level = (sum(ascending[:count]) + beyond) / count
        if count == len(kept) or level <= ascending[count]:
            break
    return [max(float(of_one), level) for of_one in kept]
