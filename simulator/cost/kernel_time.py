"""How long does one kernel take, alone on one device?

One file per family; this one is the door to them all.

=======================  ==================================================
:mod:`.gemm`             matrix products, single, batched and grouped
:mod:`.measured_products`  those of a system's own table
:mod:`.attention`        fused attention, forward and backward
:mod:`.rates`            all that only moves bytes; peaks and element sizes
=======================  ==================================================

What own runs say of all kernels of a system, ``kernels.slowness``, is multiplied here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from simulator.cost import attention, gemm, rates
from simulator.cost.gemm import LARGEST_TILE_SIDE, rows_are_aligned
from simulator.cost.measured_products import as_the_table_says
from simulator.cost.rates import (
    ELEMENT_BYTES,
    activation_precision,
    many_tensors_efficiency,
    output_bytes,
    peak_flop_per_s,
    without_sustained_clock,
)
from simulator.described.cluster.hardware import HardwareProfile

__all__ = [
    "ELEMENT_BYTES",
    "LARGEST_TILE_SIDE",
    "activation_precision",
    "attention_s",
    "gemm_s",
    "grouped_gemm_s",
    "many_tensors_efficiency",
    "memory_bound_s",
    "output_bytes",
    "peak_flop_per_s",
    "row_sum_s",
    "rows_are_aligned",
    "softmax_s",
    "strided_s",
    "widening_s",
    "without_sustained_clock",
]

P = ParamSpec("P")


def _as_own_runs_say(
    seconds: Callable[Concatenate[HardwareProfile, P], float],
) -> Callable[Concatenate[HardwareProfile, P], float]:
    """The same time, as slow as the system's own runs were."""

    def slowed(profile: HardwareProfile, /, *args: P.args, **kwargs: P.kwargs) -> float:
        return profile.kernels.slowness * seconds(profile, *args, **kwargs)

    return slowed


attention_s = _as_own_runs_say(attention.attention_s)
gemm_s = _as_own_runs_say(as_the_table_says(gemm.gemm_s))
grouped_gemm_s = _as_own_runs_say(gemm.grouped_gemm_s)
memory_bound_s = _as_own_runs_say(rates.memory_bound_s)
row_sum_s = _as_own_runs_say(rates.row_sum_s)
softmax_s = _as_own_runs_say(rates.softmax_s)
strided_s = _as_own_runs_say(rates.strided_s)
widening_s = _as_own_runs_say(rates.widening_s)
