"""How long does a matrix product take by a table of measured ones?

A profile may name products that were measured on its system (``kernels.table``). A product among
them takes the modelled time, times what the nearest measured ones took over theirs: a measured
shape comes out as it was measured, and waves and tiles between two of them are the model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Concatenate, ParamSpec, cast

from simulator.cost import gemm
from simulator.cost.rates import without_sustained_clock
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import MeasuredProduct, Precision

_NEAR = 1.0
"""Distance in base-2 logarithms of m, n, k and batch up to which a measured product tells of
another: a factor of two. Assumption."""

_MOST_NEIGHBOURS = 8
"""Measured products that one is predicted from, at most. Assumption: those further away say less
of it, and weigh little."""

P = ParamSpec("P")


def as_the_table_says(
    modelled_s: Callable[Concatenate[HardwareProfile, int, int, int, P], float],
) -> Callable[Concatenate[HardwareProfile, int, int, int, P], float]:
    """The same time of a product, corrected by the system's table where that has a say."""

    def product_s(
        profile: HardwareProfile, m: int, n: int, k: int, /, *args: P.args, **options: P.kwargs
    ) -> float:
        batch = cast("int", options.get("batch", 1))
        precision = cast("Precision", options.get("precision", "bf16"))
        seconds = modelled_s(profile, m, n, k, *args, **options)
        ratio = measured_over_modelled(profile, m, n, k, batch=batch, precision=precision)
        return seconds if ratio is None else seconds * ratio

    return product_s


def measured_over_modelled(
    profile: HardwareProfile, m: int, n: int, k: int, *, batch: int, precision: Precision
) -> float | None:
    """Measured over modelled time of the nearest products of the system's table.

    The geometric mean over the nearest eight, weighted by the inverse square of their distance
    (Shepard, Proc. ACM 1968). None where the table has no say: a side or the batch lies beyond
    all that were measured in this format, or no product within a factor of two was. Measured
    times count as those of single calls on a cool device.
    """
    import numpy as np

    table = profile.kernels.table
    known = None if table is None else table.by_precision.get(precision)
    if known is None:
        return None
    wanted = np.log2([m, n, k, batch])
    lowest, highest = known.log_shapes.min(axis=0), known.log_shapes.max(axis=0)
    distances = np.linalg.norm(known.log_shapes - wanted, axis=1)
    if (wanted < lowest).any() or (wanted > highest).any() or distances.min() > _NEAR:
        return None
    cool = without_sustained_clock(profile)
    if distances.min() == 0:
        same = [known.products[i] for i in np.flatnonzero(distances == 0)]
        return _geometric_mean([(_ratio(each, cool), 1.0) for each in same])
    near = [i for i in np.argsort(distances)[:_MOST_NEIGHBOURS] if distances[i] <= _NEAR]
    return _geometric_mean(
        [(_ratio(known.products[i], cool), float(distances[i]) ** -2) for i in near]
    )


def _ratio(product: MeasuredProduct, cool: HardwareProfile) -> float:
    modelled_s = gemm.gemm_s(
        cool, product.m, product.n, product.k, batch=product.batch, precision=product.precision,
        aligned=gemm.rows_are_aligned((product.n, product.k), product.precision),
    )  # fmt: skip
    return product.seconds / modelled_s


def _geometric_mean(weighted: list[tuple[float, float]]) -> float:
    total = math.fsum(weight for _, weight in weighted)
    return math.exp(math.fsum(weight * math.log(value) for value, weight in weighted) / total)
