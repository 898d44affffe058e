from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.kernel_time import attention_s
from simulator.cost.rates import without_sustained_clock
from simulator.described.load import load_profile
from tests.tiny import ATTENTION, TINY_FAST, tiny_profile, with_bandwidth

SHAPE: dict[str, Any] = {
    "batch": 4, "heads": 8, "kv_heads": 8, "seq_q": 1024, "seq_kv": 1024, "head_dim": 128,
}  # fmt: skip
COOL = {"sustained_clock": 1.0}
FLOP = 4 * 4 * 8 * 1024 * 1024 * 128
"""Two products per score, two FLOP per multiply-add, over the whole square."""


def seconds(profile=TINY_FAST, **changes: Any) -> float:
    """Time without the floor."""
    return attention_s(profile, **{"causal": False, **SHAPE, **changes}) - 1e-6


def fast(**changes: Any):
    attention = ATTENTION.model_copy(update=changes)
    return with_bandwidth(tiny_profile(flash_attention=attention), 1e30)


def test_full_attention_takes_four_flop_per_score_and_head_size():
    assert seconds() == pytest.approx(FLOP / 1e12)


def test_backward_does_five_products_where_forward_does_two():
    assert seconds(backward=True) == pytest.approx(2.5 * seconds())


@pytest.mark.parametrize(("backward", "passes"), [(False, 1), (True, 2)])
def test_attention_that_waits_for_memory_moves_its_tensors_once_and_backward_twice(
    backward, passes
):
    """One tile of 128 queries and 512 keys, two query heads for one of keys; 0.1 GB/s, 16 bits."""
    slow = with_bandwidth(tiny_profile(), 1e8)
    shape = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 128, "seq_kv": 512, "head_dim": 64}
    queries_and_outputs, keys_and_values = 2 * 128 * (64 + 64), 512 * (64 + 64)
    num_bytes = 2 * passes * (queries_and_outputs + keys_and_values)
    assert seconds(slow, **shape, backward=backward) == pytest.approx(num_bytes / 1e8)


def test_a_causal_mask_halves_the_scores_except_half_of_the_diagonal_tiles():
    assert seconds(causal=True) == pytest.approx(seconds() * (1024 + 128) / (2 * 1024))


def test_queries_that_see_a_longer_past_do_not_lose_it_to_the_mask():
    assert seconds(causal=True, seq_q=128, seq_kv=4096) == seconds(seq_q=128, seq_kv=4096)


def test_values_of_another_size_change_only_the_second_product():
    assert seconds(v_head_dim=64) == pytest.approx(seconds() * (128 + 64) / 256)
    forward, backward = seconds(), seconds(v_head_dim=64, backward=True)
    assert backward == pytest.approx(forward * (3 * 128 + 2 * 64) / 256)


def test_softmax_weighs_more_on_small_heads():
    profile = fast(softmax_dim=64.0)
    assert seconds(profile, head_dim=128) == pytest.approx(seconds() * (256 + 64) / 256)
    assert seconds(profile, head_dim=32) == pytest.approx(seconds(head_dim=32) * 2)


def test_starting_a_tile_costs_its_key_positions():
    assert seconds(fast(kv_ramp=512.0)) == pytest.approx(1.5 * seconds())


def test_the_tail_adds_a_share_of_the_longest_tile():
    """256 tiles on 4 SMs: 64 tiles each, plus half a tile."""
    assert seconds(fast(tail=0.5)) == pytest.approx(seconds() * 64.5 / 64)


def test_one_query_tile_cannot_use_more_than_one_multiprocessor():
    single = seconds(batch=1, heads=1, kv_heads=1, seq_q=128)
    assert single == seconds(batch=4, heads=1, kv_heads=1, seq_q=128)


def test_grouped_queries_save_traffic_only():
    slow_memory = tiny_profile()
    bytes_saved = 2 * 4 * 7 * 1024 * (128 + 128)
    saved_s = seconds(slow_memory) - seconds(slow_memory, kv_heads=1)
    assert saved_s == pytest.approx(bytes_saved / 1e9)
    assert seconds(kv_heads=1) == seconds()


def test_attention_keeps_more_of_its_rate_than_products_do():
    """It draws 0.9 of their power, so a limit that leaves products 0.45 leaves it 0.5."""
    throttled = with_bandwidth(tiny_profile(sustained_clock=0.45), 1e30)
    assert seconds(throttled) == pytest.approx(2 * seconds())
    assert seconds(tiny_profile(sustained_clock=0.95)) == seconds(tiny_profile())


def test_flash_2_is_the_best_kernel_unless_the_profile_tells_them_apart():
    older = ATTENTION.model_copy(update={"forward_efficiency": 0.5})
    profile = with_bandwidth(tiny_profile(flash_attention_2=older), 1e30)
    assert seconds(kernel="flash-2") == seconds()
    assert seconds(profile, kernel="flash-2") == pytest.approx(2 * seconds(profile))


@given(
    batch=st.integers(1, 8),
    heads=st.integers(1, 32),
    seq=st.integers(1, 9000),
    head_dim=st.sampled_from([64, 96, 128, 192, 256]),
    causal=st.booleans(),
    backward=st.booleans(),
    more=st.integers(1, 500),
)
def test_more_work_in_any_dimension_is_never_faster(
    batch, heads, seq, head_dim, causal, backward, more
):
    profile = tiny_profile(
        flash_attention=ATTENTION.model_copy(update={"tail": 0.7, "kv_ramp": 90.0})
    )

    def total(batch=batch, heads=heads, seq=seq, head_dim=head_dim):
        return attention_s(
            profile, batch=batch, heads=heads, kv_heads=heads, seq_q=seq, seq_kv=seq,
            head_dim=head_dim, causal=causal, backward=backward,
        )  # fmt: skip

    base = total()
    assert total(batch=batch + 1) >= base
    assert total(heads=heads + 1) >= base
    assert total(seq=seq + more) >= base
    assert total(head_dim=head_dim + more) >= base
    assert base >= 1e-6


def test_backward_may_wait_less_at_its_end_than_forward():
    uneven = fast(tail=0.5, backward_tail=0.0)
    assert seconds(uneven) == pytest.approx(seconds() * 64.5 / 64)
    assert seconds(uneven, backward=True) == pytest.approx(seconds(backward=True))


def test_heads_wider_than_128_slow_backward_only():
    wide = fast(wide_backward_share=0.5)
    shape = {"head_dim": 192, "v_head_dim": 128}
    assert seconds(wide, backward=True) == seconds(backward=True)
    assert seconds(wide, backward=True, **shape) == pytest.approx(
        2 * seconds(backward=True, **shape)
    )
    assert seconds(wide, **shape) == seconds(**shape)


def test_flash_1_draws_less_power_than_its_successor():
    """At 0.72 of the clock it keeps 0.72 / 0.8 of its rate, its successor 0.72 / 0.9."""
    cool, hot = (with_bandwidth(tiny_profile(sustained_clock=clock), 1e30) for clock in (1.0, 0.72))
    assert seconds(hot, kernel="flash-2") == pytest.approx(seconds(cool, kernel="flash-2") / 0.8)
    assert seconds(hot, kernel="flash-1") == pytest.approx(seconds(cool, kernel="flash-1") / 0.9)


@pytest.mark.parametrize("backward", [False, True])
def test_memory_efficient_attention_is_a_share_of_flash_2(backward):
    """On an A100 it takes 1.05 and 1.55 times as long as flash 1, which runs at 0.52 of flash 2.

    Both passes together: 7 / (2 * 1.05 / 0.52 + 5 * 1.55 / 0.52) = 0.37 of flash 2's rate.
    """
    profile = with_bandwidth(tiny_profile(), 1e30)
    flash_2 = seconds(profile, kernel="flash-2", backward=backward)
    efficient = seconds(profile, kernel="efficient", backward=backward)
    assert flash_2 / efficient == pytest.approx(0.37, abs=0.015)


def test_memory_efficient_attention_of_32_bit_numbers_is_three_products_of_tf32_ones():
    """FlashAttention 2's of 16 bits at 312 TFLOP/s, TF32 ones at 156: six times as long."""
    profile = with_bandwidth(load_profile("a100-sxm-80gb"), 1e30)
    floor_s = profile.kernels.flash_attention.floor_s
    cool = profile.model_copy(update={"kernels": profile.kernels.model_copy(update=COOL)})
    wide_s, narrow_s = (
        attention_s(cool, **SHAPE, causal=False, precision=name, kernel=kernel) - floor_s
        for name, kernel in (("fp32", "efficient"), ("bf16", "flash-2"))
    )
    assert wide_s == pytest.approx(6.0 * narrow_s)


@pytest.mark.parametrize(
    ("precision", "head_dim", "measured_s"),
    [("fp16", 64, 8.7e-3), ("fp16", 128, 15.8e-3), ("fp32", 64, 26.2e-3), ("fp32", 128, 51.2e-3)],
)
def test_the_only_fused_attention_of_a_v100_is_as_quick_as_its_authors_measured(
    precision, head_dim, measured_s
):
    """1,024 heads of 1,024 tokens, forward (xFormers, pull request 445)."""
    profile = without_sustained_clock(load_profile("v100-sxm2-32gb"))
    shape = {"batch": 1024, "heads": 1, "kv_heads": 1, "seq_q": 1024, "seq_kv": 1024}
    taken_s = attention_s(profile, **shape, head_dim=head_dim, causal=False, precision=precision)
    assert taken_s == pytest.approx(measured_s, rel=0.06)


@pytest.mark.parametrize(
    ("profile", "shape", "causal", "backward", "measured_flop_per_s"),
    [
        ("rtx-4090", (8, 16, 2048, 64), False, False, 168.9e12),
        ("rtx-4090", (8, 16, 2048, 128), True, False, 151.2e12),
        ("rtx-4090", (8, 16, 2048, 128), False, True, 124.6e12),
        ("rtx-4090", (8, 16, 2048, 64), True, True, 96.5e12),
        ("rtx-5090-32gb", (8, 16, 4096, 128), False, False, 177.2e12),
        ("rtx-5090-32gb", (8, 16, 4096, 128), True, True, 164.1e12),
        ("rtx-3090-24gb", (4, 32, 4096, 64), True, False, 53.1e12),
        ("rtx-3090-24gb", (8, 16, 2048, 128), False, True, 53.5e12),
    ],
)
def test_attention_on_geforce_cards_is_as_quick_as_users_measured(
    profile, shape, causal, backward, measured_flop_per_s
):
    """The references of their profiles; causal ones count half of the scores."""
    batch, heads, seq, dim = shape
    size: dict[str, Any] = {
        "batch": batch,
        "heads": heads,
        "kv_heads": heads,
        "seq_q": seq,
        "seq_kv": seq,
    }
    cool = without_sustained_clock(load_profile(profile))
    taken_s = attention_s(cool, **size, head_dim=dim, causal=causal, backward=backward)
    products = (5 if backward else 2) / (2 if causal else 1)
    flop_per_s = products * 2 * batch * heads * seq**2 * dim / taken_s
    assert flop_per_s == pytest.approx(measured_flop_per_s, rel=0.16)
