"""How long do the experts of one layer take on one rank?"""

from __future__ import annotations

import math

from simulator.serving.kernels.parameters import FORMATS, ExpertFit

_JOIN = 3.0
_HIDDEN_BYTES, _FFN_BYTES = 8.0, 6.0
"""Bytes that a routed token moves for each number of the residual stream and of its expert's
MLP: gathered, written, read and summed in 16 bits (counted)."""


def touched_experts(experts: int, top_k: int, tokens: float) -> float:
    """Experts of a layer that at least one of some tokens visits, routing being even.

    Source: the expectation of a draw of ``top_k`` out of ``experts`` for each token.
    """
    return float(experts * (1.0 - (1.0 - top_k / experts) ** tokens))


def experts_s(
    fit: ExpertFit,
    weight_format: str,
    tokens: float,
    *,
    experts: int,
    top_k: int,
    ranks: int,
    hidden: int,
    ffn_hidden: int,
    matrices: int,
    peak_flop_per_s: float,
    bandwidth_bytes_per_s: float,
) -> float:
    """Seconds of the grouped products of one layer's routed experts on one rank.

    Args:
        fit: Parameters of the family and format.
        weight_format: Format of the weights.
        tokens: Tokens that all ranks route together.
        experts: Routed experts of the layer.
        top_k: Experts that each token visits.
        ranks: Ranks over which whole experts lie.
        hidden: Width of the residual stream.
        ffn_hidden: Width of an expert on this rank.
        matrices: Matrices of an expert: 3 with a gate, else 2.
        peak_flop_per_s: Dense rate of the format.
        bandwidth_bytes_per_s: Of the device's memory.
    """
    touched = touched_experts(experts, top_k, tokens) / ranks
    rows = tokens * top_k / ranks
    numel = matrices * hidden * ffn_hidden
    weight_bytes = touched * numel * FORMATS[weight_format].weight_bytes
    moved_bytes = weight_bytes + rows * (_HIDDEN_BYTES * hidden + _FFN_BYTES * ffn_hidden)
    per_expert = rows / touched
    padded = touched * fit.tile_rows * math.ceil(per_expert / fit.tile_rows)
    memory_s = moved_bytes / (fit.memory_efficiency * bandwidth_bytes_per_s)
    flop = 2.0 * padded * numel * (1.0 + fit.width_half / ffn_hidden)
    compute_s = flop / (fit.efficiency * peak_flop_per_s)
    return float(fit.floor_s + (memory_s**_JOIN + compute_s**_JOIN) ** (1.0 / _JOIN))
