from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from simulator.calibrate.gpu.fit_kernels import BLOCKS, fit_block, with_values
from simulator.calibrate.profile_text import with_value
from simulator.cost.kernel_time import attention_s, gemm_s, memory_bound_s, widening_s
from simulator.described.load import load_profile
from simulator.tables.kernel_rows import KernelRow, read_kernel_rows
from simulator.validate.kernel_answers import compared
from tests.tiny import tiny_profile

TEXT = """\
# by hand
kernels:
  source: {kind: assumed}
  gemm:
    bf16:
      efficiency: 0.5  # why
      floor: 4 us
host: {memory: 1 TB}
"""

STREAM, NORM, GEMM = BLOCKS[:3]


def test_replacing_a_value_leaves_every_other_character_alone():
    changed = with_value(TEXT, ["kernels", "gemm", "bf16", "efficiency"], "0.75")
    assert changed == TEXT.replace("0.5 ", "0.75 ")


def test_a_source_that_others_refer_to_moves_to_the_first_of_them_when_its_number_is_fitted():
    text = (
        "clock: {value: 0.6, source: &sisters {kind: assumed, reference: as much per watt}}\n"
        "narrow: {value: 0.7, source: *sisters}\nother: {value: 0.8, source: *sisters}\n"
    )
    changed = with_value(text, ["clock"], "{value: 0.65, source: {kind: fitted}}")
    found = yaml.safe_load(changed)
    assert found["clock"] == {"value": 0.65, "source": {"kind": "fitted"}}
    assert (
        found["narrow"]["source"]
        == found["other"]["source"]
        == yaml.safe_load(text)["clock"]["source"]
    )


def test_a_missing_key_joins_its_block():
    changed = with_value(TEXT, ["kernels", "gemm", "bf16", "tile_half"], "64")
    assert yaml.safe_load(changed)["kernels"]["gemm"]["bf16"]["tile_half"] == 64


def test_missing_blocks_join_the_block_that_they_belong_to():
    changed = with_value(TEXT, ["kernels", "gemm", "fp8", "floor"], "3 us")
    changed = with_value(changed, ["kernels", "flash_attention", "tail"], "1")
    kernels = yaml.safe_load(changed)["kernels"]
    assert kernels["gemm"]["fp8"] == {"floor": "3 us"}
    assert kernels["gemm"]["bf16"] == yaml.safe_load(TEXT)["kernels"]["gemm"]["bf16"]
    assert kernels["flash_attention"] == {"tail": 1}


@pytest.mark.parametrize("path", [["host", "drives", "size"], ["kernels", "gemm"]])
def test_a_block_is_neither_put_into_a_line_nor_overwritten(path):
    with pytest.raises(KeyError):
        with_value(TEXT, path, "1")


def stream_row(num_bytes: float, seconds: float) -> KernelRow:
    return KernelRow(
        {
            "op": "stream_copy",
            "direction": "fwd",
            "time_us": str(seconds * 1e6),
            "notes": f"GB/s derived from minimal bytes ({num_bytes:.0f} B)",
        }
    )


def test_a_fit_finds_the_parameters_that_made_the_rows():
    pytest.importorskip("scipy")
    truth = tiny_profile(memory_efficiency=0.6, memory_floor_s=5e-6)
    rows = [stream_row(2.0**e, memory_bound_s(truth, 2.0**e)) for e in range(6, 25)]
    fit = fit_block(tiny_profile(), STREAM, rows)
    assert fit is not None
    assert fit.values["memory_efficiency"] == pytest.approx(0.6, rel=0.03)
    assert fit.values["memory_floor_s"] == pytest.approx(5e-6, rel=0.03)


def test_one_wrong_row_in_twelve_hardly_moves_a_fit():
    pytest.importorskip("scipy")
    truth = tiny_profile(memory_efficiency=0.6, memory_floor_s=5e-6)
    rows = [stream_row(2.0**e, memory_bound_s(truth, 2.0**e)) for e in range(12, 24)]
    rows[-1] = stream_row(2.0**23, 10 * memory_bound_s(truth, 2.0**23))
    fit = fit_block(tiny_profile(), STREAM, rows)
    assert fit is not None
    assert fit.values["memory_efficiency"] == pytest.approx(0.6, rel=0.1)


def attention_row(causal: bool, seq: int, seconds: float) -> KernelRow:
    return KernelRow(
        {
            "op": "cudnn_attention",
            "dtype": "bf16",
            "batch": str(16384 // seq),
            "seq": str(seq),
            "head_dim": "128",
            "causal": str(causal),
            "direction": "fwd",
            "time_us": str(seconds * 1e6),
            "notes": "hidden 2048, 16k tokens per batch",
        }
    )


def test_no_fit_leaves_more_of_the_longest_tile_than_list_scheduling_can():
    pytest.importorskip("scipy")
    profile, block = tiny_profile(), next(b for b in BLOCKS if "softmax_dim" in b.prior)
    values = {**block.prior, "tail": 2.5}
    truth = with_values(profile, block, values)
    shapes = [(causal, 2**e) for causal in (False, True) for e in range(9, 15)]
    rows = [
        attention_row(causal, seq, attention_s(
            truth, batch=16384 // seq, heads=16, kv_heads=16, seq_q=seq, seq_kv=seq,
            head_dim=128, causal=causal,
        ))
        for causal, seq in shapes
    ]  # fmt: skip
    fit = fit_block(profile, block, rows)
    assert fit is not None
    assert fit.values["tail"] <= 1.0


@pytest.mark.parametrize(
    ("op", "notes", "tells"),
    [
        ("layernorm", "", True),
        ("layer_norm", "huggingface implementation, median", True),
        ("rms_norm", "huggingface implementation, median", False),
        ("megatron_rms_norm", "torch implementation, median", True),
        ("megatron_rms_norm", "megatron implementation, median", False),
        ("layer_norm", "liger implementation, median", False),
    ],
)
def test_norms_of_pytorch_alone_tell_how_fast_its_norms_are(op, notes, tells):
    """Liger's benchmark times several; what it has of Hugging Face's RMS norm is no one kernel."""
    row = KernelRow({"op": op, "direction": "bwd", "dtype": "bf16", "notes": notes})
    assert NORM.rows(row) is tells


def test_too_few_rows_give_no_fit():
    pytest.importorskip("scipy")
    assert fit_block(tiny_profile(), STREAM, [stream_row(1e6, 1.0)] * 5) is None


def gemm_row(m: int, n: int, k: int, seconds: float) -> KernelRow:
    sizes = {"m": str(m), "n": str(n), "k": str(k), "dtype": "bf16"}
    return KernelRow({"op": "gemm", **sizes, "time_us": str(seconds * 1e6), "notes": ""})


def test_a_block_of_one_format_changes_that_format_only():
    changed = with_values(tiny_profile(), GEMM, {"efficiency": 0.5})
    assert changed.kernels.gemm["bf16"].efficiency == 0.5
    assert changed.kernels.gemm["fp8"] == tiny_profile().kernels.gemm["fp8"]
    assert gemm_s(changed, 4096, 4096, 4096) > gemm_s(tiny_profile(), 4096, 4096, 4096)


def test_products_that_compute_alone_do_not_say_that_memory_is_slow():
    pytest.importorskip("scipy")
    h200 = Path(__file__).parents[2] / "reports" / "gpu" / "h200"
    fp32 = next(block for block in BLOCKS if block.path == ("gemm", "fp32"))
    rows = [row for row in read_kernel_rows(h200 / "profile.kernels.csv") if fp32.rows(row)]
    fit = fit_block(load_profile("h200-sxm-141gb"), fp32, rows[::3])
    assert fit is not None
    assert fit.values["memory_efficiency"] == pytest.approx(0.8, rel=0.2)


def own_row(op: str, elements: int, seconds: float) -> KernelRow:
    size = {"m": str(elements), "gbps": str(6e-9 * elements / seconds)}
    time = {"time_us": str(seconds * 1e6), "notes": ""}
    said = {"op": op, "dtype": "bf16", "direction": "fwd", "source": "clustersim calibrate gpu"}
    return KernelRow({**said, **size, **time})


def test_what_two_events_take_is_part_of_a_calibration_s_rows():
    profile, row = tiny_profile(), own_row("stream_copy", 2**20, 1e-3)
    alone = memory_bound_s(profile, 6.0 * 2**20, operands_cached=False)
    assert compared(row, profile).predicted_s - alone == pytest.approx(1.26e-6)


def test_a_cast_of_a_calibration_takes_as_long_as_its_elements():
    profile, events_s = tiny_profile(), 1.26e-6
    row = own_row("cast_fp32", 2**24, 1e-3)
    of_bytes = memory_bound_s(profile, 6.0 * 2**24, operands_cached=False)
    slower = max(of_bytes, widening_s(profile, 2.0**24))
    assert compared(row, profile).predicted_s == pytest.approx(slower + events_s)


def test_rows_measured_with_a_cleared_cache_do_not_tell_what_a_cache_saves():
    pytest.importorskip("scipy")
    rows = [own_row("stream_copy", 2**e, 1e-5 + 2.0**e * 1e-11) for e in range(12, 24)]
    fit = fit_block(tiny_profile(), STREAM, rows)
    assert fit is not None
    assert "cache_speedup" not in fit.values
