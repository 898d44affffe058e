"""What pieces take that are no plain products and no plain streams."""

from __future__ import annotations

import pytest

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.load import load_profile
from simulator.program.layer.pieces import Gemm, GroupedGemm, MemoryBound, Split
from simulator.program.price.piece_time import PieceTimer
from tests.tiny import tiny_profile

ROWS = 24640
MEASURED_TFLOP_PER_S = {
    (3072, 5120): {"gemm_s": (231.1, 197.0, 220.7), "input_gradient_s": (229.3, 211.9, 219.6),
                   "weight_gradient_s": (237.3, 162.1, 188.3)},
    (5120, 1536): {"gemm_s": (219.3, 196.3, 210.7), "input_gradient_s": (234.6, 205.4, 205.1),
                   "weight_gradient_s": (226.2, 162.2, 198.8)},
}  # fmt: skip
"""Products of 24640 rows, (n, k): dense, for 40 experts in one kernel, and for 20. Source:
SimuMax, ``configs/system/a100_pcie.json``, efficiencies of 312 TFLOP/s."""


def timer(profile: HardwareProfile) -> PieceTimer:
    return PieceTimer(profile, "bf16", {}, "best", False, 0.0)


def test_products_for_many_experts_are_slower_than_dense_ones_as_is_measured():
    """By 14 % on average on an A100; of that the waves of tiles explain a few percent.

    What else slows one kernel for many products is not modelled: one source alone measured it.
    """
    times = timer(load_profile("a100-pcie-80gb"))
    measured, predicted = [], []
    for (n, k), directions in MEASURED_TFLOP_PER_S.items():
        for direction, (dense, *grouped) in directions.items():
            seconds = getattr(times, direction)
            for experts, rate in zip((40, 20), grouped, strict=True):
                product = GroupedGemm("up", experts, ROWS // experts, n, k, Split.NONE)
                measured.append(rate / dense)
                predicted.append(seconds(Gemm("up", ROWS, n, k)) / seconds(product))
    mean_measured, mean_predicted = (sum(each) / len(each) for each in (measured, predicted))
    assert mean_measured == pytest.approx(0.864, abs=0.001)
    assert mean_predicted == pytest.approx(mean_measured, abs=0.13)


def test_an_experts_kernel_of_its_own_runs_at_the_rate_of_a_dense_product():
    times = timer(tiny_profile())
    dense = times.gemm_s(Gemm("up", 256, 512, 1024))
    apart = times.gemm_s(GroupedGemm("up", 4, 256, 512, 1024, Split.NONE, launches=4))
    assert apart == pytest.approx(4 * dense)


@pytest.mark.parametrize("backward", [False, True])
def test_rows_are_picked_up_at_the_measured_share_of_the_bandwidth(backward):
    """1 GB/s and a floor of 1 us. Source: see ``permute_efficiency``."""
    sort = MemoryBound("sort", 0.7e9, 0.7e9, scatters_rows=True)
    seconds = timer(tiny_profile()).memory_bound_s(sort, backward=backward)
    assert seconds == pytest.approx(1.0 + 1e-6)


@pytest.mark.parametrize("backward", [False, True])
def test_fused_kernels_sort_tokens_at_half_the_bandwidth_in_both_directions(backward):
    """1 GB/s and a floor of 1 us. Source: SimuMax's configuration of B200, measured."""
    sort = MemoryBound("sort", 0.5e9, 0.5e9, scatters_rows=True, scatters_fused=True)
    seconds = timer(tiny_profile()).memory_bound_s(sort, backward=backward)
    assert seconds == pytest.approx(1.0 + 1e-6)
