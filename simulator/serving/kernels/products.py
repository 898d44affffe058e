"""How long does a product of few activations with many weights take?"""

from __future__ import annotations

import math

from simulator.serving.kernels.parameters import FORMATS, OVERLAP, ProductFit, share_left

_TILES = ((16, 128), (16, 256), (32, 128), (32, 256), (64, 64), (64, 128), (128, 128), (128, 256))
"""Output tiles (rows, columns). Source: CTA shapes of CUTLASS for sm80 to sm100;
those of fewer than 64 rows are Marlin's."""
_LARGEST = _TILES[-1]
_SPLITS = (1, 2, 4, 8)
"""Ways to cut the inner dimension, at the price of fp32 partial sums."""


def product_s(
    fit: ProductFit,
    weight_format: str,
    m: int,
    n: int,
    k: int,
    *,
    peak_flop_per_s: float,
    bandwidth_bytes_per_s: float,
    sm_count: int,
    relative_rate: float = 1.0,
) -> float:
    """Seconds of an (m, k) activation times a (k, n) weight, scaling of activations included.

    Tiles and waves as in :func:`simulator.cost.gemm.gemm_s`, with parameters of this regime.
    Ignores what the cache keeps from one step to the next.

    Args:
        fit: Parameters of the family and format.
        weight_format: Format of the weights.
        m: Tokens.
        n: Outputs.
        k: Inputs.
        peak_flop_per_s: Dense rate of the format.
        bandwidth_bytes_per_s: Of the device's memory.
        sm_count: Streaming multiprocessors.
        relative_rate: Of their matrix units, over those that the family was measured with.
    """
    form = FORMATS[weight_format]
    moved_bytes = form.activation_bytes * m * k + form.weight_bytes * n * k + 2.0 * m * n
    bytes_per_s = fit.memory_efficiency * bandwidth_bytes_per_s
    sm_flop_per_s = fit.efficiency * peak_flop_per_s / sm_count
    best = math.inf
    for rows, columns in _TILES:
        if rows < form.least_rows:
            continue
        share = _overhead(fit, *_LARGEST) / _overhead(fit, rows, columns)
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        for split in _SPLITS:
            waves = math.ceil(tiles * split / sm_count)
            flop = 2.0 * rows * columns * (k / split + fit.k_ramp)
            compute_s = waves * flop / (sm_flop_per_s * share)
            times = (1.0 + fit.k_ramp * split / k) / (fit.efficiency * share)
            compute_s *= share_left(times, relative_rate)
            partial_bytes = 8.0 * split * m * n if split > 1 else 0.0
            memory_s = (moved_bytes + partial_bytes) / bytes_per_s
            best = min(best, compute_s**OVERLAP + memory_s**OVERLAP)
    return float(fit.floor_s + best ** (1.0 / OVERLAP))


def _overhead(fit: ProductFit, rows: int, columns: int) -> float:
    return 1.0 + fit.tile_half / 2.0 * (1.0 / rows + 1.0 / columns)
