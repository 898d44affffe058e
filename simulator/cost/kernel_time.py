"""How long does one kernel take, alone on one device?

One file per family; this one is the door to them all.

=======================  ==================================================
:mod:`.gemm`             matrix products, single, batched and grouped
:mod:`.attention`        fused attention, forward and backward
:mod:`.rates`            all that only moves bytes; peaks and element sizes
=======================  ==================================================
"""

from __future__ import annotations

from simulator.cost.attention import attention_s
from simulator.cost.gemm import gemm_s, grouped_gemm_s, rows_are_aligned
from simulator.cost.rates import (
    ELEMENT_BYTES,
    activation_precision,
    memory_bound_s,
    output_bytes,
    peak_flop_per_s,
    strided_s,
)

__all__ = [
    "ELEMENT_BYTES",
    "activation_precision",
    "attention_s",
    "gemm_s",
    "grouped_gemm_s",
    "memory_bound_s",
    "output_bytes",
    "peak_flop_per_s",
    "rows_are_aligned",
    "strided_s",
]
