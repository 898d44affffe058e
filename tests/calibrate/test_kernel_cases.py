"""Are the cases those of transformers, and does every one of them run?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.calibrate.gpu.kernel_calls import (
    OPERATIONS,
    Stopwatch,
    Timing,
    UnsupportedCaseError,
    call_of,
)
from simulator.calibrate.gpu.kernel_cases import (
    CPU_EXTENT,
    GPU_EXTENT,
    KernelCase,
    kernel_cases,
    product_shapes,
)
from simulator.calibrate.gpu.system_calls import SYSTEM_OPERATIONS, SmallLayer, measured
from simulator.described.load import load_model

CPU = torch.device("cpu")
FORMATS = ("bf16", "fp8", "fp16", "tf32", "fp32")
ATTENTION = ("cudnn_attention (sdpa)", "flash_attention_2 (sdpa)", "unfused_attention (sdpa math)")


def test_products_of_llama_3_8b_are_the_five_of_a_layer_and_the_head():
    assert product_shapes(load_model("llama3.1-8b"), split=1) == [
        (4096, 6144),
        (4096, 4096),
        (4096, 28672),
        (14336, 4096),
        (4096, 128256),
    ]


def test_tensor_parallelism_cuts_columns_first_and_rows_second():
    assert product_shapes(load_model("llama3.1-8b"), split=8)[:4] == [
        (4096, 768),
        (512, 4096),
        (4096, 3584),
        (1792, 4096),
    ]


def test_every_case_has_its_own_name_and_an_operation_that_measures_it():
    cases = kernel_cases(GPU_EXTENT, FORMATS, ATTENTION)
    assert len({case.id for case in cases}) == len(cases)
    assert {case.op for case in cases} <= {*OPERATIONS, *SYSTEM_OPERATIONS}


def test_a_run_that_is_cut_short_knows_something_of_every_family():
    cases = kernel_cases(GPU_EXTENT, FORMATS, ATTENTION)
    first = cases[:100]
    assert {case.op for case in first} >= {"host_launch", "gemm", "grouped_gemm", "sustained_gemm"}
    assert {case.dtype for case in first if case.op == "gemm"} == set(FORMATS)
    assert {case.direction for case in first if case.op == "gemm"} == {"fwd", "dgrad", "wgrad"}


def test_all_three_directions_of_a_product_do_the_same_arithmetic():
    cases = [case for case in kernel_cases(CPU_EXTENT, ("fp32",), ()) if case.op == "gemm"]
    work = {d: sum(c.m * c.n * c.k for c in cases if c.direction == d) for d in ("fwd", "dgrad")}
    assert work["fwd"] == work["dgrad"]


SMALL = {
    "gemm": KernelCase("gemm", "fp32", 8, 16, 32),
    "grouped_gemm": KernelCase("grouped_gemm", "bf16", 16, 32, 64, batch=2),
    "rms_norm": KernelCase("rms_norm", "fp32", 4, 16),
    "layernorm": KernelCase("layernorm", "fp32", 4, 16, direction="bwd"),
    "softmax": KernelCase("softmax", "fp32", 4, 16),
    "eager_cross_entropy": KernelCase("eager_cross_entropy", "fp32", 4, 16, direction="fwd+bwd"),
}
ATTENTION_CASE = KernelCase(
    "", "fp32", batch=2, seq=32, heads=4, kv_heads=2, head_dim=16, causal=True, direction="bwd"
)
ON_CPU = [op for op in OPERATIONS if "cudnn" not in op]


@pytest.mark.parametrize("op", ON_CPU)
def test_every_operation_runs_and_states_its_arithmetic_or_its_traffic(op):
    case = SMALL.get(op, KernelCase(op, "fp32", m=64))
    if "attention" in op:
        case = replace(ATTENTION_CASE, op=op)
    try:
        call = call_of(case, CPU)
        call.work()
    except UnsupportedCaseError as reason:
        pytest.skip(str(reason))
    assert bool(call.flop) != bool(call.num_bytes)


@pytest.mark.parametrize("direction", ["fwd", "dgrad", "wgrad"])
def test_a_product_computes_what_its_row_says(direction):
    call = call_of(KernelCase("gemm", "fp32", 8, 16, 32, direction=direction), CPU)
    assert tuple(call.work().shape) == (8, 16)
    assert call.flop == 2 * 8 * 16 * 32


def test_backward_attention_counts_two_and_a_half_times_the_forward_work():
    op = "flash_attention (sdpa)"
    forward = call_of(replace(ATTENTION_CASE, op=op, direction="fwd"), CPU)
    assert forward.flop == 4 * 2 * 4 * 32 * 32 * 16 / 2
    assert call_of(replace(ATTENTION_CASE, op=op), CPU).flop == 2.5 * forward.flop
    assert forward.notes == "heads 4, kv heads 2"


def test_traffic_is_what_is_read_and_written_once():
    assert call_of(KernelCase("stream_copy", "fp32", m=100), CPU).num_bytes == 800
    assert call_of(KernelCase("cast_fp32", "bf16", m=100), CPU).num_bytes == 600
    assert call_of(KernelCase("optimizer_adamw", "fp32", m=100), CPU).num_bytes == 2800
    assert call_of(KernelCase("rms_norm", "bf16", 10, 10), CPU).num_bytes == 400


def test_what_a_processor_does_not_have_is_said():
    with pytest.raises(UnsupportedCaseError, match="no link between host and device"):
        measured(KernelCase("copy_to_device_pinned", "", m=100), Stopwatch(CPU))
    with pytest.raises(UnsupportedCaseError, match="no second stream"):
        measured(KernelCase("beside_copy_gemm", "fp32", 8, 8, 8), Stopwatch(CPU))


def test_launches_are_timed_one_by_one():
    found = measured(KernelCase("host_launch", ""), Stopwatch(CPU))
    assert 0 < found.timing.median_s < 1e-2


class _Counting(TorchDispatchMode):
    """Counts operators that launch a kernel: all but views."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and "view" not in func.__name__:
            self.launched.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_the_small_layer_has_as_many_operators_as_it_is_divided_by():
    layer, rows = SmallLayer(), torch.ones(1, 16, 64)
    with _Counting() as counting:
        layer(rows)
    assert len(counting.launched) == SmallLayer.operators
    found = measured(KernelCase("host_operator", ""), Stopwatch(CPU))
    assert 0 < found.timing.median_s < 1e-2


def test_spread_is_the_distance_of_the_quartiles_over_the_median():
    assert Timing([1.0, 2.0, 3.0, 4.0, 5.0]).spread == pytest.approx(2 / 3)
    assert Timing([2.0] * 9).spread == 0.0
    assert Timing([2.0]).spread == 0.0


def test_a_stopwatch_repeats_often_enough_for_a_spread():
    calls = []
    timing = Stopwatch(CPU, budget_s=0.0).timing(lambda: calls.append(1))
    assert len(timing.samples_s) == 5
    assert len(calls) == 5 + 3
