"""What does a grouped product compute whose tiles know no groups?

Copies of tokens lie one expert after another. A kernel that cuts all of them into tiles of one size
visits a tile once for each expert that has rows in it, and computes all of it each time. Of ``g``
experts all but the first begin inside a tile, so ``m`` rows take ``m / tile + g - 1`` visits: the
fewer rows an expert has, the more of them are masked. Sides of a weight are computed in whole
tiles, too, each weight by a product of its own.

Ignores: experts that happen to begin where a tile does; kernels that tune their tiles to sizes.

Source: ``make_group_metadata`` of megablox (jax/experimental/pallas/ops/tpu/megablox/gmm.py, and
tokamax's ``pallas_mosaic_tpu_kernel.py``): "tiles_m <= group_tiles.sum() <= tiles_m + num_groups -
1"; ``gmm`` and ``tgmm`` there for ``pl.cdiv`` of columns and inner rows.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.described.cluster.kernel_parameters import KernelModel
from simulator.program.layer.pieces import GroupedGemm


def in_whole_tiles(product: GroupedGemm, kernels: KernelModel) -> GroupedGemm:
    """The product of as many rows and columns as are computed.

    Args:
        product: Of experts that have as many rows as their tokens need.
        kernels: Of the device, whose tiles may have one size.
    """
    if product.is_batched or not kernels.grouped_tile_rows:
        return product
    rows = [product.rows * load for load in product.loads or [1.0] * product.groups]
    filled = sum(1 for each in rows if each > 0)
    masked = min(kernels.grouped_tile_rows, math.fsum(rows)) * (filled - 1) / max(1, filled)
    weights = max(1, len(product.tensors))
    columns = weights * _whole(math.ceil(product.n / weights), kernels.grouped_tile_columns)
    computed = tuple(each + masked if each > 0 else 0.0 for each in rows)
    inner = _whole(product.k, kernels.grouped_tile_columns)
    return replace(product, rows=1.0, loads=computed, n=columns, k=inner)


def _whole(size: int, tile: int) -> int:
    return math.ceil(size / tile) * tile if 0 < tile < size else size
