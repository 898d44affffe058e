"""Tiles of one size over the rows of all experts, against counting their visits one by one."""

from __future__ import annotations

import itertools
import random

import pytest

from simulator.cost.kernel_time import grouped_gemm_s
from simulator.program.layer.pieces import GroupedGemm, Split
from simulator.program.price.grouped_tiles import in_whole_tiles
from tests.tiny import KERNELS, tiny_profile

TILED = KERNELS.model_copy(update={"grouped_tile_rows": 512, "grouped_tile_columns": 1024})


def product(rows: float = 2048.0, n: int = 2048, k: int = 1024, **fields: object) -> GroupedGemm:
    return GroupedGemm("up", 192, rows, n, k, Split.COLUMN, tensors=("gate", "up"), **fields)


def visits(sizes: list[int], tile: int) -> int:
    """Pairs of a tile and an expert that has rows in it."""
    ends = list(itertools.accumulate(sizes))
    spans = zip([0, *ends], ends, strict=False)
    return sum((end - 1) // tile - start // tile + 1 for start, end in spans if end > start)


def test_all_experts_but_the_first_visit_the_tile_in_which_the_one_before_ends():
    """Of sizes drawn at random one in 512 begins where a tile does."""
    draw = random.Random(0)
    counted = []
    for _ in range(50):
        ends = sorted(draw.sample(range(1, 192 * 2048), 191))
        sizes = [end - start for start, end in itertools.pairwise([0, *ends, 192 * 2048])]
        counted.append(512 * visits(sizes, 512))
    computed = in_whole_tiles(product(), TILED)
    assert sum(computed.loads) * computed.rows == pytest.approx(192 * 2048 + 191 * 512)
    assert sum(counted) / len(counted) == pytest.approx(sum(computed.loads), rel=1e-3)


def test_an_expert_without_rows_visits_no_tile():
    loads = (2.0, 0.0) * 96
    computed = in_whole_tiles(product(loads=loads), TILED)
    assert computed.loads[1] == 0.0
    assert sum(computed.loads) == pytest.approx(192 * 2048 + 95 * 512)


def test_each_weight_is_computed_in_whole_tiles_of_its_own():
    """Gate and up of 1536 columns take two tiles of 1024 each; 1000 inner rows are one tile."""
    computed = in_whole_tiles(product(n=2 * 1536, k=1000), TILED)
    assert (computed.n, computed.k) == (2 * 2048, 1000)


@pytest.mark.parametrize("kernels", [KERNELS, TILED])
def test_experts_with_a_capacity_and_kernels_with_tiles_for_each_group_compute_what_they_need(
    kernels,
):
    needed = product(is_batched=kernels is TILED)
    assert in_whole_tiles(needed, kernels) is needed


def test_masked_rows_take_as_long_as_others():
    """Per expert 512 rows and 3/4 of a tile of 512 take as long as 896 rows do."""
    profile = tiny_profile(grouped_tile_rows=512)
    four = GroupedGemm("down", 4, 512.0, 256, 256, Split.ROW, tensors=("down",))
    computed = in_whole_tiles(four, profile.kernels)
    rows = [int(load * computed.rows) for load in computed.loads]
    assert rows == [896] * 4
    assert grouped_gemm_s(profile, rows, 256, 256) > grouped_gemm_s(profile, [512] * 4, 256, 256)
