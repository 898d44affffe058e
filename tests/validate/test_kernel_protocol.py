from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.tables.kernel_rows import repeated_calls, under_power_limit_s
from tests.tiny import GEMM, tiny_profile


def limited_profile(held_share: float, boost_s: float):
    changes = {"held_share": held_share, "boost_s": boost_s}
    return tiny_profile(gemm={"bf16": GEMM.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("notes", "calls"),
    [
        ("framework linear timed with CUDA graphs; tflops derived", 12),
        ("cuBLASLt, random init, 10000 warm-up; time derived", 10000),
        ("best shape found; theory 989 TFLOPS", 1),
        ("", 1),
    ],
)
def test_how_often_a_product_was_repeated_back_to_back_is_in_the_notes(notes, calls):
    assert repeated_calls(notes) == calls


def test_calls_that_end_before_the_power_limit_is_felt_keep_their_time():
    profile = limited_profile(held_share=0.5, boost_s=12e-3)
    assert under_power_limit_s(profile, "bf16", 1e-3, calls=12) == 1e-3


def test_half_of_the_work_in_boost_and_half_at_half_the_rate_takes_four_thirds():
    """The mean rate of the calls, by work: 1/2 + 1/2 x 1/2."""
    profile = limited_profile(held_share=0.5, boost_s=6e-3)
    assert under_power_limit_s(profile, "bf16", 1e-3, calls=12) == pytest.approx(4e-3 / 3)


def test_a_single_call_never_feels_the_power_limit():
    profile = limited_profile(held_share=0.5, boost_s=0.0)
    assert under_power_limit_s(profile, "bf16", 1.0, calls=1) == 1.0


@given(share=st.floats(0.1, 1), boost_s=st.floats(0, 1), cool_s=st.floats(1e-6, 1))
def test_the_power_limit_costs_nothing_at_best_and_the_held_share_at_worst(share, boost_s, cool_s):
    hot_s = under_power_limit_s(limited_profile(share, boost_s), "bf16", cool_s, calls=12)
    assert cool_s * (1 - 1e-9) <= hot_s <= cool_s / share * (1 + 1e-9)
