"""Do kernels of an engine, factors of running engines and padded graphs follow their rules?"""

from __future__ import annotations

import random
import statistics

import pytest

from simulator.described.load import load_model, load_profile
from simulator.serving.block_cache import BlockCache
from simulator.serving.defaults import has_own_all_reduce
from simulator.serving.described import Deployment
from simulator.serving.kernels.parameters import ExpertFit, kernel_fits, product_fit
from simulator.serving.kernels.products import product_s
from simulator.serving.kernels.routed_experts import (
    busiest_rank_rows,
    experts_s,
    loads_by_chance,
    touched_experts,
)
from simulator.serving.requests import Request
from simulator.serving.schedulers.scheduler import Batch, Chunk, Limits
from simulator.serving.schedulers.sglang import Sglang
from simulator.serving.step_time import StepTime


def deployment(**settings):
    model, profile = load_model("llama3.1-8b"), load_profile("h100-sxm-80gb")
    return Deployment(model=model, profile=profile, gpus=1, **settings)


def test_a_factor_of_running_engines_is_left_out_with_the_source_that_told_it():
    slowed = kernel_fits("l40s", "tensorrt-llm", "0.17")
    plain = kernel_fits("l40s", "tensorrt-llm", "0.17", "TensorRT-LLM docs (NVIDIA)")
    elsewhere = kernel_fits("l40s", "tensorrt-llm", "0.17", "InferenceX")
    assert slowed.products["fp8"].efficiency == pytest.approx(
        plain.products["fp8"].efficiency / 1.25
    )
    assert elsewhere == slowed


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "mi300x"])
def test_experts_of_four_bits_that_vllm_widens_compute_slower_and_read_as_fast(gpu):
    """Told by GPUStack on H100 and by InferenceX on MI300X; other engines are as they were."""
    told, others = kernel_fits(gpu, "vllm", "0.11"), kernel_fits(gpu, "atom")
    slow, plain = told.experts["mxfp4"], others.experts["mxfp4"]
    read = slow.memory_efficiency / plain.memory_efficiency
    assert slow.efficiency / plain.efficiency == pytest.approx(read / 2.0)
    assert told.experts["bf16"] == others.experts["bf16"]


def test_newer_vllm_computes_experts_of_four_bits_on_hopper_twice_as_fast():
    """A pool of eight H200 keeps up with 40 prompts of 8,192 tokens a second with 0.23."""
    old, new = (kernel_fits("h200-sxm-141gb", "vllm", version) for version in ("0.22", "0.23"))
    slow, fast = old.experts["mxfp4"], new.experts["mxfp4"]
    assert fast.efficiency == pytest.approx(2.0 * slow.efficiency)
    assert fast.memory_efficiency == slow.memory_efficiency
    assert new == kernel_fits("h200-sxm-141gb", "vllm")


@pytest.mark.parametrize("gpu", ["mi100", "mi210", "mi250", "mi250x"])
def test_older_gpus_of_amd_have_the_kernels_of_mi300x_and_not_of_hopper(gpu):
    assert kernel_fits(gpu, "vllm", "0.8.5") == kernel_fits("mi300x", "vllm", "0.8.5")


@pytest.mark.parametrize("form", ["bf16", "int4"])
@pytest.mark.parametrize("gpu", ["a10g-24gb", "rtx-3090-24gb", "rtx-3090ti-24gb"])
def test_memory_of_graphics_cards_is_read_to_a_larger_share_than_that_of_a100(gpu, form):
    """Told by runs of five sources on A10G and RTX 3090; all else is as on A100."""
    own, stacked = kernel_fits(gpu, "vllm"), kernel_fits("a100-sxm-80gb", "vllm")
    graphics = kernel_fits("rtx-4090", "vllm")
    share = own.products[form].memory_efficiency
    assert share == pytest.approx(graphics.products["bf16"].memory_efficiency)
    assert share > 1.2 * stacked.products[form].memory_efficiency
    assert own.products[form].efficiency == stacked.products[form].efficiency
    assert (own.decode, own.prefill) == (stacked.decode, stacked.prefill)


def int4_s(gpu, engine, m, n=5120, k=5120):
    profile = load_profile(gpu)
    return product_s(
        product_fit(kernel_fits(gpu, engine), "int4"),
        "int4",
        m=m,
        n=n,
        k=k,
        peak_flop_per_s=profile.device.peak.fp16_flop_per_s,
        bandwidth_bytes_per_s=profile.device.memory_bandwidth_bytes_per_s,
        sm_count=profile.device.sm_count,
    )


def test_marlin_reads_weights_of_four_bits_faster_than_tensorrt_llm_on_ampere():
    """On A100; a weight with its scale is 0.53 bytes."""
    for engine in ("vllm", "sglang", "lmdeploy"):
        read_s = 0.53 * 5120 * 5120 / (0.755 * 2.039e12)
        assert read_s < int4_s("a100-sxm-80gb", engine, 1) < 1.8 * read_s
    assert int4_s("a100-sxm-80gb", "tensorrt-llm", 1) > 1.5 * int4_s("a100-sxm-80gb", "vllm", 1)


def test_few_rows_of_four_bits_are_computed_in_tiles_of_few_rows():
    """A GeForce card has little rate for its bandwidth, and still reads weights at its speed."""
    read_s = 0.53 * 5120 * 5120 / 1.008e12
    assert int4_s("rtx-4090", "lmdeploy", 1) < 1.5 * read_s
    assert int4_s("rtx-4090", "lmdeploy", 16) < 1.1 * int4_s("rtx-4090", "lmdeploy", 1)


@pytest.mark.parametrize(("rows", "computed_rows"), [(1, 8 * 2.0), (1024, 1087.5 * 1.0625)])
def test_an_expert_is_computed_in_tiles_of_the_height_that_suits_its_rows(rows, computed_rows):
    # Half of the rate at 8 rows, and at 10 columns: the smallest tile for one row, the largest
    # for many.
    fit = ExpertFit(
        floor_s="0 us",
        memory_efficiency=1.0,
        efficiency=1.0,
        tile_half=8.0,
        width_half=10.0,
        source={"kind": "assumed", "reference": "round numbers"},
    )
    took_s = experts_s(
        fit,
        "bf16",
        loads_by_chance(rows, experts=1, top_k=1, ranks=1),
        hidden=100,
        ffn_hidden=10,
        matrices=3,
        peak_flop_per_s=1e6,
        bandwidth_bytes_per_s=1e15,
    )
    assert took_s == pytest.approx(2 * 2 * computed_rows * 3 * 100 * 10 / 1e6)


def test_an_engine_before_graphs_launches_every_kernel_of_every_step():
    alone = Batch(1, 128.0)
    old, new = (StepTime(deployment(version=version))(alone) for version in ("0.2.0", "0.2.6"))
    assert old.device_s == pytest.approx(32 * 12 * 35e-6)
    assert new.device_s < old.device_s


@pytest.mark.parametrize(("tokens", "are_held"), [(8, True), (64, True), (65, False)])
def test_graphs_of_vllms_second_engine_hold_prompts_too_but_for_attention(tokens, are_held):
    prompt = Batch(chunks=[Chunk(Request(0, 0.0, tokens, 8), tokens, 0)])
    sizes = ((1, 64, 1),)
    took_s = StepTime(deployment(version="0.9.1", graph_batches=sizes))(prompt).device_s
    assert (took_s < 32 * 12 * 35e-6) == are_held
    assert took_s >= 32 * 3 * 35e-6


def test_vllm_without_graphs_launches_as_slowly_as_before_there_were_any():
    eager, graphs = (
        StepTime(deployment(version="0.9.1", graphs=given))(Batch(1, 128.0))
        for given in (False, True)
    )
    assert eager.device_s == pytest.approx(32 * 12 * 35e-6)
    assert graphs.device_s < 0.6 * eager.device_s


@pytest.mark.parametrize(
    ("engine", "gpu", "tp", "has_own"),
    [("vllm", "l40s", 2, True), ("vllm", "l40s", 4, False), ("sglang", "a40-48gb", 4, False),
     ("vllm", "h100-sxm-80gb", 8, True), ("tensorrt-llm", "l40s", 4, True)],
)  # fmt: skip
def test_vllms_all_reduce_is_not_for_more_than_two_gpus_without_nvlink(engine, gpu, tp, has_own):
    """vllm-project/vllm#56128 quotes the rule of custom_all_reduce.py."""
    given = {"gpus": tp, "tp": tp, "engine": engine, "profile": load_profile(gpu)}
    assert has_own_all_reduce(deployment().model_copy(update=given)) == has_own


def test_without_its_own_all_reduce_an_engine_takes_the_longer_one_of_the_library():
    own = Deployment(
        model=load_model("llama3.1-70b"), profile=load_profile("h100-sxm-80gb"), gpus=4, tp=4
    )
    library = own.model_copy(update={"custom_all_reduce": False})
    times = [StepTime(d)(Batch(8, 8192.0)).device_s for d in (own, library)]
    # 160 of them, with 128 KiB each: NCCL takes 10 to 30 us more than one shot over NVLink.
    assert 160 * 5e-6 < times[1] - times[0] < 160 * 30e-6


@pytest.mark.parametrize(("tp", "pp", "field"), [(3, 1, "tp"), (4, 3, "pp")])
def test_the_degree_that_does_not_divide_the_gpus_is_named(tp, pp, field):
    with pytest.raises(ValueError, match="must divide the 8 GPUs") as error:
        Deployment(
            model=load_model("llama3.1-8b"), profile=load_profile("h100-sxm-80gb"),
            gpus=8, tp=tp, pp=pp,
        )  # fmt: skip
    assert [fault["loc"] for fault in error.value.errors()] == [(field,)]


def test_products_of_16_bits_slow_down_with_the_clock_of_long_work():
    fast = deployment()
    kernels = fast.profile.kernels.model_copy(update={"sustained_clock": 0.37})
    slow = fast.model_copy(update={"profile": fast.profile.model_copy(update={"kernels": kernels})})
    prompts = Batch(0, 0.0)
    prompts.chunks.append(Chunk(Request(0, 0.0, 8192, 1), 8192, 0))
    times = [StepTime(d)(prompts).device_s for d in (fast, slow)]
    assert 1.5 < times[1] / times[0] < 2.0


def test_an_entry_before_a_version_holds_for_older_versions_alone():
    old, new = (kernel_fits("mi300x", "sglang", version) for version in ("0.5.9", "0.5.12"))
    assert old.small_kernel_s > new.small_kernel_s
    assert kernel_fits("mi300x", "sglang") == new


def test_a_batch_of_answers_is_padded_to_the_next_graph():
    step = StepTime(deployment(graph_batches=((64, 64, 64),)))
    exact = StepTime(deployment(graph_batches=((1, 64, 1),)))
    few, many = Batch(33, 33_000.0), Batch(64, 33_000.0)
    assert step(few).device_s > exact(few).device_s
    assert step(many) == exact(many)


def test_a_batch_beyond_the_largest_graph_is_launched_kernel_by_kernel():
    few = StepTime(deployment(graph_batches=((1, 63, 1),)))
    no_graphs = StepTime(deployment(graphs=False))
    within, beyond = Batch(63, 6_300.0), Batch(64, 6_400.0)
    assert few(within).device_s < no_graphs(within).device_s
    assert few(beyond) == no_graphs(beyond)


def test_sglang_looks_at_what_has_arrived_every_so_many_steps_of_answers():
    scheduler = Sglang(Limits(8, 1024, receive_steps=10), BlockCache(4096, 1, keeps_prefixes=False))
    scheduler.arrive(Request(0, 0.0, 16, 100))
    assert scheduler.schedule().chunks
    scheduler.schedule()
    late = Request(1, 0.0, 16, 100)
    scheduler.arrive(late)
    steps = 0
    while late not in scheduler.running:
        scheduler.schedule()
        steps += 1
    assert steps == 10
    assert scheduler.load == 2


LAYER = {
    "hidden": 2048, "ffn_hidden": 768, "matrices": 3,
    "peak_flop_per_s": 312e12, "bandwidth_bytes_per_s": 2e12,
}  # fmt: skip


def grouped_s(loads, **more):
    return experts_s(kernel_fits("a100-sxm-80gb").experts["bf16"], "bf16", loads, **LAYER, **more)


def test_experts_of_even_rows_take_what_routing_by_chance_takes_where_all_are_visited():
    fit = kernel_fits("a100-sxm-80gb").experts["bf16"]
    loads = loads_by_chance(65536, experts=4, top_k=1, ranks=1)
    by_chance_s = experts_s(fit, "bf16", loads, **LAYER)
    assert by_chance_s == pytest.approx(grouped_s([(4, 65536.0)]))


def drawn_experts(draw, groups, picked):
    """Eight experts of 256 that a token visits, of groups that it picks first."""
    size = 256 // groups
    pool = [of * size + at for of in draw.sample(range(groups), picked) for at in range(size)]
    return draw.sample(pool, 8)


@pytest.mark.parametrize(
    ("ranks", "groups", "picked"), [(8, 1, 1), (4, 8, 4), (8, 8, 4), (16, 8, 4)]
)
@pytest.mark.parametrize("tokens", [16, 128])
def test_the_busiest_rank_has_what_most_of_several_draws_have(tokens, ranks, groups, picked):
    draw, touched, rows = random.Random(0), [], []
    for _ in range(20):
        visits = [each for _ in range(tokens) for each in drawn_experts(draw, groups, picked)]
        of_ranks = [[each for each in visits if each * ranks // 256 == at] for at in range(ranks)]
        touched.append(max(len(set(of_one)) for of_one in of_ranks))
        rows.append(max(len(of_one) for of_one in of_ranks))
    [found] = loads_by_chance(
        tokens, experts=256, top_k=8, ranks=ranks, groups=groups, picked=picked
    )
    assert found == pytest.approx((statistics.fmean(touched), statistics.fmean(rows)), rel=0.08)


def test_one_rank_has_all_rows_and_visited_experts():
    [(touched, rows)] = loads_by_chance(100, experts=256, top_k=8, ranks=1, groups=8, picked=4)
    assert (touched, rows) == pytest.approx((touched_experts(256, 8, 100), 800))


def test_rows_of_other_ranks_cost_their_bytes_where_the_kernel_runs_over_them():
    assert grouped_s([(1, 256)], rows_elsewhere=65536) > 2 * grouped_s([(1, 256)])


def test_the_busiest_rank_of_a_power_law_has_more_than_its_share_and_all_ranks_have_all():
    for rows in busiest_rank_rows(4096, 128, 8, 4, 1.01):
        assert len(rows) == 32
        assert 4096 * 8 / 4 < sum(rows) < 4096 * 8
    for rows in busiest_rank_rows(4096, 128, 8, 1, 1.01):
        assert sum(rows) == pytest.approx(4096 * 8, rel=0.01)


def test_no_expert_gets_a_token_twice():
    for rows in busiest_rank_rows(4096, 8, 2, 1, 1.01):
        assert max(rows) <= 4096
        assert sum(rows) == pytest.approx(4096 * 2, rel=0.01)
