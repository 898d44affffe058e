from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.tables.kernel_rows import KernelRow, Protocol, mean_call_s, protocol_of
from tests.tiny import GEMM, tiny_profile


def limited_profile(joule_per_operation: float, boost_s: float):
    """100 W and 1 TFLOP/s: 0.2 nJ halve the rate."""
    changes = {"joule_per_operation": joule_per_operation, "boost_s": boost_s}
    return tiny_profile(gemm={"bf16": GEMM.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("source", "notes", "calls"),
    [
        ("data/h100_sxm/gemm/trtllm/1.2.0rc5", "timed with CUDA graphs; tflops derived", (6, 6, 5)),
        ("data/gb200/gemm/vllm/0.14.0", "timed with CUDA graphs", (6, 6, 6)),
        ("", "cuBLASLt, random init, 10000 warm-up; time derived", (10000, 1, 1)),
        ("baidu-research/DeepBench:results", "cuBLAS", (1, 400, 1)),
        ("sitar-lab/NeuSight:test/linear.csv", "torch linear", (21, 5, 1)),
        ("", "best shape found; theory 989 TFLOPS", (0, 1, 1)),
        ("", "", (0, 1, 1)),
    ],
)
def test_how_often_a_product_was_repeated_is_said_by_the_notes_or_known_of_the_program(
    source, notes, calls
):
    protocol = protocol_of(KernelRow({"source": source, "notes": notes}))
    assert (protocol.warm_up, protocol.counted, protocol.weights) == calls


@pytest.mark.parametrize(("weight_bytes", "weights"), [(2**16, 5), (2**19, 2), (2**21, 1)])
def test_a_round_of_newer_tables_has_as_many_products_as_have_weights_that_fill_the_cache(
    weight_bytes, weights
):
    """Five at most, of a cache of 1 MiB."""
    notes = {"source": "gemm/trtllm/1.3.0rc20", "notes": "timed with CUDA graphs"}
    assert protocol_of(KernelRow(notes)).on(tiny_profile(), weight_bytes).weights == weights


def test_what_a_program_does_between_calls_is_known():
    liger = {"source": "linkedin/Liger-Kernel:data", "notes": "liger implementation, median"}
    assert protocol_of(KernelRow(liger)).clears_cache
    assert protocol_of(KernelRow({"source": "sitar-lab/NeuSight:test/bmm.csv"})).inner == "n"
    assert protocol_of(KernelRow({"source": "sitar-lab/NeuSight:test/linear.csv"})).inner == "k"


def test_what_a_library_cannot_do_is_known():
    assert not protocol_of(KernelRow({"notes": "DeepGEMM bench"})).cuts_inner
    assert protocol_of(KernelRow({"notes": "cuBLAS"})).cuts_inner


def test_a_repeated_call_finds_its_operands_cached():
    assert Protocol(warm_up=1).read_again_after == 1
    assert Protocol(warm_up=1, weights=5).read_again_after == 5
    assert Protocol().read_again_after == 0


def test_calls_that_end_before_the_power_limit_is_felt_keep_their_time():
    profile = limited_profile(2e-10, boost_s=12e-3)
    assert mean_call_s(profile, "bf16", 1e-3, 1e9, Protocol(0, 12)) == pytest.approx(1e-3)


def test_half_of_the_calls_in_boost_and_half_at_half_the_rate_take_three_halves():
    profile = limited_profile(2e-10, boost_s=6e-3)
    assert mean_call_s(profile, "bf16", 1e-3, 1e9, Protocol(0, 12)) == pytest.approx(1.5e-3)


def test_weights_that_were_never_set_draw_too_little_for_the_power_limit():
    profile = limited_profile(2e-10, boost_s=0.0)
    zeros = Protocol(6, 6, is_random=False)
    assert mean_call_s(profile, "bf16", 1e-3, 1e9, zeros) == pytest.approx(1e-3)


def test_calls_that_warm_up_do_not_count():
    profile = limited_profile(2e-10, boost_s=6e-3)
    assert mean_call_s(profile, "bf16", 1e-3, 1e9, Protocol(6, 6)) == pytest.approx(2e-3)


def test_each_product_of_a_round_heats_the_device():
    profile = limited_profile(2e-10, boost_s=6e-3)
    rounds = Protocol(0, 6, weights=2)
    assert mean_call_s(profile, "bf16", 1e-3, 1e9, rounds) == pytest.approx(1.5e-3)


def test_a_product_that_moves_bytes_most_of_the_time_stays_below_the_power_limit():
    profile = limited_profile(2e-10, boost_s=0.0)
    assert mean_call_s(profile, "bf16", 1e-3, 1e8, Protocol(6, 6)) == pytest.approx(1e-3)


def test_a_clock_on_the_host_sees_no_call_shorter_than_issuing_it():
    profile = limited_profile(0.0, boost_s=0.0)
    assert mean_call_s(profile, "bf16", 1e-6, 1e6, Protocol(1, 9, host_s=5e-6)) == 5e-6


@given(energy=st.floats(0, 1e-9), boost_s=st.floats(0, 1), cool_s=st.floats(1e-6, 1))
def test_the_power_limit_costs_nothing_at_best_and_its_whole_ratio_at_worst(
    energy, boost_s, cool_s
):
    flop = cool_s * 1e12
    held_s = max(cool_s, flop * energy / 100)
    hot_s = mean_call_s(limited_profile(energy, boost_s), "bf16", cool_s, flop, Protocol(6, 6))
    assert cool_s * (1 - 1e-6) <= hot_s <= held_s * (1 + 1e-6)
