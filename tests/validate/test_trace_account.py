"""Every moment of a step is booked once: to a kernel, to bare communication, or as idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.program.ir import Kind
from simulator.program.price.roofline import KernelKind, kernel_kinds
from simulator.results.simulation import run_step
from simulator.validate.measured_trace.account import (
    IDLE,
    PHASES,
    Span,
    account,
    merged,
    predicted_spans,
)
from simulator.validate.measured_trace.kernel_names import (
    Wait,
    collective_kind,
    kernel_kind,
    operator_kind,
)
from simulator.validate.measured_trace.trace_phases import innermost
from simulator.validate.torch_run.predict import class_phases_s
from tests.validate.test_torch_strategies import EXPERTS, job

GEMM, ATTENTION, OTHER = KernelKind.GEMM, KernelKind.ATTENTION, KernelKind.OTHER

SPANS = [
    Span(GEMM, "forward", 1.0, 3.0),
    Span(OTHER, "forward", 2.0, 4.0),  # beside the first on another stream for 1 s
    Span(Kind.ALL_REDUCE, "backward", 3.5, 6.0),  # 0.5 s behind a kernel
    Span(GEMM, "backward", 7.0, 8.0),
    Span(Kind.ALL_GATHER, "backward", 5.5, 6.5),  # 0.5 s beside the all_reduce
    Span(Wait.HOST, "backward", 8.0, 8.5),
    Span(OTHER, "optimizer", 9.0, 10.0),
]


def test_a_step_is_booked_as_one_does_by_eye():
    found = account(SPANS, 11.0)
    assert found.by_phase_s == {
        ("forward", GEMM): 2.0,
        ("forward", OTHER): 1.0,
        ("forward", IDLE): 1.0,
        ("backward", Kind.ALL_REDUCE): 2.0,
        ("backward", Kind.ALL_GATHER): 0.5,
        ("backward", GEMM): 1.0,
        ("backward", Wait.HOST): 0.5,
        # 6.5 to 7, and 8.5 to 9: the optimizer waits for gradients.
        ("backward", IDLE): 1.0,
        ("optimizer", OTHER): 1.0,
        ("optimizer", IDLE): 1.0,
    }
    assert found.communication_s == {Kind.ALL_REDUCE: 2.5, Kind.ALL_GATHER: 1.0}


def test_what_lies_outside_of_the_step_is_cut_off():
    found = account([Span(GEMM, "forward", -1.0, 2.0), Span(GEMM, "forward", 3.0, 9.0)], 4.0)
    assert found.by_phase_s == {("forward", GEMM): 3.0, ("forward", IDLE): 1.0}


def test_a_step_in_which_nothing_computes_is_communication_and_idle():
    found = account([Span(Kind.BROADCAST, "optimizer", 1.0, 2.0)], 4.0)
    assert found.by_phase_s == {("optimizer", Kind.BROADCAST): 1.0, ("optimizer", IDLE): 3.0}


def test_bare_communication_belongs_to_the_phase_that_sent_it():
    norm = Span(Kind.ALL_REDUCE, "optimizer", 1.0, 2.0)
    spans = [Span(GEMM, "backward", 0.0, 1.0), norm, Span(OTHER, "optimizer", 3.0, 4.0)]
    assert account(spans, 4.0).by_phase_s == {
        ("backward", GEMM): 1.0,
        ("optimizer", Kind.ALL_REDUCE): 1.0,
        ("backward", IDLE): 1.0,
        ("optimizer", OTHER): 1.0,
    }


ANY_SPAN = st.builds(
    lambda kind, phase, start, length: Span(kind, phase, start, start + length),
    st.sampled_from([*KernelKind, Kind.ALL_REDUCE, Kind.SEND_RECV, *Wait]),
    st.sampled_from(PHASES),
    st.floats(-1, 12),
    st.floats(0, 5),
)


@given(spans=st.lists(ANY_SPAN, max_size=20))
def test_the_account_sums_to_the_step(spans):
    found = account(spans, 10.0)
    assert sum(found.by_phase_s.values()) == pytest.approx(10.0)
    assert sum(found.phase_s(phase) for phase in PHASES) == pytest.approx(10.0)
    for kind in (Kind.ALL_REDUCE, Kind.SEND_RECV):
        exposed_s = sum(s for (_, found_kind), s in found.by_phase_s.items() if found_kind == kind)
        assert exposed_s <= found.communication_s.get(kind, 0.0) + 1e-9


def test_neighbours_of_a_phase_are_drawn_as_one():
    spans = sorted((span for span in SPANS if span.kind), key=lambda span: span.start_s)
    drawn = sorted(merged(spans, 0.1), key=lambda span: span.start_s)
    assert [(s.phase, s.start_s, s.end_s) for s in drawn if s.computes] == [
        ("forward", 1.0, 4.0),
        ("backward", 7.0, 8.0),
        ("optimizer", 9.0, 10.0),
    ]


def test_the_innermost_operator_counts_except_inside_a_product():
    #  0 linear(0..10) > 1 mm(1..4) > 2 copy(2..3);  linear > 3 add(5..6);  4 view(12..13)
    start, end = np.array([0.0, 1.0, 2.0, 5.0, 12.0]), np.array([10.0, 4.0, 3.0, 6.0, 13.0])
    code, is_whole = np.arange(5, dtype=np.int16), np.array([False, True, False, False, False])
    assert list(innermost(start, end, code, is_whole)) == [
        (0.0, 1.0, 0),
        (1.0, 4.0, 1),
        (4.0, 5.0, 0),
        (5.0, 6.0, 3),
        (6.0, 10.0, 0),
        (12.0, 13.0, 4),
    ]


@given(
    spans=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), min_size=1, max_size=12),
    data=st.data(),
)
def test_segments_cover_what_the_operators_cover_once(spans, data):
    start = np.array([s for s, _ in spans], dtype=np.float64)
    end = start + np.array([length for _, length in spans])
    whole = np.array(data.draw(st.lists(st.booleans(), min_size=len(spans), max_size=len(spans))))
    found = list(innermost(start, end, np.arange(start.size, dtype=np.int16), whole))
    clock, total = -1.0, 0.0
    for begins, ends, _ in found:
        assert clock <= begins < ends
        clock, total = ends, total + ends - begins
    # Operators that overlap without nesting are cut where the outer one ends.
    covered = sum(any(s <= t < e for s, e in zip(start, end, strict=True)) for t in range(40))
    assert total <= covered


KERNELS = {
    "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT": GEMM,
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128>": GEMM,
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": GEMM,
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn": GEMM,
    "Cijk_Ailk_Bjlk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64": GEMM,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>": GEMM,
    "triton_tem_fused_mm_12": GEMM,
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>": ATTENTION,
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)": ATTENTION,
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16": ATTENTION,
    "triton_tem_fused_flex_attention_3": ATTENTION,
    "void (anonymous namespace)::softmax_warp_forward<float, float, 10>": OTHER,
    "triton_red_fused__to_copy_mean_mul_pow_rsqrt_1": OTHER,
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>": OTHER,
    "Memset (Device)": OTHER,
    "Memcpy DtoD (Device -> Device)": OTHER,
    "Memcpy DtoH (Device -> Pinned)": Kind.COPY_TO_HOST,
    "Memcpy HtoD (Pinned -> Device)": Kind.COPY_TO_DEVICE,
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": Kind.ALL_REDUCE,
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL": Kind.REDUCE_SCATTER,
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)": Kind.ALL_GATHER,
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": Kind.SEND_RECV,
    "ncclDevKernel_Broadcast_RING_LL": Kind.BROADCAST,
    "ncclDevKernel_Generic": OTHER,
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": Kind.ALL_TO_ALL,
    "bmm_E4m3_E4m3E4m3_Fp32_t128x64x128u2_s6_et64x64_m64x64x32": GEMM,
    "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)": Kind.ALL_TO_ALL,
    "void dpsk::ep::internode::notify_dispatch<false, 4>(int const*)": Kind.ALL_TO_ALL,
    "void deep_ep::internode_ll::combine<true, 3>(void*, int*)": Kind.ALL_TO_ALL,
    "void dpsk::ep::cuda::get_dispatch_layout(long const*)": OTHER,
    "void cdpsk::ep::CUB_200500_900_NS::DeviceScanKernel<>": OTHER,
    "void c10d::nvshmem_extension::allToAllV<false>(void*)": Kind.ALL_TO_ALL,
    "void dpsk::gemm::fp8_gemm_kernel<7168u, 2048u, 128u>": GEMM,
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16>": Kind.ALL_REDUCE,
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>": Kind.ALL_REDUCE,
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>": Kind.ALL_REDUCE,
    "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)": Kind.ALL_GATHER,
    "void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int, int)": Kind.ALL_GATHER,
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>(int, int)": Kind.REDUCE_SCATTER,
    "kuserbuffers_pushrecv(int, int, int*)": Kind.SEND_RECV,
    "triton_poi_fused__scaled_dot_product_flash_attention_clone_2": OTHER,
    "triton_red_fused_addmm_matmul_native_layer_norm_0": OTHER,
    "triton_tem_fused_addmm_relu_1": GEMM,
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>": OTHER,
    "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<>": ATTENTION,
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100": ATTENTION,
    "kernel_cutlass_kernel_quackrmsnormRMSNorm_object_at": OTHER,
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>": ATTENTION,
    "cutlass3x_sm100_tensorop_bf16gemm_f32_256x128x64": GEMM,
    "Custom_Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x224x64": GEMM,
    "void ck_tile::kentry<1, ck_tile::FmhaFwdKernel<>>": ATTENTION,
    "cudnn::cnn::conv2d_fprop_bf16_128x64": GEMM,
    "_rms_norm_forward_kernel": OTHER,
    "liger_cross_entropy_kernel": OTHER,
    "_rope_embedding": OTHER,
    "_cce_lse_forward_kernel": GEMM,
    "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>": OTHER,
    "void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>": GEMM,
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_known_by_its_name(name):
    assert kernel_kind(name, {}) is KERNELS[name]


def test_nccl_says_which_collective_its_sends_and_receives_make_up():
    args = {"Collective name": "all_to_allv"}
    assert kernel_kind("ncclDevKernel_SendRecv", args) is Kind.ALL_TO_ALL
    assert collective_kind("_allgather_base") is Kind.ALL_GATHER
    assert collective_kind("gloo:reduce_scatter") is Kind.REDUCE_SCATTER


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", GEMM),
        ("aten::addmm", GEMM),
        ("aten::bmm", GEMM),
        ("aten::_grouped_mm", GEMM),
        ("aten::_scaled_mm", GEMM),
        ("mkldnn::_linear_pointwise", GEMM),
        ("aten::linear", OTHER),
        ("aten::matmul", OTHER),
        ("aten::mean", OTHER),
        ("aten::embedding", OTHER),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", ATTENTION),
        ("aten::scaled_dot_product_attention", OTHER),
        ("aten::_scaled_dot_product_attention_math", OTHER),
        ("autograd::engine::evaluate_function: MmBackward0", OTHER),
        ("c10d::allreduce_", None),
        ("_c10d_functional::wait_tensor", None),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Wait.DATA_LOADER),
    ],
)
def test_an_operator_is_known_by_its_name(name, kind):
    assert operator_kind(name) is kind


JOBS = {
    "one rank": job(1),
    "ddp": job(2),
    "fsdp": job(2, zero=3),
    "tensor": job(2, tp=2),
    "experts": job(2, {"experts": EXPERTS}, ep=2),
}


@pytest.mark.parametrize("name", JOBS)
def test_phases_of_the_prediction_are_those_that_real_runs_are_held_against(name):
    result = run_step(JOBS[name])
    found = account(predicted_spans(JOBS[name], result, 0), result.step_time_s)
    expected = class_phases_s(result.timeline, 0, pipelined=False)
    # A wait for weights that are gathered ahead is of the gather here, of the next pass there.
    tolerance = 4e-3 if name == "fsdp" else 1e-6
    assert {phase: found.phase_s(phase) for phase in PHASES} == pytest.approx(
        expected, rel=tolerance
    )


def test_kinds_of_the_prediction_come_from_what_a_layer_consists_of():
    fused = kernel_kinds(job(1, precision="bf16", attention="flash"))
    assert fused["qkv"] is fused["head"] is fused["mlp_down"] is GEMM
    assert fused["attention"] is ATTENTION
    assert fused["attention_norm"] is fused["embedding"] is fused["cross_entropy"] is OTHER
    unfused = kernel_kinds(job(1, attention="unfused"))
    assert (unfused["scores"], unfused["softmax"]) == (GEMM, OTHER)
