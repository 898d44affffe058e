"""What did a benchmark time beside the kernel, and how hot did it run the device?

Tables of kernels differ in how they were taken. What a row's notes say of it is part of the
prediction: kernels that were timed along, and a power limit that was felt because one product
was repeated back to back for long.
"""

from __future__ import annotations

import re

from simulator.cost.kernel_time import ELEMENT_BYTES, memory_bound_s
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import GemmModel, Precision

_GRAPH_CALLS = 12
"""Calls back to back of a row taken with CUDA graphs: three to warm up, three of the graph and
six that count (ai-dynamo/aiconfigurator, collector/helper.py, benchmark_with_power)."""

_QUANTISE_KERNELS = 5
"""Kernels that scale an input to fp8: magnitude, maximum (two stages), scale, cast.

Source: assumption, the plain operations of dynamic per-tensor scaling.
"""


def quantise_s(profile: HardwareProfile, elements: int) -> float:
    """Seconds in which a framework's fp8 linear scales its 16-bit input.

    The input is read twice and written once.
    """
    extra_kernels_s = (_QUANTISE_KERNELS - 1) * memory_bound_s(profile, 0.0)
    efficiency = profile.common.quantise_share * profile.kernels.memory_efficiency
    return extra_kernels_s + memory_bound_s(profile, (2 + 2 + 1) * elements, efficiency=efficiency)


def cache_append_s(
    profile: HardwareProfile, tokens: int, heads: int, kv_heads: int, head_dim: int
) -> float:
    """Seconds in which a serving engine turns projections into what attention reads.

    Queries, keys and values of 16 bits are read once, rotated, and written once, keys and values
    into the cache (TensorRT-LLM, applyBiasRopeUpdateKVCache).
    """
    elements = tokens * head_dim * (heads + 2 * kv_heads)
    return memory_bound_s(profile, 2.0 * ELEMENT_BYTES["bf16"] * elements)


def repeated_calls(notes: str) -> int:
    """Calls back to back of which a product's time is the mean; 1 where the row does not say.

    Benchmarks that clear the cache or write to memory between calls leave the device time to
    cool, and count as single calls.
    """
    if "timed with CUDA graphs" in notes:
        return _GRAPH_CALLS
    warm_up = re.search(r"(\d+) warm-up", notes)
    return int(warm_up.group(1)) if warm_up else 1


def under_power_limit_s(
    profile: HardwareProfile, precision: Precision, cool_s: float, calls: int
) -> float:
    """Mean seconds of a product that takes ``cool_s``, repeated ``calls`` times back to back.

    A device keeps its boost clock until its power limit is felt, and a share of it after that.
    Ignores that the memory part of a product keeps its rate.

    Source:
        Parameters fitted, see ``boost`` and ``held_share`` of the profile; the shape is an
        assumption.
    """
    model: GemmModel = profile.kernels.gemm[precision]
    busy_s = calls * cool_s
    if calls == 1 or busy_s <= model.boost_s:
        return cool_s
    in_boost = model.boost_s / busy_s
    return cool_s / (in_boost + (1.0 - in_boost) * model.held_share)
