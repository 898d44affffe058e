from __future__ import annotations

import statistics
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.gemm import Tiling, product_bytes
from simulator.cost.kernel_time import (
    gemm_s,
    grouped_gemm_s,
    memory_bound_s,
    rows_are_aligned,
    softmax_s,
    strided_s,
    widening_s,
)
from simulator.cost.rates import sustained_share
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.load import job_from_document, load_profile
from simulator.errors import InputError
from simulator.results.simulation import run_step
from simulator.validate.kernel_errors import without_sustained_clock
from tests.tiny import GEMM, TINY_FAST, tiny_profile, with_bandwidth

TINY = tiny_profile()


SIZE = st.integers(1, 5000)
SMALL = st.integers(1, 8)


def without_floor(**changes: float):
    return with_bandwidth(
        tiny_profile(gemm={"bf16": GEMM.model_copy(update={"floor_s": 0.0, **changes})}), 1e30
    )


def test_a_product_bound_by_memory_takes_the_floor_plus_its_bytes_over_the_bandwidth():
    num_bytes = 2 * (256 * 1 + 1 * 256 + 256 * 256)
    assert gemm_s(TINY, 256, 256, 1) == pytest.approx(1e-6 + num_bytes / 1e9)


def test_a_product_of_whole_waves_takes_the_floor_plus_its_flop_over_the_peak():
    assert gemm_s(TINY_FAST, 1024, 1024, 512) == pytest.approx(1e-6 + 2 * 1024**2 * 512 / 1e12)


def test_one_tile_more_than_multiprocessors_costs_a_second_wave():
    profile = without_floor()
    one_wave = gemm_s(profile, 4 * 64, 32, 1)
    assert one_wave == pytest.approx(4 * 2 * 64 * 32 / 1e12)
    assert gemm_s(profile, 4 * 64 + 1, 32, 1) == pytest.approx(2 * one_wave)


def test_rows_that_do_not_fill_a_tile_cost_a_whole_one():
    profile = without_floor()
    assert gemm_s(profile, 1, 64, 1) == gemm_s(profile, 32, 64, 1)


def test_starting_a_tile_costs_its_time_in_every_wave():
    """64 tiles of 128 x 128 on four SMs: sixteen waves, or half as many of larger tiles."""
    plain, started = without_floor(), without_floor(tile_start_s=1e-5)
    more_s = gemm_s(started, 1024, 1024, 512) - gemm_s(plain, 1024, 1024, 512)
    assert more_s == pytest.approx(8 * 1e-5)


@pytest.mark.parametrize(("tail", "waves"), [(1.0, 2.0), (0.5, 1.625), (0.0, 1.25)])
def test_of_the_idle_part_of_the_last_wave_the_tail_is_waited_for(tail, waves):
    """Five tiles of 64 x 32 on four SMs."""
    one_wave_s = gemm_s(without_floor(), 4 * 64, 32, 1)
    assert gemm_s(without_floor(tail=tail), 5 * 64, 32, 1) == pytest.approx(waves * one_wave_s)


def test_operands_in_the_cache_are_read_as_fast_as_it_is():
    """64 x 64 x 64 in 16 bits is 24 KiB, less than half of a cache of 1 MiB."""
    profile = tiny_profile(cache_speedup=4.0)
    cold, cached = (gemm_s(profile, 64, 64, 64, read_again_after=each) for each in (0, 1))
    assert cold - 1e-6 == pytest.approx(4 * (cached - 1e-6), rel=1e-3)


def test_activations_stay_in_the_cache_while_weights_take_turns():
    """Of 4096 x 16 and 16 x 16, activations and results are all but 512 B of 256.5 KiB."""
    profile = tiny_profile(cache_speedup=4.0)
    first_s, in_turn_s = (gemm_s(profile, 4096, 16, 16, read_again_after=n) for n in (1, 10**6))
    assert in_turn_s - first_s == pytest.approx(512 * (1 - 1 / 4) / 1e9, rel=1e-3)


def test_a_library_that_cuts_no_inner_dimension_leaves_multiprocessors_idle():
    """One tile of 64 x 32: cut in four it would run on all four SMs."""
    whole_s, cut_s = (
        gemm_s(without_floor(), 64, 32, 2**20, tiling=Tiling(cuts_inner=cuts))
        for cuts in (False, True)
    )
    assert whole_s == pytest.approx(4 * cut_s, rel=0.01)


@pytest.mark.parametrize("accumulator_bytes", [2.0, 4.0])
def test_summing_up_the_gradients_of_experts_weights_is_half_exposed_where_the_profile_says_so(
    accumulator_bytes,
):
    """Two sums of 64 x 64 numbers are read and written at 1 GB/s behind far longer products."""

    def seconds(exposed: float) -> float:
        profile = tiny_profile(grouped_results_exposed=exposed)
        rows, k = [64, 64], 2**24
        fast = with_bandwidth(profile, 1e12)
        each = grouped_gemm_s(
            fast, rows, 64, k, accumulate=True, accumulator_bytes=accumulator_bytes
        )
        return float(each)

    summed_bytes = 2 * accumulator_bytes * 2 * 64 * 64
    assert seconds(0.5) - seconds(0.0) == pytest.approx(0.5 * summed_bytes / 1e12, rel=1e-3)


def test_a_grouped_product_by_torch_computes_at_its_share_of_the_librarys_rate():
    fast = with_bandwidth(tiny_profile(torch_grouped_share=0.8), 1e30)
    library_s, torch_s = (
        grouped_gemm_s(fast, [1024, 1024], 1024, 2**14, by_torch=own) for own in (False, True)
    )
    assert torch_s == pytest.approx(library_s / 0.8, rel=1e-3)


def test_torch_writes_where_groups_lie_by_a_kernel_of_its_own_before_their_product():
    slow = tiny_profile(torch_grouped_share=1.0)
    library_s, torch_s = (
        grouped_gemm_s(slow, [8, 8], 64, 64, by_torch=own) for own in (False, True)
    )
    assert torch_s - library_s == pytest.approx(slow.kernels.memory_floor_s)


def test_groups_of_torch_on_b200_take_what_torchao_measured():
    """README of pytorch/ao: 128,000 rows, forward and both gradients, one to eight groups [us].

    Products follow each other without a pause, so the library's are as quick as the power limit
    lets them be, whatever clock long training has.
    """
    profile, errors = without_sustained_clock(load_profile("b200-sxm-180gb")), []
    energy_j, share = profile.kernels.gemm["bf16"].joule_per_operation, 0.78
    assert profile.kernels.torch_grouped_share == share
    for n, k, measured_us in (
        (8192, 5120, (43140, 39488, 39189, 37701)),
        (2048, 7168, (13065, 14900, 15824, 14967)),
    ):
        held_s = 2 * 128_000 * n * k * energy_j / profile.device.power_w
        for groups, each_us in zip((1, 2, 4, 8), measured_us, strict=True):
            rows = 128_000 // groups
            library_s = sum(
                max(held_s, grouped_gemm_s(profile, [m] * groups, *sizes))
                for m, sizes in ((rows, (n, k)), (rows, (k, n)), (k, (n, rows)))
            )
            errors.append(library_s / share / (each_us * 1e-6) - 1)
    assert abs(statistics.median(errors)) < 0.05
    assert max(map(abs, errors)) < 0.15


def test_small_tiles_lose_rate_as_tile_half_says():
    """One 64 x 64 tile per SM: overhead 1 + h/64 against 1 + h (1/256 + 1/128)/2."""
    plain, penalised = without_floor(), without_floor(tile_half=64.0)
    expected = (1 + 1.0) / (1 + 64 * (1 / 256 + 1 / 128) / 2)
    slower = gemm_s(penalised, 256, 64, 1) / gemm_s(plain, 256, 64, 1)
    assert slower == pytest.approx(expected)


@pytest.mark.parametrize(
    ("profile", "precision", "size", "measured_flop_per_s"),
    [
        ("a100-sxm-80gb", "fp32", 8192, 19.2e12),
        ("h100-sxm-80gb", "fp32", 8192, 51.8e12),
        ("b200-sxm-180gb", "fp32", 8192, 66.2e12),
        ("v100-sxm2-32gb", "fp32", 8192, 14.4e12),
        ("l40s", "fp32", 8192, 46.9e12),
        ("rtx-4090", "fp32", 8192, 53.4e12),
        ("rtx-4090", "tf32", 8192, 85.7e12),
        ("rtx-5090-32gb", "fp32", 8192, 66.9e12),
        ("rtx-5090-32gb", "tf32", 8192, 114e12),
    ],
)
def test_square_products_of_32_bits_are_as_quick_as_users_measured(
    profile, precision, size, measured_flop_per_s
):
    """torch.mm, back to back (zzc0721/torch-performance-test-data, database.md and issues)."""
    cool = without_sustained_clock(load_profile(profile))
    flop_per_s = 2 * size**3 / gemm_s(cool, size, size, size, precision=precision)
    assert flop_per_s == pytest.approx(measured_flop_per_s, rel=0.12)


@pytest.mark.parametrize(
    ("columns", "precision", "aligned"),
    [
        (50304, "fp16", True),
        (50257, "fp16", False),
        (50264, "bf16", True),
        (50264, "fp8", False),
        (50260, "fp32", True),
        (128256, "mxfp8", True),
        (128256, "nvfp4", True),
    ],
)
def test_rows_are_aligned_if_they_are_whole_vectors_of_16_bytes(columns, precision, aligned):
    assert rows_are_aligned((4096, columns), precision) is aligned


@pytest.mark.parametrize(
    ("profile", "shape", "measured_s"),
    [
        ("a100-pcie-40gb", (8192, 30522, 1280), 39.97e-3),
        ("a100-pcie-40gb", (32768, 30522, 1600), 213.3e-3),
        ("a100-pcie-40gb", (8192, 2048, 30522), 62.61e-3),
    ],
)
def test_fp32_products_on_vector_units_need_no_aligned_rows(profile, shape, measured_s):
    """The ampere_sgemm kernels of cuBLAS (NeuSight, data/dataset/test/linear.csv)."""
    cool = without_sustained_clock(load_profile(profile))
    aligned = rows_are_aligned(shape[1:], "fp32")
    assert not aligned
    assert gemm_s(cool, *shape, precision="fp32", aligned=aligned) == pytest.approx(
        measured_s, rel=0.1
    )


def test_padding_the_vocabulary_of_gpt2_makes_its_step_on_a100s_a_quarter_faster():
    """50257 to 50304: "~25% speedup", A. Karpathy on nanoGPT, February 2023."""

    def step_s(vocab: int) -> float:
        model = {"base": "gpt2", "vocab": vocab}
        plan = {"stack": {"base": "torch", "fused_elementwise": True}, "zero": 0}
        batch = {"global": 480, "micro": 12, "seq_len": 1024}
        cluster = {"profile": "a100-sxm-40gb", "gpus": 8}
        document = {"model": model, "cluster": cluster, "batch": batch, "plan": plan}
        return run_step(job_from_document(document)).step_time_s

    assert step_s(50257) / step_s(50304) == pytest.approx(1.25, abs=0.03)


def test_a_long_inner_dimension_is_split_over_idle_multiprocessors():
    profile = without_floor()
    assert gemm_s(profile, 64, 64, 4096) == pytest.approx(2 * 64 * 64 * 4096 / 1e12)


def test_a_sustained_clock_of_one_half_doubles_computing_and_leaves_memory_alone():
    throttled = tiny_profile(sustained_clock=0.5)
    fast_memory = with_bandwidth(throttled, 1e30)
    assert gemm_s(throttled, 256, 256, 1) == pytest.approx(gemm_s(TINY, 256, 256, 1))
    cool, hot = gemm_s(TINY_FAST, 1024, 1024, 512), gemm_s(fast_memory, 1024, 1024, 512)
    assert hot - 1e-6 == pytest.approx(2 * (cool - 1e-6))


def test_a_batch_fills_the_waves_that_one_product_leaves_empty():
    profile = without_floor()
    assert gemm_s(profile, 64, 32, 1, batch=4) == gemm_s(profile, 64, 32, 1)


def test_groups_of_equal_rows_are_a_batch():
    assert grouped_gemm_s(TINY, [96] * 5, 512, 128) == gemm_s(TINY, 96, 512, 128, batch=5)


def test_empty_groups_read_no_weights():
    assert grouped_gemm_s(TINY, [64, 0, 0, 0], 256, 256) == gemm_s(TINY, 64, 256, 256)


def test_accumulating_reads_and_writes_an_fp32_output():
    plain, added = gemm_s(TINY, 256, 256, 1), gemm_s(TINY, 256, 256, 1, accumulate=True)
    assert added - plain == pytest.approx((8 - 2) * 256 * 256 / 1e9)


def test_operands_of_half_the_size_halve_the_operand_traffic():
    bf16, fp8 = gemm_s(TINY, 256, 256, 8), gemm_s(TINY, 256, 256, 8, precision="fp8")
    assert bf16 - fp8 == pytest.approx(2 * 256 * 8 / 1e9)


def test_a_format_without_matrix_unit_is_refused_with_the_alternatives():
    with pytest.raises(InputError, match=r"nvfp4.*choose one of fp32, .*bf16, fp8"):
        gemm_s(TINY, 1, 1, 1, precision="nvfp4")


@given(m=SIZE, n=SIZE, k=SIZE, batch=SMALL, more=st.integers(1, 300))
def test_more_work_in_any_dimension_is_never_faster(m, n, k, batch, more):
    base = gemm_s(TINY, m, n, k, batch=batch)
    assert gemm_s(TINY, m + more, n, k, batch=batch) >= base
    assert gemm_s(TINY, m, n + more, k, batch=batch) >= base
    assert gemm_s(TINY, m, n, k + more, batch=batch) >= base
    assert gemm_s(TINY, m, n, k, batch=batch + more) >= base


@given(m=SIZE, n=SIZE, k=SIZE, factor=st.floats(1, 100))
def test_more_bandwidth_is_never_slower_and_no_product_beats_the_roofline(m, n, k, factor):
    faster = with_bandwidth(TINY, factor * 1e9)
    assert gemm_s(faster, m, n, k) <= gemm_s(TINY, m, n, k)
    roofline_s = max(2 * m * n * k / 1e12, 2 * (m * k + k * n + m * n) / (factor * 1e9))
    assert gemm_s(faster, m, n, k) >= roofline_s * (1 - 1e-12)


def test_computing_and_memory_of_equal_length_take_15_percent_longer_than_either():
    """256 x 256 x 4096: 0.54 ms at 1 TFLOP/s; its 4.3 MB take as long at 8.1 GB/s."""
    compute_s = 2 * 256 * 256 * 4096 / 1e12
    num_bytes = 2 * (2 * 256 * 4096 + 256 * 256)
    both = with_bandwidth(without_floor(), num_bytes / compute_s)
    assert gemm_s(both, 256, 256, 4096) == pytest.approx(2**0.2 * compute_s)


def test_computing_hides_behind_memory_of_five_times_its_length():
    compute_s = 2 * 256 * 256 * 4096 / 1e12
    num_bytes = 2 * (2 * 256 * 4096 + 256 * 256)
    slow_memory = with_bandwidth(without_floor(), num_bytes / (5 * compute_s))
    assert gemm_s(slow_memory, 256, 256, 4096) == pytest.approx(5 * compute_s, rel=1e-4)


def test_a_shape_that_fits_the_library_s_tiles_loses_no_part_of_a_wave():
    """Five tiles of 64 x 32 on four SMs: two waves, or one and a quarter."""
    profile = without_floor()
    whole, exact = (
        gemm_s(profile, 5 * 64, 32, 1, tiling=Tiling(fits=fits)) for fits in (False, True)
    )
    assert whole == pytest.approx(2 * exact / 1.25)


@given(m=SIZE, n=SIZE, k=SIZE, batch=SMALL)
def test_a_shape_that_fits_the_tiles_is_never_slower_than_one_that_need_not(m, n, k, batch):
    fits = gemm_s(TINY_FAST, m, n, k, batch=batch, tiling=Tiling(fits=True))
    assert fits <= gemm_s(TINY_FAST, m, n, k, batch=batch) * (1 + 1e-12)


def test_a_memory_bound_kernel_takes_its_floor_plus_bytes_over_the_bandwidth():
    assert memory_bound_s(TINY, 1e9) == pytest.approx(1 + 1e-6)
    assert memory_bound_s(TINY, 0) == 1e-6


def test_bytes_up_to_half_of_the_cache_stream_from_it_and_those_that_fill_it_from_memory():
    """A cache of 1 MiB that is four times as fast as 1 GB/s."""
    profile = tiny_profile(cache_speedup=4.0)
    assert memory_bound_s(profile, 2**19) == pytest.approx(1e-6 + 2**19 / 4e9)
    assert memory_bound_s(profile, 2**20) == pytest.approx(1e-6 + 2**20 / 1e9)


def test_kernels_over_rows_have_an_efficiency_of_their_own_where_the_profile_states_one():
    profile = tiny_profile(row_efficiency=0.5)
    assert memory_bound_s(profile, 1e9, over_rows=True) == pytest.approx(2 + 1e-6)
    assert memory_bound_s(profile, 1e9) == memory_bound_s(TINY, 1e9, over_rows=True)


def test_summing_over_rows_has_its_own_efficiency_where_the_profile_states_one():
    profile = tiny_profile(row_reduction_efficiency=0.25)
    assert memory_bound_s(profile, 1e9, reduces_rows=True) == pytest.approx(4 + 1e-6)
    assert memory_bound_s(profile, 1e9) == memory_bound_s(TINY, 1e9, reduces_rows=True)


def test_a_strided_kernel_finds_126_elements_in_100_cycles_on_every_multiprocessor():
    """Four multiprocessors of 1 GHz, 1 us to start."""
    assert strided_s(TINY, 1.26 * 4 * 1e9) == pytest.approx(1 + 1e-6)


def test_one_that_casts_as_well_finds_65():
    """An H100 adds a mask of 32 bits to 268,435,456 scores of 16 in 1.72 ms."""
    assert strided_s(TINY, 0.65 * 4 * 1e9, casts=True) == pytest.approx(1 + 1e-6)
    per_s = 132 * 1.83e9 * TINY.common.casting_elements_per_cycle
    assert 4 * 16 * 2048**2 / per_s == pytest.approx(1.724e-3, rel=0.02)


def test_copies_of_16_bits_as_32_take_as_long_for_their_elements_on_any_memory():
    """An H100 and an H200 take 416 and 392 us for 134,217,728."""
    for name, measured_us in (("h100-sxm-80gb", 416.1), ("h200-sxm-141gb", 392.4)):
        found_s = widening_s(load_profile(name), 2**27)
        assert found_s * 1e6 == pytest.approx(measured_us, rel=0.05)


def test_a_softmax_of_rows_that_no_warp_holds_takes_as_long_for_its_elements_on_any_memory():
    """An H100 and an H200 take 407 and 417 us for 32,768 rows of 4,096."""
    elements = 32768 * 4096
    for name, measured_us in (("h100-sxm-80gb", 406.6), ("h200-sxm-141gb", 416.8)):
        found_s = softmax_s(load_profile(name), elements, 4096)
        assert found_s * 1e6 == pytest.approx(measured_us, rel=0.03)
    assert softmax_s(load_profile("h100-sxm-80gb"), elements, 2048) == 0.0


@pytest.mark.parametrize(
    ("of_a_result", "result_bytes"), [(None, 2 * 5 * 5), (4.0 + 4.0, (4 + 4) * 5 * 5)]
)
def test_products_read_the_weights_of_groups_with_rows_and_those_of_the_others_not_at_all(
    of_a_result, result_bytes
):
    """Five rows of 7 in two groups, whose weights are 7 x 5 each; results are 5 wide."""
    operands_bytes = 2 * (5 * 7 + 2 * 7 * 5)
    num_bytes = product_bytes([2, 0, 3, 0], 5, 7, result_bytes=of_a_result)
    assert num_bytes == operands_bytes + result_bytes


def test_a_product_without_rows_moves_nothing():
    assert product_bytes([0, 0], 5, 7) == 0


def test_a_split_product_writes_and_reads_its_parts_in_fp32():
    """One 64 x 32 tile, k = 4096, four SMs of 0.25 TFLOP/s, 12 GB/s.

    In two halves the multiplying takes 34 us, the bytes 69 us; whole, each takes 66 us; in four,
    the parts' bytes 71 us.
    """
    profile = with_bandwidth(without_floor(), 12e9)
    compute_s = 2 * 64 * 32 * 2048 / 0.25e12
    parts_bytes = (4 + 4) * 2 * 64 * 32
    memory_s = (2 * (64 * 4096 + 4096 * 32 + 64 * 32) + parts_bytes) / 12e9
    expected = (compute_s**5 + memory_s**5) ** (1 / 5)
    assert gemm_s(profile, 64, 32, 4096) == pytest.approx(expected)


def test_every_part_of_a_split_product_starts_its_tile():
    """Four SMs, k = 4096: four parts of 1024; eight would be two waves."""
    profile = without_floor(tile_start_s=1e-5)
    expected = 2 * 64 * 32 * 1024 / 0.25e12 + 1e-5
    assert gemm_s(profile, 64, 32, 4096) == pytest.approx(expected)


def drawing(watts: Mapping[Precision, float]):
    """A device whose products run cool at its peak of 1 TFLOP/s and draw so many watts."""
    models = {
        name: GEMM.model_copy(update={"floor_s": 0.0, "joule_per_operation": w / 1e12})
        for name, w in watts.items()
    }
    return with_bandwidth(tiny_profile(gemm=models, sustained_clock=0.6), 1e30)


def test_a_format_that_draws_less_than_16_bit_products_keeps_as_much_more_of_its_rate():
    """Of 100 W training leaves 60: enough for 75 W at 0.8 of their rate, and for all of 50 W."""
    profile = drawing({"bf16": 100.0, "fp8": 75.0, "fp32": 50.0})
    shares = {name: sustained_share(profile, name) for name in profile.kernels.gemm}
    assert shares == pytest.approx({"bf16": 0.6, "fp8": 0.8, "fp32": 1.0})


def test_what_8_bit_products_keep_may_be_told_and_holds_for_narrower_ones():
    profile = drawing({"bf16": 100.0, "fp8": 75.0, "nvfp4": 75.0})
    told = profile.kernels.model_copy(update={"sustained_clock_8_bit": 0.7})
    hot = profile.model_copy(update={"kernels": told})
    shares = {name: sustained_share(hot, name) for name in hot.kernels.gemm}
    assert shares == pytest.approx({"bf16": 0.6, "fp8": 0.7, "nvfp4": 0.7})
    assert sustained_share(without_sustained_clock(hot), "fp8") == 1.0


def test_a_quarter_of_the_power_leaves_half_of_the_clock_under_load():
    profile = tiny_profile(sustained_clock=0.8)
    limit = {"power_limit_w": profile.device.power_w / 4}
    limited = profile.model_copy(update={"device": profile.device.model_copy(update=limit)})
    assert sustained_share(limited, "bf16") == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("gpu", "tflop_per_s"),
    [("rtx-4090", 160.17), ("rtx-4070ti-super-16gb", 91.0), ("h20", 138.6)],
)
def test_large_products_of_a_card_take_what_they_were_measured_to(gpu, tflop_per_s):
    """torch.mm of 8192 x 8192 in bf16: zzc0721/torch-performance-test-data, issues 78, 70, 77."""
    cool = without_sustained_clock(load_profile(gpu))
    assert 2 * 8192**3 / gemm_s(cool, 8192, 8192, 8192) == pytest.approx(
        tflop_per_s * 1e12, rel=0.05
    )


def test_no_format_is_slowed_more_than_16_bit_products():
    assert sustained_share(drawing({"bf16": 100.0, "fp8": 200.0}), "fp8") == 0.6
    unknown = drawing({"bf16": 100.0})
    assert sustained_share(unknown, "fp8") == sustained_share(unknown, "bf16") == 0.6


def test_fp32_products_of_an_h100_never_meet_its_power_limit():
    profile = load_profile("h100-sxm-80gb")
    assert sustained_share(profile, "fp32") == 1.0
    assert sustained_share(profile, "tf32") == pytest.approx(
        sustained_share(profile, "bf16"), rel=0.01
    )


@pytest.mark.parametrize(("m", "n", "k"), [(0, 256, 256), (0, 1, 1)])
def test_a_product_of_no_rows_takes_its_floor(m, n, k):
    """An expert that nobody chose is launched all the same."""
    profile = tiny_profile(gemm={"bf16": GEMM.model_copy(update={"floor_s": 3e-6})})
    assert gemm_s(with_bandwidth(profile, 1e30), m, n, k) == pytest.approx(3e-6)


def test_a_tile_that_is_known_pads_what_it_does_not_fill():
    """One of 128 x 128 for 64 x 64 costs a whole tile."""
    padded_s, whole_s = (
        gemm_s(without_floor(), m, m, 64, tiling=Tiling((128, 128))) for m in (64, 128)
    )
    assert padded_s == pytest.approx(whole_s, rel=0.1)
