"""A captured step on a cluster: times, overlap, pipelines, other numbers of ranks."""

from __future__ import annotations

import pytest

from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.capture.kernel_cost import kernel_cost
from simulator.capture.kernels_to_measure import kernels_to_measure
from simulator.capture.result import simulate_capture
from simulator.capture.table import FIRST_BESIDE, BlockOwner, Call, Exchange, Phase, Tensor
from simulator.cost.attention import attention_s
from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.cost.gemm import gemm_s
from simulator.cost.rates import memory_bound_s
from simulator.described.load import load_profile
from simulator.errors import InputError
from simulator.facts import host_launches
from simulator.program.ir import Category, Owner
from tests.capture.made_up import GEMM, Step, capture_of

PROFILE = load_profile("h100-sxm-80gb")
GEMM_S = gemm_s(PROFILE, 4096, 4096, 4096)
WORKSPACE_BYTES = 2 * 32 * 2**20
"""Of cuBLAS on an H100."""
LAUNCH_S = PROFILE.kernels.launch_s * host_launches("operator")
REDUCE = Exchange("all_reduce", 0, 1 << 24, "dp", -1, False)
REDUCE_S = collective_cost(CollectiveKind.ALL_REDUCE, 1 << 24, Group(8, 8), PROFILE.network).seconds


def test_kernels_run_one_after_another_behind_the_first_launch():
    step = Step()
    for _ in range(5):
        step.kernel()
    result = simulate_capture(capture_of(step), PROFILE)
    assert result.step_time_s == pytest.approx(LAUNCH_S + 5 * GEMM_S)
    assert result.hfu == pytest.approx(
        5 * 2 * 4096**3 / result.step_time_s / PROFILE.device.peak.of("bf16")
    )


def test_kernels_that_are_shorter_than_their_launch_wait_for_the_host():
    tiny = Call("aten.relu.default", (), (), (), 2, 2, 0)
    step = Step()
    for place in range(200):
        step.kernel(tiny, phase=Phase.FORWARD if place % 2 else Phase.BACKWARD)
    result = simulate_capture(capture_of(step), PROFILE)
    assert result.step_time_s == pytest.approx(
        max(200 * LAUNCH_S, 200 * memory_bound_s(PROFILE, 4)), rel=0.05
    )


def test_a_collective_that_is_waited_for_at_once_is_exposed():
    step = Step()
    first = step.kernel()
    reduced = step.exchange(REDUCE, after=[first])
    step.kernel(after=[reduced])
    result = simulate_capture(capture_of(step), PROFILE, engine="replay")
    assert result.exposed_comm_s[Category.DATA_PARALLEL] == pytest.approx(REDUCE_S)
    assert result.step_time_s == pytest.approx(LAUNCH_S + 2 * GEMM_S + REDUCE_S)


def test_an_exchange_between_dtensors_waits_for_what_python_does_around_it():
    step = Step()
    first = step.kernel()
    reduced = step.exchange(REDUCE, after=[first], name="_c10d_functional.all_reduce")
    step.kernel(after=[reduced])
    result = simulate_capture(capture_of(step), PROFILE, engine="replay")
    host_s = LAUNCH_S + PROFILE.kernels.launch_s * host_launches("dtensor_exchange")
    assert result.step_time_s == pytest.approx(host_s + REDUCE_S + GEMM_S)


def test_a_collective_beside_kernels_is_hidden():
    step = Step()
    reduced = step.exchange(REDUCE, after=[step.kernel()])
    for _ in range(9):
        step.kernel()
    step.kernel(after=[reduced])
    result = simulate_capture(capture_of(step), PROFILE, engine="replay")
    assert result.step_time_s == pytest.approx(LAUNCH_S + 11 * GEMM_S)
    assert not result.exposed_comm_s


@pytest.mark.parametrize(("stream", "is_hidden"), [(1, True), (FIRST_BESIDE, False)])
def test_a_collective_on_a_stream_of_the_code_begins_where_that_stream_is(stream, is_hidden):
    """As FSDP2 gathers a layer beside the one before; NCCL's streams begin where they are."""
    step = Step()
    first = step.kernel()
    step.kernel()
    reduced = step.exchange(REDUCE, stream=stream, after=[first])
    step.kernel(after=[reduced])
    result = simulate_capture(capture_of(step), PROFILE, engine="replay")
    exposed_s = result.exposed_comm_s.get(Category.DATA_PARALLEL, 0.0)
    assert exposed_s == pytest.approx(max(0.0, REDUCE_S - GEMM_S) if is_hidden else REDUCE_S)


@pytest.mark.parametrize(
    ("name", "is_known"), [("silu_backward", True), ("linalg_lu_factor", False), ("sort", False)]
)
def test_operators_that_do_more_than_move_bytes_are_not_known(name, is_known):
    call = Call(f"aten.{name}.default", (), (), (), 1 << 20, 1 << 20, 0)
    assert kernel_cost(call, PROFILE).is_known is is_known


def log_softmax(rows: int, columns: int, *, backward: bool = False) -> Call:
    tensor, size = Tensor("float32", (rows, columns)), 4 * rows * columns
    name = "aten._log_softmax_backward_data.default" if backward else "aten._log_softmax.default"
    operands = (tensor,) * (1 + backward)
    return Call(name, operands, (tensor,), (), size * len(operands), size, 0)


def test_a_softmax_reads_long_rows_three_times_and_streams_them():
    """Rows that a block keeps are read once, and wait for the row's sum."""
    kernels = PROFILE.kernels
    short, long = (
        kernel_cost(log_softmax(8192, columns), PROFILE).seconds - kernels.memory_floor_s
        for columns in (12288, 12289)
    )
    passes = 2 * kernels.memory_efficiency / kernels.row_efficiency
    assert long / short == pytest.approx(4 / passes, rel=1e-3)


@pytest.mark.parametrize(
    ("rows", "columns", "forward_ms", "backward_ms"),
    [(8192, 128256, 5.553, 5.701), (4096, 128256, 2.795, 2.872), (16384, 50304, 4.294, 4.480)],
)
def test_the_loss_of_a_large_vocabulary_takes_as_long_as_measured(
    rows, columns, forward_ms, backward_ms
):
    """One H100 of 3.35 TB/s: ``reports/gpu/raw.jsonl.gz``."""
    for backward, measured_ms in ((False, forward_ms), (True, backward_ms)):
        found = kernel_cost(log_softmax(rows, columns, backward=backward), PROFILE)
        assert 1e3 * found.seconds == pytest.approx(measured_ms, rel=0.05)


def test_a_sum_over_rows_takes_its_bytes_and_as_long_a_start_as_in_a_job():
    def call(*shape: int) -> Call:
        size = 4 * 4096 * 4096
        results = (Tensor("float32", shape),)
        name = "aten.sum.dim_IntList"
        return Call(name, (Tensor("float32", (4096, 4096)),), results, (), size, 0, 0)

    over, along = (kernel_cost(call(*shape), PROFILE).seconds for shape in ((4096,), (4096, 1)))
    assert over == along + PROFILE.common.column_sum_start_s


@pytest.mark.parametrize(
    ("rows", "columns", "measured_us"),
    [(32768, 4096, 110), (16384, 4096, 60), (16384, 3072, 53.5), (32768, 1024, 54.5),
     (16384, 1024, 35)],
)  # fmt: skip
def test_the_gradient_of_a_bias_takes_as_long_as_measured(rows, columns, measured_us):
    """One H100, ``reduce_kernel`` of bf16: ``reports/gpu/raw.jsonl.gz``, runs gpt-0.1b and 0.4b."""
    given, size = Tensor("bfloat16", (rows, columns)), 2 * rows * columns
    made = (Tensor("bfloat16", (columns,)),)
    call = Call("aten.sum.dim_IntList", (given,), made, (), size, 0, 0)
    assert 1e6 * kernel_cost(call, PROFILE).seconds == pytest.approx(measured_us, rel=0.25)


def transfer(peer: int, *, sends: bool) -> Exchange:
    return Exchange("send_recv", 0, 1 << 20, "pp", peer, sends)


def test_both_ends_of_a_transfer_meet():
    first, second = Step(rank=0), Step(rank=4)
    first.exchange(transfer(4, sends=True), after=[first.kernel()])
    received = second.exchange(transfer(0, sends=False))
    second.kernel(after=[received])
    capture = capture_of(first, second, groups=[(0, 4)])
    result = simulate_capture(capture, PROFILE, engine="replay")
    transfer_s = result.step_time_s - 2 * GEMM_S - LAUNCH_S
    assert 0 < transfer_s < 1e-4
    assert [each.stage for each in result.memory] == [0, 1]


def test_a_transfer_without_its_other_end_is_refused():
    step = Step()
    step.exchange(transfer(4, sends=True))
    with pytest.raises(InputError, match="not captured"):
        simulate_capture(capture_of(step, groups=[(0, 4)]), PROFILE)


def test_more_data_ranks_hold_smaller_shards_and_meet_in_larger_groups():
    step = Step()
    step.exchange(REDUCE, after=[step.kernel()])
    step.block(1 << 20, 0, owner=BlockOwner.OPTIMIZER_STATE, shards=8)
    step.block(1 << 10, 0, owner=BlockOwner.PARAMETER)
    capture = capture_of(step)
    few, many = (simulate_capture(capture, PROFILE, gpus) for gpus in (8, 64))
    (at_few,), (at_many,) = few.memory, many.memory
    assert at_many.by_owner[Owner.OPTIMIZER_STATES] == at_few.by_owner[Owner.OPTIMIZER_STATES] / 8
    assert at_many.by_owner[Owner.WEIGHTS] == at_few.by_owner[Owner.WEIGHTS] == 1 << 10
    issued = many.timeline.program.operations[-1].work.collectives
    assert [(each.axis, each.ranks) for each in issued] == [("dp", 64)]
    assert many.step_time_s > few.step_time_s


def test_ranks_that_make_no_whole_copies_are_refused():
    step = Step()
    step.exchange(Exchange("all_reduce", 1, 1 << 20, "dp", -1, False))
    capture = capture_of(step, groups=[tuple(range(8)), (0, 2, 4, 6)])
    with pytest.raises(InputError, match="multiple of 2"):
        simulate_capture(capture, PROFILE, 9)


def test_memory_is_that_of_the_host_order_at_the_times_of_the_kernels():
    step = Step()
    step.kernel()
    step.kernel()
    step.block(100, 0, owner=BlockOwner.PARAMETER)
    step.block(1000, 1, 2)
    step.block(10, 2)
    (memory,) = simulate_capture(capture_of(step), PROFILE).memory
    assert memory.peak_allocated_bytes == 1100 + WORKSPACE_BYTES
    assert memory.by_owner == {
        Owner.WEIGHTS: 100, Owner.ACTIVATIONS: 1000, Owner.WORKSPACES: WORKSPACE_BYTES
    }  # fmt: skip
    assert memory.peak_time_s == pytest.approx(LAUNCH_S)
    assert sum(curve[-1] for curve in memory.owner_bytes.values()) == 110 + WORKSPACE_BYTES


def test_operators_cost_what_their_families_cost():
    assert kernel_cost(GEMM, PROFILE).seconds == GEMM_S
    heads = Tensor("bfloat16", (2, 32, 4096, 128))
    few = heads._replace(shape=(2, 8, 4096, 128))
    name = "aten._scaled_dot_product_flash_attention.default"
    flash = Call(name, (heads, few, few), (heads,), (0.0, 1.0, 0.0), 0, 0, 0)
    seconds = attention_s(
        PROFILE, batch=2, heads=32, kv_heads=8, seq_q=4096, seq_kv=4096, head_dim=128, causal=True,
        kernel="flash-2",
    )  # fmt: skip
    assert kernel_cost(flash, PROFILE).seconds == seconds
    assert kernel_cost(flash, PROFILE).flop == 4 * 2 * 32 * 4096 * 4096 * 128


def test_an_operator_that_no_model_knows_is_named_with_its_bytes():
    sort = Call("aten.sort.default", (), (), (), 1 << 20, 1 << 20, 0)
    step = Step()
    step.kernel(sort)
    step.kernel(sort)
    (unknown,) = simulate_capture(capture_of(step), PROFILE).unknown
    assert (unknown.name, unknown.calls, unknown.num_bytes) == (sort.name, 2, 1 << 22)
    assert 0 < unknown.share < 1


def test_what_is_held_from_step_to_step_is_reserved_once():
    step = Step()
    step.kernel()
    step.kernel()
    step.block(1 << 30, 0)
    step.block(1 << 28, 1, 2)
    (memory,) = simulate_capture(capture_of(step), PROFILE).memory
    assert memory.peak_reserved_bytes == (1 << 30) + (1 << 28) + WORKSPACE_BYTES


def test_each_distinct_kernel_of_a_step_is_measured_once():
    rows, heads = Tensor("bfloat16", (64, 128)), Tensor("bfloat16", (2, 8, 256, 64))
    step = Step()
    for call in (
        GEMM,
        GEMM,
        Call("aten._fused_rms_norm.default", (rows,), (rows,), (), 1 << 14, 1 << 14, 0),
        Call("aten.silu.default", (rows,), (rows,), (), 1 << 14, 1 << 14, 0),
        Call(
            "aten._scaled_dot_product_flash_attention.default",
            (heads, heads, heads), (heads,), (0.0, 1.0, 0.0), 0, 0, 0,
        ),
        Call("aten.sort.default", (rows,), (rows,), (), 1 << 14, 1 << 14, 0),
    ):  # fmt: skip
        step.kernel(call)
    found = kernels_to_measure(capture_of(step), ["flash_attention (sdpa)"], KernelCase)
    assert found.cases[:2] == (
        KernelCase("host_operator", "", direction=""),
        KernelCase("gemm", "bf16", 4096, 4096, 4096),
    )
    assert set(found.cases[2:]) == {
        KernelCase("rms_norm", "bf16", 64, 128),
        KernelCase("stream_copy", m=1 << 13),
        KernelCase(
            "flash_attention (sdpa)",
            batch=2,
            seq=256,
            heads=8,
            kv_heads=8,
            head_dim=64,
            causal=True,
        ),
    }
    assert found.left_out == {"aten.sort.default": 1}


def test_copies_that_widen_find_each_element_and_those_that_narrow_move_bytes():
    wide, half = Tensor("float32", (1 << 27,)), Tensor("bfloat16", (1 << 27,))

    def cast_s(before, after):
        num_bytes = 6 << 27
        call = Call("aten._to_copy.default", (before,), (after,), (), num_bytes, 0, 0)
        return kernel_cost(call, PROFILE).seconds

    per_cycle = PROFILE.common.widening_elements_per_cycle
    device = PROFILE.device
    seconds = (1 << 27) / (per_cycle * device.sm_count * device.boost_clock_hz)
    assert cast_s(half, wide) == pytest.approx(seconds, rel=0.01)
    assert cast_s(wide, half) < 0.75 * seconds


@pytest.mark.parametrize(
    ("system", "number_format", "ps"),
    [
        ("h100-sxm-80gb", "float32", 10.75),
        ("h100-sxm-80gb", "bfloat16", 6.4),
        ("h200-sxm-141gb", "float32", 8.05),
        ("h200-sxm-141gb", "bfloat16", 5.61),
    ],
)
def test_an_update_of_many_tensors_takes_as_long_as_measured(system, number_format, ps):
    """AdamW of reports/gpu reads four tensors and writes three."""
    one, numel = Tensor(number_format, (1 << 30,)), 1 << 30
    size = {"float32": 4, "bfloat16": 2}[number_format]
    call = Call(
        "aten._fused_adamw_.default", (one,) * 4, (), (), 4 * size * numel, 3 * size * numel, 0
    )
    seconds = kernel_cost(call, load_profile(system)).seconds
    assert seconds == pytest.approx(ps * 1e-12 * numel, rel=0.04)


def test_a_convolution_makes_only_the_gradients_that_are_asked_for():
    """Torch's FlopCounterMode counts them so; a first layer makes none of its input."""
    image, weight = Tensor("bfloat16", (8, 3, 64, 64)), Tensor("bfloat16", (32, 3, 4, 4))
    result, bias = Tensor("bfloat16", (8, 32, 16, 16)), Tensor("bfloat16", (32,))
    name, profile = "aten.convolution_backward.default", load_profile("h100-sxm-80gb")
    flops = [
        kernel_cost(Call(name, (result, image, weight), made, (), 0, 0, 0), profile).flop
        for made in ((image, weight, bias), (weight, bias), (image,))
    ]
    product = 2.0 * 8 * 16 * 16 * 32 * 3 * 4 * 4
    assert flops == [2 * product, product, product]


def test_each_group_of_channels_is_a_product_of_its_own():
    """ResNeXt's 32 groups; backward is a product for the input and one for the weights."""
    image, weight = Tensor("float16", (4, 128, 8, 8)), Tensor("float16", (128, 4, 3, 3))
    profile = load_profile("a100-sxm-80gb")
    places, group, summed = 4 * 8 * 8, 128 // 32, 4 * 9
    forward = kernel_cost(
        Call("aten.convolution.default", (image, weight), (image,), (), 0, 0, 0), profile
    )
    backward = kernel_cost(
        Call(
            "aten.convolution_backward.default",
            (image, image, weight),
            (image, weight),
            (),
            0,
            0,
            0,
        ),
        profile,
    )
    one_a_tile_s = gemm_s(profile, places, group, summed, batch=32, precision="fp16")
    assert forward.flop == 2.0 * places * 128 * summed
    assert backward.flop == 2 * forward.flop
    assert 0 < forward.seconds < one_a_tile_s < 2 * backward.seconds


def test_wide_groups_of_channels_have_tiles_of_their_own():
    image, weight = Tensor("float16", (4, 512, 8, 8)), Tensor("float16", (512, 256, 3, 3))
    call = Call("aten.convolution.default", (image, weight), (image,), (), 0, 0, 0)
    profile = load_profile("a100-sxm-80gb")
    own_bytes = 2.0 * (2 * 4 * 512 * 8 * 8 + 512 * 256 * 9)
    alone_s = gemm_s(
        profile, 4 * 8 * 8, 256, 256 * 9, batch=2, precision="fp16", moved_bytes=own_bytes
    )
    assert kernel_cost(call, profile).seconds == alone_s


def test_a_convolution_reads_its_picture_once_for_all_places_of_its_filter():
    """Implicit GEMM (cuDNN, arXiv 1410.0759): of patches, each number is in nine."""
    image, weight = Tensor("float16", (64, 64, 112, 112)), Tensor("float16", (64, 64, 3, 3))
    call = Call("aten.convolution.default", (image, weight), (image,), (), 0, 0, 0)
    image_bytes, profile = 2.0 * 64 * 64 * 112 * 112, load_profile("h100-sxm-80gb")
    seconds = kernel_cost(call, profile).seconds
    assert memory_bound_s(profile, 2 * image_bytes) < seconds
    assert seconds < memory_bound_s(profile, 9 * image_bytes) / 2


def test_strided_points_read_only_the_places_that_they_stand_on():
    image, result = Tensor("float16", (64, 64, 112, 112)), Tensor("float16", (64, 64, 56, 56))
    weight, profile = Tensor("float16", (64, 64, 1, 1)), load_profile("rtx-3090-24gb")
    strided, plain = (
        kernel_cost(
            Call("aten.convolution.default", (given, weight), (result,), (), 0, 0, 0), profile
        )
        for given in (image, result)
    )
    assert strided.seconds == plain.seconds


def test_a_filter_over_single_channels_loads_or_moves_and_multiplies_no_matrices():
    profile = load_profile("a100-sxm-80gb")
    image = Tensor("float16", (64, 96, 56, 56))
    num_bytes = 2 * 64 * 96 * 56 * 56

    def seconds(side: int) -> float:
        weight = Tensor("float16", (96, 1, side, side))
        inputs, sizes = (image, weight), (num_bytes, num_bytes, 0)
        call = Call("aten.convolution.default", inputs, (image,), (), *sizes)
        return kernel_cost(call, profile).seconds

    assert seconds(1) == memory_bound_s(profile, 2 * num_bytes)
    loads_per_s = 32 * profile.device.sm_count * profile.device.boost_clock_hz
    assert seconds(7) == pytest.approx(num_bytes * 49 / loads_per_s)


@pytest.mark.parametrize(
    ("name", "operands", "passes"),
    [("native_batch_norm", 1, 3), ("native_batch_norm_backward", 2, 5)],
)
def test_a_norm_over_pictures_reads_once_for_its_sums_and_once_to_write(name, operands, passes):
    profile, image = load_profile("a100-sxm-80gb"), Tensor("float16", (64, 64, 112, 112))
    num_bytes = 2 * 64 * 64 * 112 * 112
    inputs, sizes = (image,) * operands, (operands * num_bytes, num_bytes, 0)
    call = Call(f"aten.{name}.default", inputs, (image,), (), *sizes)
    assert kernel_cost(call, profile).seconds == memory_bound_s(profile, passes * num_bytes)
