"""Bytes of parameters, gradients and optimizer states on one rank."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.job import Job
from simulator.described.model import Experts
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.ir import Owner, total_bytes
from simulator.program.layer.layer_kinds import layer_tensors
from simulator.program.layer.model_ends import embedding_tensors, head_tensors
from simulator.program.layer.model_totals import parameter_count
from simulator.program.layer.tensors import TensorSplit
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.resident import (
    ParameterCount,
    added_up,
    optimizer_traffic_bytes,
    padded_vocab,
    resident_memory,
    slice_parameters,
    state_bytes,
)
from simulator.program.states.update_memory import update_memory
from tests.jobs import gpt_model, small_job, small_model

SIXTEEN = "deepspeed"
"""2 bytes of weights, 2 of gradients, and 12 of fp32 weights, momentum and variance."""


def bytes_per_parameter(**plan) -> float:
    job = small_job(gpus=plan.pop("gpus", 1), **plan)
    runs = stage_slices(job, 1)
    held = added_up(slice_parameters(job, run) for run in runs)
    states = (*resident_memory(job, held), *update_memory(job, runs).holds)
    return total_bytes(states) / held.total


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_zero_divides_a_model_of_7_5_billion_over_64_gpus_as_its_paper_says(zero, gigabytes):
    """ZeRO (arXiv 1910.02054), figure 1 and table 1, 64 ranks."""
    job = small_job(gpus=64, global_batch=64, zero=zero, stack=SIXTEEN)
    held = sum(num_bytes for _, num_bytes in resident_memory(job, ParameterCount(7.5e9))) / 1e9
    assert round(held, 1 if gigabytes > 2 else 2) == gigabytes


@pytest.mark.parametrize(("ranks", "gigabytes"), [(1, 120), (4, 52.5), (16, 35.6), (256, 30.4)])
def test_optimizer_states_shrink_with_the_ranks_as_in_the_zero_paper(ranks, gigabytes):
    """Table 1, column P_os of the 7.5B model."""
    job = small_job(gpus=ranks, global_batch=ranks, zero=1, stack=SIXTEEN)
    held = sum(num_bytes for _, num_bytes in resident_memory(job, ParameterCount(7.5e9))) / 1e9
    assert round(held, 1) == gigabytes


@pytest.mark.parametrize(
    ("stack", "per_parameter"),
    [("megatron-core", 18), ("megatron-lm-2021", 20), ("deepspeed", 16), ("torch-fsdp", 12)],
)
def test_stacks_hold_what_their_documents_state(stack, per_parameter):
    """What their documents say, in bytes per parameter, during the step.

    Megatron-Core's distributed-optimizer page: 18; Megatron-Turing (arXiv 2201.11990): 20;
    ZeRO (arXiv 1910.02054, section 3.1): 16. FSDP keeps fp32 weights and two moments from step
    to step; its gradients live from backward to the step.
    """
    assert bytes_per_parameter(stack=stack, zero=0) == pytest.approx(per_parameter)


@pytest.mark.parametrize("d", [2, 4, 8])
def test_megatrons_distributed_optimizer_holds_6_plus_12_over_d(d):
    assert bytes_per_parameter(gpus=d, zero=1) == pytest.approx(6 + 12 / d)


@pytest.mark.parametrize(
    ("precision", "zero"), [("bf16", 0), ("fp16", 0), ("fp32", 0), ("bf16", 3)]
)
def test_plain_torch_trains_fp32_weights_gradients_and_moments_whatever_products_read(
    precision, zero
):
    """4 + 2 x 4, 4 that come with backward, and with DDP a bucket of 4 more.

    torch.amp casts what products read and leaves parameters alone; fully_shard casts shards as
    they are gathered.
    """
    assert bytes_per_parameter(precision=precision, zero=zero, stack="torch") == 12
    job = small_job(gpus=2, precision=precision, zero=zero, stack="torch")
    assert state_bytes(job).gradients == 4
    buckets = dict(resident_memory(job, ParameterCount(1.0))).get(Owner.COMMUNICATION, 0.0)
    assert buckets == (0 if zero else 4)


def test_full_precision_needs_no_master_copy():
    assert bytes_per_parameter(precision="fp32", zero=0) == pytest.approx(4 + 4 + 8)
    assert state_bytes(small_job(precision="fp32")).master == 0


def test_remainders_of_weights_are_the_sixteen_bits_that_bf16_lacks():
    """Apex: "store bits required to reconstruct FP32 params", if the model is bf16."""
    remainders = {"base": "megatron-core", "keeps_weight_remainders": True}
    for d in (2, 4):
        assert bytes_per_parameter(gpus=d, stack=remainders) == pytest.approx(6 + 10 / d)
    for precision in ("fp16", "fp8", "fp32"):
        assert state_bytes(small_job(stack=remainders, precision=precision)) == state_bytes(
            small_job(precision=precision)
        )


def test_an_update_reads_and_writes_the_same_weights_however_they_are_stored():
    """fp32 weights are read and written; a 16-bit copy is written besides, where there is one."""
    one = ParameterCount(1e9)
    stacks = ({"base": "megatron-core", "keeps_weight_remainders": True}, "megatron-core")
    halves, whole = (optimizer_traffic_bytes(small_job(stack=s), one) for s in stacks)
    assert whole - halves == 2 * 1e9


@pytest.mark.parametrize(("optimizer", "moments"), [("adam", 8), ("sgd-momentum", 4), ("sgd", 0)])
def test_optimizers_differ_in_their_moments(optimizer, moments):
    held = dict(resident_memory(small_job(optimizer=optimizer), ParameterCount(1.0)))
    assert held[Owner.OPTIMIZER_STATES] == moments


def test_states_are_sharded_over_the_zero_group_only():
    everywhere = bytes_per_parameter(gpus=8, zero=3)
    per_node = bytes_per_parameter(gpus=8, zero=3, zero_group=4)
    assert per_node == pytest.approx(2 * everywhere)


def test_context_parallel_ranks_hold_copies_and_so_share_states_too():
    assert bytes_per_parameter(gpus=8, cp=2, zero=3) == pytest.approx(
        bytes_per_parameter(gpus=8, zero=3)
    )


@pytest.mark.parametrize(("tp", "rows"), [(1, 1024), (2, 1024), (4, 1024), (8, 1024)])
def test_megatron_pads_the_vocabulary_to_a_multiple_of_128_tp(tp, rows):
    assert padded_vocab(small_job(gpus=tp, tp=tp)) == rows
    model = small_model(vocab=50257)
    assert padded_vocab(small_job(model, gpus=tp, tp=tp)) == math.ceil(50257 / 128 / tp) * 128 * tp


@pytest.mark.parametrize(("is_tied", "more"), [(False, 1000 * 64 / 2), (True, 0)])
def test_a_token_embedding_that_is_not_divided_is_whole_on_every_rank(is_tied, more):
    model = small_model(tied_embeddings=is_tied)
    run = Slice(0, 4, has_embedding=True, has_head=True)
    divided, whole = (
        slice_parameters(small_job(model, gpus=2, tp=2, zero=0, stack=stack), run).dense
        for stack in ({"base": "torch"}, {"base": "torch", "splits_embedding": False})
    )
    assert whole - divided == more


def test_other_frameworks_pad_only_to_equal_shares():
    assert padded_vocab(small_job(small_model(vocab=1001), gpus=4, tp=4, stack="torch")) == 1004


def copied_numel(job: Job) -> int:
    """Parameters that tp ranks hold beyond one copy of the model."""
    model, tp = job.model, job.plan.tp
    tensors = [*embedding_tensors(model), *head_tensors(model)]
    for index in range(model.layers):
        tensors += layer_tensors(model, index)
    copies = {
        TensorSplit.REPLICATED: tp - 1,
        TensorSplit.KV_HEADS: max(0, tp // model.kv_heads - 1),
    }
    return sum(tensor.numel * copies.get(tensor.split, 0) for tensor in tensors)


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 3, 4]),
    vpp=st.sampled_from([1, 2]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    vocab=st.integers(1, 5000),
    tied=st.booleans(),
    plain=st.booleans(),
    extra_layers=st.integers(0, 5),
)
@settings(deadline=None)
def test_ranks_hold_together_the_model_its_copies_and_the_padding(
    tp, pp, vpp, kv_heads, vocab, tied, plain, extra_layers
):
    vpp = 1 if pp == 1 else vpp
    build = gpt_model if plain else small_model
    model = build(
        layers=pp * vpp + extra_layers, kv_heads=kv_heads, vocab=vocab, tied_embeddings=tied,
        qkv_bias=plain, norm_bias=plain, mlp_bias=plain, attention_output_bias=plain,
        qk_norm="none" if plain else "head",
    )  # fmt: skip
    job = small_job(model, gpus=tp * pp, tp=tp, pp=pp, vpp=vpp)
    tied_copy = tied and pp > 1
    held = tp * sum(
        slice_parameters(job, run, tied_copy=tied_copy).total for run in stage_slices(job, pp * vpp)
    )
    tables = 1 if tied else 2
    padding = tables * (padded_vocab(job) - vocab) * model.hidden
    second_table = padded_vocab(job) * model.hidden if tied_copy else 0
    assert held == parameter_count(model) + copied_numel(job) + padding + second_table


@given(
    tp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4]),
    etp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2]),
    shared=st.sampled_from([0, 128]),
    dense_layers=st.sampled_from([0, 1]),
)
@settings(deadline=None)
def test_every_routed_expert_is_held_once_by_the_ranks_of_its_group(
    tp, ep, etp, pp, shared, dense_layers
):
    experts = Experts(
        count=8,
        top_k=2,
        ffn_hidden=128,
        shared_ffn_hidden=shared,
        first_dense_layers=dense_layers,
    )
    model = small_model(experts=experts)
    gpus = 8 * pp
    job = small_job(
        model, gpus=gpus, global_batch=gpus, tp=tp, ep=ep, etp=etp, pp=pp, sequence_parallel=True
    )
    runs = [slice_parameters(job, run) for run in stage_slices(job, pp)]
    routed = 8 * 3 * 64 * 128 * (model.layers - dense_layers)
    assert sum(run.expert for run in runs) * ep * etp == routed
    padding = 2 * (padded_vocab(job) - model.vocab) * model.hidden
    held = tp * sum(run.dense for run in runs)
    assert held == parameter_count(model) - routed + copied_numel(job) + padding


@pytest.mark.parametrize(("ep", "reduced"), [(1, 30), (4, 30), (8, 10)])
def test_buckets_hold_no_gradients_of_experts_that_one_rank_alone_has(ep, reduced):
    model = small_model(experts=Experts(count=8, top_k=2, ffn_hidden=128))
    pure = {"base": "torch", "keeps_master_weights": False}
    job = small_job(model, gpus=8, global_batch=8, ep=ep, zero=0, stack=pure)
    held = dict(resident_memory(job, ParameterCount(dense=10, expert=20)))
    assert held[Owner.COMMUNICATION] == 2 * reduced


def test_an_adam_step_reads_and_writes_states_and_reads_gradients_twice():
    """Per parameter: 2 x 12 of states, 2 x 4 of fp32 gradients, 2 of 16-bit weights."""
    assert optimizer_traffic_bytes(small_job(), ParameterCount(1e6)) == 34e6


def test_a_copy_of_16_bit_gradients_for_the_optimizer_is_written_and_read():
    """Four bytes each, for every parameter that the rank updates."""
    copied, direct = (
        small_job(
            gpus=8,
            stack={
                "base": "megatron-core", "main_grad_precision": "bf16",
                "grad_reduce_precision": "bf16", "copies_gradients": copies,
            },
        )
        for copies in (True, False)
    )  # fmt: skip
    moved = [optimizer_traffic_bytes(job, ParameterCount(8e6)) for job in (copied, direct)]
    assert moved[0] - moved[1] == (4 + 4) * 1e6


def test_sharded_states_are_updated_by_their_owner_alone():
    assert optimizer_traffic_bytes(small_job(gpus=8, zero=1), ParameterCount(8e6)) == 34e6


def test_megatron_accumulates_in_the_format_that_the_plan_reduces_in():
    """``grad_reduce_in_fp32: false`` makes its gradient buffer 16-bit; FSDP's shards stay fp32."""
    megatron, fsdp = (
        small_job(gpus=4, zero=zero, stack=stack, grad_reduce_precision="bf16")
        for stack, zero in (("megatron-core", 1), ("torchtitan", 3))
    )
    assert (state_bytes(megatron).gradients, state_bytes(megatron).reduced) == (2.0, 2.0)
    assert (state_bytes(fsdp).gradients, state_bytes(fsdp).reduced) == (4.0, 2.0)


def test_fsdp_under_autocast_alone_gathers_fp32_and_passes_fp32_on():
    """Without FSDP1's ``MixedPrecision`` nothing casts shards before they are gathered."""
    of_policy, of_autocast = (
        small_job(
            small_model(), gpus=2, zero=3, recompute="full",
            stack={"base": "torch-fsdp", "gathers_fp32_weights": gathers},
        )
        for gathers in (False, True)
    )  # fmt: skip
    assert (state_bytes(of_policy).gathered, state_bytes(of_autocast).gathered) == (2, 4)
    assert (of_policy.plan.autocasts, of_autocast.plan.autocasts) == (False, True)
    assert of_autocast.plan.saves_cast_weights
    kept = [total_bytes(StageCosts(job).saved(Slice(1, 2))) for job in (of_policy, of_autocast)]
    assert kept[1] == 2 * kept[0]
