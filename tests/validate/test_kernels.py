from __future__ import annotations

import pytest

from simulator.cost.gemm import Tiling
from simulator.cost.kernel_time import attention_s, gemm_s, memory_bound_s
from simulator.errors import InputError
from simulator.tables.kernel_rows import KernelRow, protocol_of
from simulator.validate.kernel_answers import compared
from simulator.validate.kernel_errors import validate_kernels
from tests.csv_files import write_rows
from tests.tiny import tiny_profile

COLUMNS = [
    "id", "op", "gpu", "dtype", "m", "n", "k", "batch", "seq", "head_dim", "causal",
    "direction", "tflops", "gbps", "time_us", "notes",
]  # fmt: skip
GEMM = {"op": "gemm", "gpu": "NVIDIA H100 SXM", "dtype": "bf16", "m": 256, "n": 256, "k": 1}
ATTENTION = {
    "op": "flash_attention_3", "gpu": "NVIDIA H100 SXM", "dtype": "fp16", "batch": 2,
    "seq": 1024, "head_dim": 128, "causal": "True", "direction": "fwd", "time_us": 100,
    "notes": "heads 16, kv heads 4",
}  # fmt: skip
GEMM_US = 1 + (2 * (256 + 256 + 256 * 256)) / 1e3
"""Floor and bytes over 1 GB/s."""


@pytest.fixture
def report_of(tmp_path):
    profile = tiny_profile(sustained_clock=0.5, gemm=with_fp16())

    def report(*rows):
        named = ({"id": f"row-{i}", **row} for i, row in enumerate(rows))
        path = write_rows(named, tmp_path / "kernels.csv", COLUMNS)
        return validate_kernels(path, profile_of=lambda _: profile)

    return report


def with_fp16():
    gemm = dict(tiny_profile().kernels.gemm)
    return {**gemm, "fp16": gemm["bf16"]}


def test_a_row_with_a_time_is_compared_with_the_model(report_of):
    (row,) = report_of({**GEMM, "time_us": 100}).rows
    assert row.predicted_us == pytest.approx(GEMM_US)
    assert row.measured_us == pytest.approx(100)
    assert row.error_pct == pytest.approx(GEMM_US - 100)


def test_a_row_with_a_rate_only_is_turned_into_a_time(report_of):
    (row,) = report_of({**GEMM, "tflops": 1e-6}).rows
    assert row.measured_us == pytest.approx(2 * 256 * 256 / 1e6 * 1e6)


def test_the_sustained_clock_is_taken_out_of_benchmark_predictions(report_of):
    row = report_of({**GEMM, "m": 4096, "n": 4096, "k": 4096, "time_us": 1}).rows[0]
    cool = tiny_profile()
    assert row.predicted_us == pytest.approx(gemm_s(cool, 4096, 4096, 4096) * 1e6)


def test_a_weight_gradient_that_accumulates_is_predicted_with_its_fp32_output(report_of):
    row = report_of({**GEMM, "time_us": 1, "notes": "layout NT, accumulate=True, out fp32"}).rows[0]
    expected_s = gemm_s(tiny_profile(), 256, 256, 1, accumulate=True)
    assert row.predicted_us == pytest.approx(expected_s * 1e6)


def test_an_fp8_linear_of_a_framework_includes_scaling_its_input(report_of):
    """Five kernels; 2 + 2 + 1 bytes per element, at 0.62 of the streaming rate."""
    plain = {**GEMM, "dtype": "fp8", "time_us": 1}
    bare, linear = report_of(plain, {**plain, "notes": "framework linear"}).rows
    assert linear.predicted_us - bare.predicted_us == pytest.approx(5 + 5 * 256 / 1e3 / 0.62)


def test_experts_of_a_serving_engine_are_answered_by_the_kernels_of_its_device(report_of):
    experts = {
        "op": "fused_moe_mlp", "dtype": "bf16", "m": 64, "n": 512, "k": 1024, "batch": 8,
        "gpu": "NVIDIA H100 SXM", "time_us": 100, "notes": "topk 2, EP1",
    }  # fmt: skip
    row = report_of(experts).rows[0]
    assert not row.skipped
    assert row.predicted_us > 0


def test_the_inner_dimension_stands_where_the_program_is_known_to_put_it():
    swapped = KernelRow(
        {**{k: str(v) for k, v in GEMM.items()}, "n": "1", "k": "256", "time_us": "100",
         "source": "sitar-lab/NeuSight:test/bmm.csv"}
    )  # fmt: skip
    compared_s = compared(swapped, tiny_profile(sustained_clock=1.0)).predicted_s
    assert compared_s == pytest.approx(gemm_s(tiny_profile(), 256, 256, 1, read_again_after=1))


@pytest.mark.parametrize(
    ("implementation", "passes"),
    [("liger", 3 + 1 + 1 + 5), ("torch", 5 + 1 + 1 + 13)],
)
def test_a_backward_pass_of_megatrons_gate_was_measured_with_its_forward(implementation, passes):
    """Passes over the output: forward, its sum, the gradient of that sum, backward."""
    row = KernelRow(
        {"op": "megatron_swiglu", "dtype": "bf16", "m": "1024", "n": "1024", "direction": "bwd",
         "time_us": "1", "source": "linkedin/Liger-Kernel",
         "notes": f"{implementation} implementation, median (10485760 B)"}
    )  # fmt: skip
    profile = tiny_profile()
    kernels_s = 4 * memory_bound_s(profile, 0.0) + passes * 2**21 / (
        profile.kernels.memory_efficiency * profile.device.memory_bandwidth_bytes_per_s
    )
    predicted_s = compared(row, profile).predicted_s
    assert predicted_s == pytest.approx(kernels_s + profile.kernels.launch_s)


@pytest.mark.parametrize(
    ("op", "row_elements", "cache_bytes", "passes"),
    [
        ("softmax", 1024, 1.0, 2), ("softmax", 2048, 1.0, 4), ("layer_norm", 2048, 1.0, 3),
        ("softmax", 2048, 1e12, 2), ("layer_norm", 2048, 1e12, 2),
    ],
)  # fmt: skip
def test_torchs_own_kernels_read_rows_again_that_no_cache_holds(
    op, row_elements, cache_bytes, passes
):
    """One pass writes the result. A tensor of more than the cache passes it."""
    row = KernelRow(
        {"op": op, "dtype": "fp32", "m": str(2**28), "n": str(row_elements), "direction": "fwd",
         "time_us": "1", "source": "sitar-lab/NeuSight:softmax.csv"}
    )  # fmt: skip
    tiny = tiny_profile()
    device = tiny.device.model_copy(update={"l2_cache_bytes": cache_bytes})
    profile = tiny.model_copy(update={"device": device})
    num_bytes = passes * 4.0 * 2**28 * row_elements
    assert compared(row, profile).predicted_s == pytest.approx(memory_bound_s(profile, num_bytes))


def test_an_eager_loss_is_a_softmax_zeros_a_gradient_and_two_kernels_over_targets():
    row = KernelRow(
        {"op": "eager_cross_entropy", "dtype": "fp32", "m": "1024", "n": "2048", "time_us": "1",
         "direction": "fwd+bwd", "source": "clustersim calibrate gpu"}
    )  # fmt: skip
    profile = tiny_profile()
    memory_s = sum(
        memory_bound_s(profile, passes * 4.0 * 1024 * 2048, operands_cached=False)
        for passes in (2, 1, 3, 0, 0)
    )
    predicted_s = compared(row, profile).predicted_s
    assert predicted_s == pytest.approx(memory_s + protocol_of(row).events_s)


def test_the_best_shape_of_a_search_loses_no_part_of_a_wave(report_of):
    shape = {**GEMM, "m": 5 * 64, "n": 64, "k": 2**20, "time_us": 1}
    typical, best = report_of(shape, {**shape, "notes": "best shape found"}).rows
    assert best.predicted_us == pytest.approx(
        gemm_s(tiny_profile(), 5 * 64, 64, 2**20, tiling=Tiling(fits=True)) * 1e6
    )
    assert best.predicted_us < typical.predicted_us


def attention_us(**changes):
    shape = {
        "batch": 2, "heads": 16, "kv_heads": 4, "seq_q": 1024, "seq_kv": 1024, "head_dim": 128,
        "causal": True, "precision": "bf16", **changes,
    }  # fmt: skip
    return attention_s(tiny_profile(), **shape) * 1e6


def test_heads_come_from_the_notes(report_of):
    (row,) = report_of({**ATTENTION, "dtype": "bf16"}).rows
    assert row.predicted_us == pytest.approx(attention_us())


def test_heads_come_from_the_hidden_size_where_only_that_is_noted(report_of):
    (row,) = report_of({**ATTENTION, "dtype": "bf16", "notes": "hidden 2048, 16k tokens"}).rows
    assert row.predicted_us == pytest.approx(attention_us(kv_heads=16))


def test_both_directions_are_the_sum_of_two_passes(report_of):
    (row,) = report_of({**ATTENTION, "dtype": "bf16", "direction": "fwd+bwd"}).rows
    assert row.predicted_us == pytest.approx(attention_us() + attention_us(backward=True))


def test_a_serving_engine_also_rotates_queries_and_fills_its_cache(report_of):
    """24 heads of projections, 2 bytes read and 2 written per element, at 1 GB/s."""
    notes = ATTENTION["notes"] + "; serving prefill kernel incl. KV handling"
    row = {**ATTENTION, "dtype": "bf16"}
    bare, served = report_of(row, {**row, "notes": notes}).rows
    elements = 2 * 1024 * 24 * 128
    assert served.predicted_us - bare.predicted_us == pytest.approx(1 + 4 * elements / 1e3)


def test_a_bandwidth_without_size_is_compared_at_one_gibibyte(report_of):
    (row,) = report_of({"op": "stream_copy", "gpu": "NVIDIA H100", "dtype": "fp64", "gbps": 2}).rows
    assert row.measured_us == pytest.approx(2**30 / 2e9 * 1e6)
    assert row.predicted_us == pytest.approx(memory_bound_s(tiny_profile(), 2**30) * 1e6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "Intel Gaudi 2"}, "no hardware profile describes Intel Gaudi 2"),
        ({"m": ""}, "m is not stated"),
        ({"dtype": "int4"}, "number format int4 is not modelled"),
        ({"time_us": ""}, "neither a time nor a rate is stated"),
        ({"op": "mystery"}, "mystery is not a single modelled kernel"),
        ({"dtype": "tf32"}, "tiny has no tf32 matrix unit"),
    ],
)
def test_a_row_that_lacks_a_fact_is_skipped_with_it_as_the_reason(report_of, change, reason):
    (row,) = report_of({**GEMM, "time_us": 1, **change}).rows
    assert row.skipped == reason
    assert row.predicted_us is None
    assert row.error_pct is None


def test_the_summary_counts_predicted_rows_and_averages_their_errors(report_of):
    report = report_of(
        {**GEMM, "time_us": GEMM_US / 1.1},
        {**GEMM, "time_us": GEMM_US / 0.7},
        {**GEMM, "time_us": GEMM_US},
        {**GEMM, "gpu": "Intel Gaudi 2"},
    )
    summary = report.summary
    assert (summary.n, summary.skipped) == (3, 1)
    assert summary.mape == pytest.approx(40 / 3)
    assert summary.median_ape == pytest.approx(10)
    assert summary.worst_ape == pytest.approx(30)


def test_groups_part_rows_by_gpu_operation_and_format(report_of):
    report = report_of({**GEMM, "time_us": 1}, {**GEMM, "time_us": 1, "dtype": "fp8"})
    assert {key: group.n for key, group in report.groups.items()} == {
        ("NVIDIA H100 SXM", "gemm", "bf16"): 1,
        ("NVIDIA H100 SXM", "gemm", "fp8"): 1,
    }


def test_the_json_form_has_the_promised_fields(report_of):
    document = report_of({**GEMM, "time_us": 1}).to_dict()
    assert set(document) == {"rows", "summary", "groups", "families"}
    promised = {"id", "gpu", "op", "measured_us", "predicted_us", "error_pct", "skipped"}
    assert promised <= set(document["rows"][0])
    assert {"n", "mape", "median_ape", "worst_ape", "skipped"} <= set(document["summary"])


def test_a_table_without_the_needed_columns_is_refused(tmp_path):
    path = tmp_path / "wrong.csv"
    path.write_text("id,gpu\n1,x\n")
    with pytest.raises(InputError, match="lacks the columns op, dtype"):
        validate_kernels(path)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "GEMM"}, {"op": "torch.matmul"}, {"op": "cublas gemm"}, {"op": "linear"},
        {"op": "bmm"}, {"gpu": "H100-SXM5-80GB"}, {"gpu": "8xH100"}, {"dtype": "torch.bfloat16"},
        {"dtype": "BF16 in, fp32 acc"}, {"m": "256.0", "batch": ""}, {"batch": "1.0"},
    ],
    ids=str,
)  # fmt: skip
def test_a_product_in_other_words_is_the_same(report_of, change):
    (row,) = report_of({**GEMM, "time_us": 100, **change}).rows
    assert row.skipped == ""
    assert row.predicted_us == pytest.approx(GEMM_US)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "FlashAttention-3"}, {"op": "fa3"}, {"op": "sdpa"}, {"causal": "1"},
        {"causal": "causal"}, {"direction": "Forward"}, {"notes": "16 heads, 4 kv heads"},
        {"notes": "nheads=16, kv_heads=4"}, {"notes": "num_heads: 16; kv_heads: 4"},
    ],
    ids=str,
)  # fmt: skip
def test_attention_in_other_words_is_the_same(report_of, change):
    (row,) = report_of({**ATTENTION, "dtype": "bf16", **change}).rows
    assert row.skipped == ""
    assert row.predicted_us == pytest.approx(attention_us())


@pytest.mark.parametrize("said", ["fwd_bwd", "forward+backward", "Fwd + Bwd", "fwd/bwd", "full"])
def test_both_directions_have_many_names(report_of, said):
    both = {**ATTENTION, "dtype": "bf16", "direction": "fwd+bwd"}
    given, other = report_of(both, {**both, "direction": said}).rows
    assert other.predicted_us == given.predicted_us


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"m": "nan"}, "m is not stated"),
        ({"m": "inf"}, "m is not stated"),
        ({"m": "-4"}, "m is not stated"),
        ({"time_us": "-3"}, "neither a time nor a rate is stated"),
        ({"gpu": "NVIDIA A2"}, "no hardware profile describes NVIDIA A2"),
        ({"op": "attention_decode"}, "attention_decode is not a single modelled kernel"),
        ({"op": "gemm_reduce_scatter"}, "gemm_reduce_scatter is not a single modelled kernel"),
        ({"dtype": "int4"}, "number format int4 is not modelled"),
        ({"dtype": "int8"}, "tiny has no int8 matrix unit"),
    ],
    ids=str,
)
def test_an_odd_row_says_what_it_lacks_and_stops_no_other(report_of, change, reason):
    odd, sound = report_of({**GEMM, "time_us": 1, **change}, {**GEMM, "time_us": 1}).rows
    assert odd.skipped == reason
    assert sound.skipped == ""


@pytest.mark.parametrize(
    ("op", "direction", "passes"),
    [("RMSNorm", "fwd", 2), ("layernorm", "bwd", 3), ("softmax", "", 2), ("swiglu", "fwd", 3),
     ("silu_and_mul", "fwd", 3), ("gelu", "fwd", 2), ("fused_add_rms_norm", "fwd", 4)],
)  # fmt: skip
def test_bytes_of_a_streaming_kernel_follow_from_its_shape(report_of, op, direction, passes):
    shape = {"op": op, "gpu": "H100", "dtype": "bf16", "m": 512, "n": 1024, "time_us": 9}
    noted = passes * 2 * 512 * 1024
    derived, stated = report_of(
        {**shape, "direction": direction},
        {**shape, "direction": direction, "notes": f"minimal bytes ({noted} B)"},
    ).rows
    assert derived.skipped == ""
    assert derived.predicted_us == pytest.approx(stated.predicted_us)


def test_a_tile_that_the_name_of_a_kernel_states_is_the_librarys_choice():
    """Names tell columns first: cuBLAS keeps matrices by columns."""
    row = KernelRow(
        {**{k: str(v) for k, v in GEMM.items()}, "m": "130", "time_us": "100",
         "notes": "torch linear; ampere_sgemm_32x128_tn"}
    )  # fmt: skip
    compared_s = compared(row, tiny_profile(sustained_clock=1.0)).predicted_s
    assert compared_s == gemm_s(tiny_profile(), 130, 256, 1, tiling=Tiling((128, 32)))
