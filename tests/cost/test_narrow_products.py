"""8- and 4-bit products against those of Transformer Engine's GEMM Profiling Tutorial (B300).

The 12 products of a layer of 15,872 tokens, hidden size 4096, intermediate size 16384, in ms:
operands cast before, and, in `autocast`, both cast before each product.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.cost.kernel_time import ELEMENT_BYTES, gemm_s
from simulator.described.load import load_profile
from simulator.program.layer.pieces import MemoryBound
from simulator.program.price.piece_time import PieceTimer

TOKENS, LINEAR = 15_872, ((4096, 12_288), (4096, 4096), (4096, 16_384), (16_384, 4096))
ALONE_MS = {"fp8": 6.812, "mxfp8": 7.161, "nvfp4": 3.764}
AUTOCAST_MS = {"mxfp8": 8.984, "nvfp4": 6.453}
B300 = load_profile("b300-sxm")


def _products_s(profile, precision):
    shapes = [
        shape for k, n in LINEAR for shape in ((TOKENS, n, k), (TOKENS, k, n), (k, n, TOKENS))
    ]
    return sum(gemm_s(profile, *shape, precision=precision) for shape in shapes)


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_products_scaled_by_blocks_are_as_much_quicker_than_fp8_as_measured(precision):
    predicted = _products_s(B300, precision) / _products_s(B300, "fp8")
    assert predicted == pytest.approx(ALONE_MS[precision] / ALONE_MS["fp8"], rel=0.01)


def test_without_a_number_of_their_own_they_follow_their_peaks():
    unknown = {"mxfp8_over_fp8": None, "nvfp4_over_fp8": None}
    kernels = B300.kernels.model_copy(update=unknown)
    bare = B300.model_copy(update={"kernels": kernels})
    assert _products_s(bare, "mxfp8") < _products_s(B300, "mxfp8")
    assert _products_s(bare, "nvfp4") < _products_s(B300, "nvfp4") / 1.4


def test_casts_to_four_bits_take_as_long_as_those_of_transformer_engine():
    """Each product's operands are read for their maximum, read again and written in one layout."""
    elements = 2 * sum(TOKENS * (k + n) + k * n for k, n in LINEAR)
    moved = elements * (2 + 2 + ELEMENT_BYTES["nvfp4"])
    timer = PieceTimer(B300, "nvfp4", {}, "best", 0.0, 0.0)
    cast = MemoryBound("cast", moved, 0.0, to_four_bits=True)
    measured_s = (AUTOCAST_MS["nvfp4"] - ALONE_MS["nvfp4"]) * 1e-3
    assert timer.memory_bound_s(cast, backward=False) == pytest.approx(measured_s, rel=0.05)
    streamed = replace(cast, to_four_bits=False)
    assert timer.memory_bound_s(streamed, backward=False) < 0.7 * measured_s


@pytest.mark.parametrize(
    ("size", "four_bits", "eight_bits"),
    [(8192, 8155.9, 3286.0), (16384, 8640.3, 3309.0), (32768, 8555.1, 3271.0)],
)
def test_products_of_four_bits_on_gb300_are_more_than_twice_as_fast_as_those_of_eight(
    size, four_bits, eight_bits
):
    """Azure, ND GB300 v6, random numbers after 10,000 products [TFLOP/s]."""
    profile = load_profile("gb300-nvl72")
    slow_s, fast_s = (
        gemm_s(profile, size, size, size, precision=precision) for precision in ("fp8", "nvfp4")
    )
    assert slow_s / fast_s == pytest.approx(four_bits / eight_bits, rel=0.1)
