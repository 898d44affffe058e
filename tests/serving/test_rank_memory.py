"""What a rank of a served model holds: weights, cache, adapters, by published sizes and by hand."""

from __future__ import annotations

import re

import pytest

from simulator.described.load import load_model, load_profile
from simulator.errors import DoesNotFitError, InputError
from simulator.program.layer.model_totals import parameter_count
from simulator.serving.cache_memory import memory_plan
from simulator.serving.cluster import serve
from simulator.serving.defaults import engine_defaults, limits_of, scheduler_name
from simulator.serving.described import Adapters, Deployment
from simulator.serving.shapes import (
    adapter_numel,
    cache_bytes_per_token,
    kv_heads_per_rank,
    layer_shapes,
    weight_bytes,
)
from simulator.serving.workload import Lengths, Workload

GIB = 2.0**30


def deployment_of(
    model: str = "llama3.1-8b", gpus: int = 1, gpu: str = "h100-sxm-80gb", **fields: object
) -> Deployment:
    return Deployment(model=load_model(model), profile=load_profile(gpu), gpus=gpus, **fields)


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-30b-a3b", "gpt2"])
def test_sixteen_bit_weights_of_one_gpu_are_two_bytes_per_parameter(model):
    """A tied matrix counts once: the rank looks up and multiplies with the same one."""
    assert weight_bytes(deployment_of(model)) == pytest.approx(
        2 * parameter_count(load_model(model)), rel=1e-6
    )


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_ranks_divide_all_but_the_norms(tp):
    one, many = weight_bytes(deployment_of()), weight_bytes(deployment_of(gpus=tp, tp=tp))
    norms = 2 * 4096 * (2 * 32 + 1)
    assert many == pytest.approx((one - norms) / tp + norms)


def test_stages_divide_the_layers_and_the_two_ends_lie_on_two_of_them():
    one, four = weight_bytes(deployment_of()), weight_bytes(deployment_of(gpus=4, pp=4))
    ends = 2 * (2 * 128256 * 4096 + 4096)
    assert four == pytest.approx((one - ends) / 4 + ends / 2)


@pytest.mark.parametrize("weights", ["fp8", "int8"])
def test_eight_bits_halve_the_layers_and_leave_embedding_and_head(weights):
    ends = 2 * 2 * 128256 * 4096
    wide, narrow = (weight_bytes(deployment_of(weights=form)) for form in ("bf16", weights))
    assert (narrow - ends) / (wide - ends) == pytest.approx(1 / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "tp", "expected"),
    [
        ("llama3.1-8b", 1, 2 * 8 * 128 * 2 * 32),
        ("llama3.1-8b", 4, 2 * 2 * 128 * 2 * 32),
        ("llama3.1-8b", 8, 2 * 1 * 128 * 2 * 32),
        ("deepseek-v3", 1, (512 + 64) * 2 * 61),
        ("deepseek-v3", 8, (512 + 64) * 2 * 61),
    ],
)
def test_a_token_of_the_cache_is_a_key_and_a_value_per_head_and_layer_or_one_latent(
    model, tp, expected
):
    """DeepSeek-V2 (arXiv 2405.04434), section 2.1: one latent and one rotary key for all heads."""
    assert cache_bytes_per_token(deployment_of(model, gpus=tp, tp=tp)) == expected


def test_more_ranks_than_heads_of_keys_keep_copies():
    wide = deployment_of(gpus=16, tp=16)
    assert kv_heads_per_rank(wide) == 1
    assert cache_bytes_per_token(wide) == cache_bytes_per_token(deployment_of(gpus=8, tp=8))


def test_a_cache_of_eight_bits_holds_twice_the_tokens():
    wide, narrow = (cache_bytes_per_token(deployment_of(cache=form)) for form in ("bf16", "fp8"))
    assert wide == 2 * narrow


def test_layers_with_a_window_keep_no_more_than_it_and_are_left_out():
    """Every second layer of Gemma 2 has one."""
    model = load_model("gemma2-9b")
    per_layer = 2 * model.kv_heads * model.head_dim * 2
    assert cache_bytes_per_token(deployment_of("gemma2-9b")) == per_layer * model.layers / 2


@pytest.mark.parametrize("rank", [8, 64])
def test_an_adapter_has_two_matrices_beside_each_product(rank):
    """Of Llama 3.1 8B: h 4096, f 14336, keys and values of 1024; 41.9 million at rank 16."""
    deployment = deployment_of(adapters=Adapters(rank=rank))
    h, f, kv = 4096, 14336, 1024
    per_layer = 2 * (h + h) + 2 * (h + kv) + 3 * (h + f)
    assert adapter_numel(deployment) == 32 * rank * per_layer
    assert adapter_numel(deployment_of()) == 0.0


def test_the_bytes_of_a_rank_are_the_share_that_the_engine_may_use():
    deployment = deployment_of(memory_share=0.8)
    plan = memory_plan(deployment, limits_of(deployment, 4096))
    parts = plan.weights_bytes + plan.activations_bytes + plan.other_bytes + plan.cache_bytes
    assert parts == pytest.approx(0.8 * plan.total_bytes)
    assert plan.total_bytes == deployment.profile.device.memory_bytes
    per_block = plan.block_tokens * cache_bytes_per_token(deployment)
    assert plan.blocks == int(plan.cache_bytes / per_block)


def test_tensorrt_llm_takes_its_share_of_what_is_free_after_weights():
    deployment = deployment_of(engine="tensorrt-llm", memory_share=0.5)
    plan = memory_plan(deployment, limits_of(deployment, 4096))
    taken = plan.weights_bytes + plan.activations_bytes + plan.other_bytes
    assert plan.cache_bytes == pytest.approx(0.5 * (plan.total_bytes - taken))


def test_loaded_adapters_lie_beside_the_weights_in_sixteen_bits():
    bare, loaded = deployment_of(), deployment_of(adapters=Adapters(rank=16, loaded=8))
    plans = [memory_plan(each, limits_of(each, 4096)) for each in (bare, loaded)]
    more = plans[1].weights_bytes - plans[0].weights_bytes
    assert more == pytest.approx(2 * 8 * adapter_numel(loaded))
    assert plans[0].cache_bytes - plans[1].cache_bytes == pytest.approx(more)


def test_blocks_that_a_user_states_are_believed():
    deployment = deployment_of(kv_blocks=77)
    assert memory_plan(deployment, limits_of(deployment, 4096)).blocks == 77


def test_host_memory_holds_as_many_blocks_as_fit_in_it():
    deployment = deployment_of(swap="4 GiB")
    plan = memory_plan(deployment, limits_of(deployment, 4096))
    assert plan.host_blocks == int(4 * GIB / (plan.block_tokens * 131072))


def test_weights_that_leave_no_room_say_what_is_missing_and_what_helps():
    deployment = deployment_of("llama3.1-70b")
    with pytest.raises(
        DoesNotFitError, match=r"leave no room for the cache.*more GPUs per replica"
    ):
        memory_plan(deployment, limits_of(deployment, 4096))
    eight = deployment_of("llama3.1-70b", gpus=8)
    with pytest.raises(DoesNotFitError, match=r"--set deployment\.tp=2\b") as said:
        memory_plan(eight, limits_of(eight, 4096))
    assert "deployment.weights=fp8" in str(said.value)
    # The numbers add up, but for three digits of each.
    numbers = map(float, re.findall(r"([\d.]+) GiB", str(said.value)))
    weights, rest, used, _whole, missing = numbers
    assert "that vllm uses of each GPU's" in str(said.value)
    assert weights + rest - used == pytest.approx(missing, abs=1)
    wider = deployment_of("llama3.1-70b", gpus=8, tp=2)
    assert memory_plan(wider, limits_of(wider, 4096)).blocks > 0


@pytest.mark.parametrize(
    ("fields", "lengths", "said"),
    [
        ({"kv_blocks": 4}, 100, "does not fit in the cache"),
        ({"kv_blocks": 10**8}, 300_000_000, "has caches of"),
    ],
)
def test_a_cache_too_small_for_a_request_or_too_large_to_simulate_is_refused(fields, lengths, said):
    workload = Workload(requests=2, prompt=Lengths(mean=lengths), answer=Lengths(mean=10))
    with pytest.raises(InputError, match=said):
        serve(deployment_of(**fields), workload)


def test_blocks_that_no_request_reaches_change_nothing():
    workload = Workload(requests=20, prompt=Lengths(mean=100), answer=Lengths(mean=10))
    few, many = (
        serve(deployment_of(kv_blocks=blocks), workload).requests for blocks in (1000, 10**8)
    )
    assert [each.last_token_s for each in few] == [each.last_token_s for each in many]


@pytest.mark.parametrize(
    ("version", "longest", "model", "tokens", "scheduler"),
    [
        ("0.6.0", 8192, "llama3.1-8b", 8192, "vllm-v0"),
        ("0.6.0", 1024, "llama3.1-8b", 2048, "vllm-v0"),
        ("0.6.0", 131072, "llama3.1-8b", 512, "vllm-v1"),
        ("0.6.6", 131072, "llama3.1-8b", 2048, "vllm-v1"),
        ("0.7.3", 163840, "deepseek-v3", 163840, "vllm-v0"),
        ("0.8.0", 131072, "llama3.1-8b", 8192, "vllm-v1"),
    ],
)
def test_the_first_engine_of_vllm_sizes_its_steps_by_the_longest_request(
    version, longest, model, tokens, scheduler
):
    # vLLM 0.6 and 0.7, config.py and arg_utils.py: max(max_model_len, 2048) without pieces of
    # prompts, which come by themselves above 32,768; 512 tokens then, 2,048 from 0.6.5 on. Latent
    # attention has no pieces.
    deployment = deployment_of(model, version=version, max_model_tokens=longest)
    assert limits_of(deployment, 100).max_tokens == tokens
    assert scheduler_name(deployment) == scheduler


def test_dense_models_in_mxfp4_have_all_products_in_four_bits_and_mixtures_their_experts():
    # AMD's checkpoint of Llama 3.1 405B in MXFP4 has 218 GB (17 of 32 bytes a block, 16-bit ends).
    dense = deployment_of("llama3.1-405b", weights="mxfp4")
    assert weight_bytes(dense) == pytest.approx(218e9, rel=0.03)
    mixture = deployment_of("gpt-oss-20b", weights="mxfp4")
    assert {p.weight_format for s in layer_shapes(mixture) for p in s.attention} == {"bf16"}


def test_groups_with_requests_of_their_own_have_the_limits_of_an_engine_each():
    one = limits_of(deployment_of("deepseek-v3", gpus=8, tp=8), 4096)
    eight = limits_of(deployment_of("deepseek-v3", gpus=8, attention_dp=8), 4096)
    assert (eight.max_requests, eight.max_tokens) == (8 * one.max_requests, 8 * one.max_tokens)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_version_has_the_newest_defaults_that_are_not_newer_than_itself(engine):
    newest = engine_defaults(deployment_of(engine=engine))
    versions = ("99999", newest.first_version)
    assert [engine_defaults(deployment_of(engine=engine, version=v)) for v in versions] == [
        newest
    ] * 2


@pytest.mark.parametrize(
    ("version", "gpu", "requests", "tokens"),
    [("0.8.3", "a100-sxm-80gb", 1024, 2048), ("0.8.4", "a100-sxm-80gb", 256, 2048),
     ("0.8.5", "a100-sxm-80gb", 1024, 8192), ("0.9.1", "a100-sxm-80gb", 256, 2048),
     ("0.8.4", "h100-sxm-80gb", 1024, 8192), ("0.8.4", "mi300x", 256, 2048),
     ("0.8.5", "mi300x", 1024, 8192), ("0.10.1", "l40s", 256, 2048)],
)  # fmt: skip
def test_sizes_of_vllms_second_engine_follow_the_gpu_by_release(version, gpu, requests, tokens):
    """vllm-project/vllm#12369, #16158, #17073 and #17885; 0.10.1.1's log on A100 has 2,048."""
    limits = limits_of(deployment_of(gpu=gpu, version=version), 4096)
    assert (limits.max_requests, limits.max_tokens) == (requests, tokens)


def test_a_benchmark_in_the_same_process_has_larger_steps():
    given = {"version": "0.10", "has_front_end": False}
    assert limits_of(deployment_of(**given), 4096).max_tokens == 16384


def test_an_entry_has_what_the_one_before_it_says_unless_it_says_otherwise():
    old, new = (engine_defaults(deployment_of(version=version)) for version in ("0.2.0", "0.5"))
    assert (old.host.request_s, new.host.request_s) == (300e-6, 100e-6)
    assert new.block_tokens == old.block_tokens
    assert (old.captures_graphs, new.captures_graphs) == (False, True)


def test_turbomind_takes_its_share_of_what_the_weights_leave():
    deployment = deployment_of(engine="lmdeploy", version="0.2", gpus=1)
    plan = memory_plan(deployment, limits_of(deployment, 4096))
    left = plan.total_bytes - plan.weights_bytes - plan.activations_bytes - plan.other_bytes
    assert plan.cache_bytes == pytest.approx(0.8 * left)


def test_products_of_one_input_are_one_and_divide_over_ranks():
    """Query, key and value of Llama 3.1 8B: 4096 + 2 x 1024 outputs; gate and up: 2 x 14336."""
    (layer,) = layer_shapes(deployment_of(gpus=4, tp=4))
    assert layer.layers == 32
    assert not layer.has_experts
    sizes = {(product.n, product.k) for product in (*layer.attention, *layer.mlp)}
    assert sizes == {(6144 / 4, 4096), (4096, 4096 / 4), (28672 / 4, 4096), (4096, 14336 / 4)}
