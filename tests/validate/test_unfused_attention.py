"""Time of attention in several kernels over that of the bytes that these move."""

from __future__ import annotations

from functools import partial

import pytest

from simulator.validate.unfused_attention import unfused_attention_s
from tests.tiny import GEMM, tiny_profile

SEQ, DIM = 4096, 64
SCORES_S, TENSOR_S = 2 * SEQ * SEQ / 1e9, 2 * SEQ * DIM / 1e9
"""Reading the scores of a head, or a tensor of it, once at 1 GB/s."""


@pytest.fixture
def seconds():
    """Of one head where only bytes cost: arithmetic is for nothing."""
    free = {"efficiency": 1.0, "tile_half": 0.0, "tile_start_s": 0.0, "floor_s": 0.0}
    profile = tiny_profile(
        gemm={"bf16": GEMM.model_copy(update=free)}, memory_floor_s=0.0, cache_speedup=1.0
    )
    peak = profile.device.peak.model_copy(update={"bf16": 1e18})
    fast = {"peak": peak, "boost_clock_hz": 1e18}
    device = profile.device.model_copy(update=fast)
    profile = profile.model_copy(update={"device": device})
    one = {"batch": 1, "heads": 1, "seq": SEQ, "head_dim": DIM}
    return partial(unfused_attention_s, profile, "bf16", **one)


def test_forward_moves_scores_four_times_and_copies_what_it_multiplies(seconds):
    """Written, read and written by the softmax, read; copies of three tensors, and products."""
    expected_s = 4 * SCORES_S + (3 * 2 + 2 * 2) * TENSOR_S
    assert seconds(causal=False, backward=False) == pytest.approx(expected_s, rel=1e-3)


def test_a_mask_reads_and_writes_the_scores_once_more(seconds):
    more_s = seconds(causal=True, backward=False) - seconds(causal=False, backward=False)
    assert more_s == pytest.approx(2 * SCORES_S)


def test_backward_moves_scores_ten_times(seconds):
    """Once for each of four products, three times each to multiply by the result and to sum."""
    expected_s = 10 * SCORES_S + (4 * 2 + 2 * 2 + 6) * TENSOR_S
    assert seconds(causal=False, backward=True) == pytest.approx(expected_s, rel=1e-3)
