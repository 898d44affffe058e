"""What plan, stack and schedule decide together, against what their documentation says."""

import pickle

import pytest

from simulator.described.load import load_model, load_profile
from simulator.described.plan.data_parallelism import DATA_PARALLELISM
from simulator.program.build import EXCHANGES
from tests.jobs import small_job, small_model


@pytest.mark.parametrize(
    ("zero", "sharded"),
    [(0, (False, False, False)), (1, (True, False, False)), (2, (True, True, False)),
     (3, (True, True, True))],
)  # fmt: skip
def test_each_zero_stage_shards_states_then_gradients_then_weights(zero, sharded):
    choices = small_job(gpus=2, zero=zero).choices
    assert (choices.shards_states, choices.shards_gradients, choices.shards_weights) == sharded
    assert choices.hands_out_weights == (zero in (1, 2))


@pytest.mark.parametrize(
    ("stack", "zero"),
    [("megatron-core", 1), ("megatron-lm-2021", 0), ("torch", 0), ("trl", 0), ("torch-fsdp", 3),
     ("torchtitan", 3), ("torchtune", 3), ("jax", 3), ({"base": "torch", "zero": 2}, 2)],
)  # fmt: skip
def test_ranks_shard_what_the_stack_does_where_the_plan_does_not_say(stack, zero):
    assert small_job(gpus=2, stack=stack).plan.zero == zero
    assert small_job(gpus=2, stack=stack, zero=1).plan.zero == 1


@pytest.mark.parametrize(("zero", "overlaps"), [(0, False), (1, False), (2, False), (3, True)])
def test_deepspeed_reduces_beside_backward_with_zero_3_alone_unless_the_plan_says_so(
    zero, overlaps
):
    """``overlap_comm_valid`` of DeepSpeed's zero/config.py."""
    plan = {"gpus": 2, "zero": zero, "stack": "deepspeed"}
    assert small_job(**plan).choices.overlaps_reduction is overlaps
    for asked in (True, False):
        asking = small_job(**plan, overlap_grad_reduce=asked)
        assert asking.choices.overlaps_reduction is asked


@pytest.mark.parametrize("asked", [None, True, False])
def test_the_plan_is_asked_before_the_stack(asked):
    megatron, torch = (
        small_job(gpus=2, overlap_param_gather=asked, stack=stack).choices
        for stack in ("megatron-core", "torch")
    )
    assert megatron.overlaps_gather is (True if asked is None else asked)
    assert torch.overlaps_gather is bool(asked)


@pytest.mark.parametrize(
    ("profile", "experts", "overlaps"),
    [
        ("tpu7x-ironwood", {"count": 4, "top_k": 2, "ffn_hidden": 64}, False),
        ("tpu7x-ironwood", {"count": 4, "top_k": 2, "ffn_hidden": 64, "capacity_factor": 1}, True),
        ("tpu7x-ironwood", None, True),
        ("h100-sxm-80gb", {"count": 4, "top_k": 2, "ffn_hidden": 64}, True),
    ],
)
def test_on_tpus_nothing_hides_collectives_of_experts_that_take_every_token(
    profile, experts, overlaps
):
    of = {"model": small_model(experts=experts), "profile": load_profile(profile), "gpus": 4}
    usual = small_job(**of, stack="jax").choices
    assert usual.overlaps_gather is usual.overlaps_reduction is overlaps
    assert small_job(**of, stack="jax", overlap_param_gather=True).choices.overlaps_gather


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_overlaps_reductions_in_zero_3_alone_unless_it_is_told_to(zero):
    """``overlap_comm`` of its runtime/zero/config.py is None, which means stage 3."""
    usual, asked = (
        small_job(gpus=2, zero=zero, stack="deepspeed", overlap_grad_reduce=asked).choices
        for asked in (None, True)
    )
    assert usual.overlaps_reduction == (zero == 3)
    assert asked.overlaps_reduction


def test_gradients_are_reduced_in_the_format_of_the_plan_and_kept_in_it_where_that_is_in_place():
    in_place = small_job(grad_reduce_precision="bf16", stack="megatron-core").choices
    beside = small_job(grad_reduce_precision="bf16", stack="torchtitan").choices
    assert (in_place.reduced_gradients, in_place.kept_gradients) == ("bf16", "bf16")
    assert (beside.reduced_gradients, beside.kept_gradients) == ("bf16", "fp32")


def test_ranks_that_own_whole_parameters_receive_all_gradients():
    whole = {"base": "torch", "shards_whole_parameters": True}
    owns = small_job(gpus=2, zero=1, stack=whole).choices
    shards = small_job(gpus=2, zero=1, stack="torch").choices
    assert (owns.updates_whole_parameters, owns.reduces_to_shards) == (True, False)
    assert (shards.updates_whole_parameters, shards.reduces_to_shards) == (False, True)


def test_one_chunk_per_rank_implies_1f1b_which_waits_and_several_the_interleaved_order():
    plain, interleaved = (small_job(gpus=2, pp=2, vpp=vpp).choices for vpp in (1, 2))
    assert (plain.schedule.name, plain.overlaps_transfers) == ("1f1b", False)
    assert (interleaved.schedule.name, interleaved.overlaps_transfers) == ("interleaved-1f1b", True)


@pytest.mark.parametrize(("overlap_p2p", "pairs"), [(True, False), (False, True)])
def test_megatron_pairs_passes_where_one_call_exchanges_for_both(overlap_p2p, pairs):
    assert small_job(gpus=2, pp=2, vpp=2, overlap_p2p=overlap_p2p).choices.pairs_passes is pairs
    assert not small_job(gpus=2, pp=2, overlap_p2p=overlap_p2p).choices.pairs_passes


def test_a_changed_copy_and_a_copy_in_another_process_have_choices_of_their_own():
    job = small_job(gpus=2, zero=1)
    assert job.choices is job.choices
    changed = job.model_copy(update={"plan": job.plan.model_copy(update={"zero": 3})})
    assert (job.choices.shards_weights, changed.choices.shards_weights) == (False, True)
    sent = pickle.loads(pickle.dumps(job))
    assert sent == job
    assert sent.choices.job is sent


def test_only_collectives_of_all_ranks_divide_a_model_and_copy_buckets():
    ways = DATA_PARALLELISM.values()
    assert {way.name for way in ways if way.divides_model} == {"ddp"}
    assert {way.name for way in ways if way.copies_buckets} == {"ddp"}
    assert {way.name for way in ways if way.has_servers} == {"parameter-server"}
    assert {way.name for way in ways if way.is_one_process} == {"data-parallel"}


def test_every_way_of_data_parallelism_has_exchanges_or_is_one_process():
    processes = {way.name for way in DATA_PARALLELISM.values() if not way.is_one_process}
    assert set(EXCHANGES) == processes


def test_an_unknown_way_of_data_parallelism_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="known: ddp, data-parallel, parameter-server"):
        small_job(data_parallel="gossip")


@pytest.mark.parametrize(
    ("profile", "brought", "kernel"),
    [
        ("h100-sxm-80gb", "cudnn", "best"),
        ("b200-sxm-180gb", "cudnn", "best"),
        ("a100-sxm-80gb", "cudnn", "flash-2"),
        ("mi300x", "cudnn", "flash-2"),
        ("rtx-5090-32gb", "cudnn", "flash-2"),
        ("h100-sxm-80gb", "cudnn-on-blackwell", "flash-2"),
        ("b200-sxm-180gb", "cudnn-on-blackwell", "best"),
        ("h100-sxm-80gb", "flash-1", "flash-1"),
        ("a100-sxm-80gb", "sdpa-2.0", "flash-1"),
        ("h100-sxm-80gb", "sdpa-2.2", "flash-2"),
        ("b200-sxm-180gb", "sdpa-2.9", "best"),
        ("a100-sxm-80gb", "sdpa-2.11", "flash-2"),
    ],
)
def test_cudnn_is_chosen_on_the_gpus_that_pytorch_names(profile, brought, kernel):
    stack = {"base": "torch", "flash_kernel": brought}
    job = small_job(profile=load_profile(profile), stack=stack)
    assert job.choices.flash_kernel == kernel


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("brought", ["sdpa-2.2", "sdpa-2.11", "flash-2"])
@pytest.mark.parametrize("profile", ["p100-pcie-16gb", "v100-sxm2-32gb", "t4-16gb"])
def test_gpus_without_flash_attention_run_the_fused_kernel_that_they_have(
    profile, brought, precision
):
    """Their best is memory-efficient attention, whose rate their profiles say."""
    stack = {"base": "torch", "flash_kernel": brought}
    job = small_job(profile=load_profile(profile), stack=stack, precision=precision)
    assert job.choices.flash_kernel == "best"


@pytest.mark.parametrize(
    ("profile", "stack", "kernel"),
    [
        ("h100-sxm-80gb", "torch@2.8", "efficient"),
        ("h100-sxm-80gb", "torch@2.9", "best"),
        ("b200-sxm-180gb", "torch@2.9", "efficient"),
        ("h100-sxm-80gb", "torch@2.10", "efficient"),
        ("b200-sxm-180gb", "torch@2.11", "best"),
        ("a100-sxm-80gb", "torch@2.11", "efficient"),
        ("mi300x", "torch@2.8", "flash-2"),
        ("b200-sxm-180gb", "torchtitan", "flash-2"),
        ("h100-sxm-80gb", "megatron-core", "best"),
        ("h100-sxm-80gb", "automodel", "best"),
        ("h100-sxm-80gb", "axolotl", "flash-2"),
    ],
)
def test_heads_with_narrower_values_have_the_kernel_that_takes_them(profile, stack, kernel):
    job = small_job(
        model=load_model("deepseek-v2-lite"), profile=load_profile(profile), stack=stack
    )
    assert job.choices.flash_kernel == kernel


def test_latent_attention_whose_heads_are_of_one_size_is_nothing_special():
    model = load_model("deepseek-v2-lite")
    latent = model.latent_attention
    even = latent.model_copy(update={"v_head_dim": latent.qk_head_dim})
    model = model.model_copy(update={"latent_attention": even})
    job = small_job(model=model, profile=load_profile("h100-sxm-80gb"), stack="torch@2.8")
    assert job.choices.flash_kernel == "flash-2"
