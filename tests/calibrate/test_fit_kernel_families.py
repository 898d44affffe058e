"""Fits to many GPUs at once leave what was published alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.make.fit.fit_kernel_families import unpublished
from reports.make.fit.kernel_families import FAMILY_BLOCKS, families_with_a_prior
from simulator.calibrate.gpu.fit_kernels import Block, Fit, written
from simulator.described.documents import data_folder, names_in, parse_yaml

TEXT = """
kernels:
  gemm:
    fp16:
      source: {kind: published, reference: "a paper"}
      efficiency: 0.5
      tail: 0.3
    fp8:
      source: {kind: assumed, reference: "as others"}
      efficiency: {value: 0.4, source: {kind: published, reference: "a paper"}}
      tail: 0.3
  memory_efficiency: {value: 0.7, source: {kind: published, reference: "a paper"}}
  row_efficiency: {value: 0.6, source: {kind: fitted, reference: "a table"}}
"""

PRODUCTS = next(block for block in FAMILY_BLOCKS if block.path == ("gemm", "fp16"))
STREAMS = next(block for block in FAMILY_BLOCKS if "memory_efficiency" in block.prior)


def after_fit(block: Block, path: tuple[str, ...], values: Mapping[str, float]) -> dict[str, Any]:
    fit = unpublished(Fit("a-gpu", block, values, (0.1,)), TEXT, path)
    kernels: dict[str, Any] = parse_yaml(written(TEXT, path, fit, "fitted", "a table"))["kernels"]
    return kernels


def test_a_published_block_is_not_fitted_over() -> None:
    products = after_fit(PRODUCTS, ("gemm", "fp16"), {"efficiency": 0.9, "tail": 0.9})["gemm"]
    assert products == parse_yaml(TEXT)["kernels"]["gemm"]


def test_a_published_number_stays_in_a_block_that_is_fitted() -> None:
    products = after_fit(PRODUCTS, ("gemm", "fp8"), {"efficiency": 0.9, "tail": 0.9})["gemm"]
    assert products["fp8"]["efficiency"]["value"] == 0.4
    assert products["fp8"]["tail"] == 0.9
    assert products["fp8"]["source"]["kind"] == "fitted"


def test_a_published_rate_of_memory_stays_beside_fitted_ones() -> None:
    kernels = after_fit(STREAMS, (), {"memory_efficiency": 0.9, "row_efficiency": 0.9})
    assert kernels["memory_efficiency"]["value"] == 0.7
    assert kernels["row_efficiency"]["value"] == 0.9


def test_families_whose_kernels_are_not_those_of_gpus_are_not_fitted() -> None:
    names = names_in(data_folder("hardware_profiles") / "architectures")
    assert set(names) - set(families_with_a_prior(names)) == {"gaudi", "tpu", "xe-hpc"}
