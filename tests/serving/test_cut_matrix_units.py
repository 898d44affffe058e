"""Kernels of GPUs that are sold with a part of their matrix units.

Measured times are those of alibaba/InferSim, ``bench_data/gemm/h20/data.csv`` (7505de9b) and
``bench_data/grouped_gemm/decode/h20/data.csv`` (3a607b1d): DeepGEMM with blocks of 8 bits on H20.
Nothing was fitted to them.
"""

from __future__ import annotations

from statistics import median

import pytest

from simulator.described.load import load_profile
from simulator.serving.kernels.parameters import (
    kernel_fits,
    peak_flop_per_s,
    relative_rate,
    share_left,
)
from simulator.serving.kernels.products import product_s
from simulator.serving.kernels.routed_experts import experts_s, touched_experts

H20, FITS = load_profile("h20"), kernel_fits("h20")
RATES = {
    "peak_flop_per_s": peak_flop_per_s(H20, "fp8"),
    "bandwidth_bytes_per_s": H20.device.memory_bandwidth_bytes_per_s,
    "relative_rate": relative_rate(FITS, H20),
}
PRODUCTS_US = {
    (16, 6144, 2048): 10.6, (64, 6144, 2048): 10.7, (256, 6144, 2048): 28.0,
    (4096, 6144, 2048): 384.1, (16, 7168, 5120): 25.0, (128, 7168, 5120): 39.4,
    (512, 7168, 5120): 145.9, (16, 5120, 25600): 74.5, (64, 576, 7168): 10.2,
    (1024, 24576, 4096): 747.5, (16, 24576, 4096): 53.4,
}  # fmt: skip
"""By tokens, outputs and inputs."""
EXPERTS_US = {
    (128, 1, 2048, 768, 16): 200.0, (128, 1, 2048, 768, 128): 375.1,
    (128, 8, 2048, 768, 16): 56.5, (128, 8, 2048, 768, 256): 136.3,
    (128, 1, 4096, 1536, 128): 1275.3, (128, 8, 4096, 1536, 64): 168.1,
}  # fmt: skip
"""Both products, by experts, GPUs, width, width of an expert and tokens of a GPU; top 8."""


@pytest.mark.parametrize(
    ("name", "rate"),
    [("h100-sxm-80gb", 1.0), ("h100-pcie-80gb", 1.0), ("h20", 0.25), ("a40-48gb", 0.5),
     ("a10g-24gb", 0.25), ("rtx-4090", 0.5), ("l40s", 1.0), ("mi300x", 1.0), ("mi250", 1.0)],
)  # fmt: skip
def test_matrix_units_are_cut_in_halves(name, rate):
    assert relative_rate(kernel_fits(name), load_profile(name)) == rate


def test_a_kernel_without_overhead_is_as_much_slower_as_its_matrix_units():
    # It takes 1 at full rate, so 4 at a quarter; with overhead of 3 beside it, 7 and not 16.
    assert 4 * 1 * share_left(1.0, 0.25) == 4.0
    assert 4 * 4 * share_left(4.0, 0.25) == 7.0
    assert share_left(4.0, 1.0) == 1.0


def test_products_of_h20_come_out_as_measured():
    errors = [
        product_s(FITS.products["fp8_block"], "fp8_block", *shape, **RATES,
                  sm_count=H20.device.sm_count) / (1e-6 * took_us) - 1
        for shape, took_us in PRODUCTS_US.items()
    ]  # fmt: skip
    # As if nothing lasted as long, the median is 1.2.
    assert median(map(abs, errors)) < 0.4
    assert max(map(abs, errors)) < 0.7


def test_experts_of_h20_come_out_as_measured():
    errors = []
    for (experts, gpus, hidden, ffn, tokens), took_us in EXPERTS_US.items():
        loads = [(touched_experts(experts, 8, gpus * tokens) / gpus, 8.0 * tokens)]
        took_s = experts_s(
            FITS.experts["fp8_block"], "fp8_block", loads, hidden=hidden, ffn_hidden=ffn,
            matrices=3, **RATES,
        )  # fmt: skip
        errors.append(took_s / (1e-6 * took_us) - 1)
    # Likewise, 1.3.
    assert median(map(abs, errors)) < 0.4
    assert max(map(abs, errors)) < 0.7
