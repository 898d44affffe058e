"""What a framework cannot be told is an error that names the field and the way out."""

from __future__ import annotations

import tomllib

import pytest

from simulator.errors import UnsupportedError
from simulator.exporters.deepspeed import deepspeed_config, switched_on_in_the_model
from simulator.exporters.megatron import megatron_script
from simulator.exporters.torchtitan import torchtitan_config
from simulator.importers.torchtitan import read_torchtitan_config
from tests.exporters.round_trips import assert_same, imported, job_with


@pytest.mark.parametrize(
    ("export", "job", "path"),
    [
        (megatron_script, job_with(stack="torchtitan"), "plan.stack"),
        (megatron_script, job_with(pp=2, schedule="zb-h1"), "plan.schedule"),
        (megatron_script, job_with("phi-2"), "model.parallel_block"),
        (megatron_script, job_with("gemma-7b"), "model.activation"),
        (megatron_script, job_with(precision="tf32"), "plan.precision"),
        (
            megatron_script,
            job_with("mixtral-8x7b", recompute="selective", recompute_modules=["moe_act"]),
            "plan.recompute_modules",
        ),
        (megatron_script, job_with(rank_order="dp-tp-cp-ep-pp"), "plan.rank_order"),
        (deepspeed_config, job_with(stack="deepspeed", pp=2), "plan.pp"),
        (deepspeed_config, job_with(stack="deepspeed", recompute="selective"), "plan.recompute"),
        (deepspeed_config, job_with(stack="deepspeed", attention="unfused"), "plan.attention"),
        (torchtitan_config, job_with(stack="torchtitan", zero=1), "plan.zero"),
        (torchtitan_config, job_with("phi-2", stack="torchtitan", zero=3), "model"),
        (
            torchtitan_config,
            job_with(stack="torchtitan", zero=3, optimizer="sgd"),
            "plan.optimizer",
        ),
        (
            torchtitan_config,
            job_with(stack="torchtitan", zero=3, offload={"activations": "cpu"}),
            "plan.offload",
        ),
        (
            deepspeed_config,
            job_with(
                stack="deepspeed", zero=2, offload={"optimizer": "cpu", "delayed_update": True}
            ),
            "plan.offload.delayed_update",
        ),
    ],
)
def test_what_a_framework_cannot_say_is_an_error_that_names_it(export, job, path):
    with pytest.raises(UnsupportedError, match=rf"{path}\b.* cannot be expressed in"):
        export(job)


@pytest.mark.parametrize(
    ("export", "stack"),
    [
        (megatron_script, "megatron-core"),
        (deepspeed_config, "deepspeed"),
        (torchtitan_config, "torchtitan"),
    ],
)
@pytest.mark.parametrize(
    ("plan", "path"),
    [
        ({"data_parallel": "data-parallel"}, "plan.data_parallel"),
        ({"data_parallel": "parameter-server"}, "plan.data_parallel"),
        ({"no_sync": False}, "plan.no_sync"),
        ({"lora": {"rank": 8}}, "plan.lora"),
        ({"frozen": ["embedding.*"]}, "plan.frozen"),
        ({"cross_entropy": "cut"}, "plan.cross_entropy"),
    ],
)
def test_frameworks_pretrain_and_reduce_by_collectives_once_per_step(export, stack, plan, path):
    with pytest.raises(UnsupportedError, match=rf"{path}\b.* cannot be expressed in"):
        export(job_with(stack=stack, zero=0, **plan))


@pytest.mark.parametrize(
    ("export", "stack"), [(megatron_script, "megatron-core"), (deepspeed_config, "deepspeed")]
)
def test_frameworks_that_update_by_one_fused_kernel_have_no_option_for_others(export, stack):
    with pytest.raises(
        UnsupportedError, match=r"plan.optimizer_kernels\b.* cannot be expressed in"
    ):
        export(job_with(stack=stack, zero=0, optimizer_kernels="foreach"))


@pytest.mark.parametrize("kernels", ["foreach", "for-loop"])
def test_torchtitan_is_told_how_the_optimizer_updates(kernels):
    job = job_with(stack="torchtitan", zero=3, optimizer_kernels=kernels)
    text = torchtitan_config(job)
    assert tomllib.loads(text)["optimizer"]["implementation"] == kernels
    assert_same(job, imported(read_torchtitan_config, text, "job.toml", gpus=8))


def test_torchtitan_is_told_that_checkpoints_stop_early():
    stack = {"base": "torchtitan", "repeats_last_product": False}
    job = job_with(stack=stack, zero=3, recompute="full")
    text = torchtitan_config(job)
    assert tomllib.loads(text)["activation_checkpoint"]["early_stop"] is True
    assert_same(job, imported(read_torchtitan_config, text, "job.toml", gpus=8))


def test_everything_that_cannot_be_said_is_told_at_once():
    with pytest.raises(UnsupportedError) as caught:
        deepspeed_config(job_with(stack="deepspeed", pp=2, recompute="selective", zero=1))
    assert {"plan.pp", "plan.recompute"} <= {fault.path for fault in caught.value.faults}


def test_offloading_is_told_to_megatron_and_torchtitan():
    job = job_with(zero=1, offload={"optimizer": "cpu", "share": 0.5})
    assert "--optimizer-cpu-offload" in megatron_script(job)
    assert "--optimizer-offload-fraction 0.5" in megatron_script(job)
    both = {"optimizer": "cpu", "parameters": "cpu"}
    job = job_with(stack="torchtitan", zero=3, offload=both)
    assert tomllib.loads(torchtitan_config(job))["training"]["enable_cpu_offload"] is True
    text = torchtitan_config(job)
    assert_same(job, imported(read_torchtitan_config, text, "job.toml", gpus=8))


@pytest.mark.parametrize(
    ("stack", "stack_name"),
    [
        ("torch", "torch"),
        ({"base": "megatron-core", "dropout": True}, "megatron-core"),
    ],
)
@pytest.mark.parametrize("export", [deepspeed_config, torchtitan_config])
def test_a_plan_made_for_another_framework_is_one_fault_and_not_one_per_fact(
    export, stack, stack_name
):
    with pytest.raises(UnsupportedError) as caught:
        export(job_with(stack=stack, zero=3))
    (fault,) = [fault for fault in caught.value.faults if fault.path.startswith("plan.stack")]
    assert (fault.path, fault.value) == ("plan.stack", stack_name)
    assert "--set plan.stack=" in fault.hint


def test_a_degree_that_cannot_be_said_is_set_to_a_number():
    with pytest.raises(UnsupportedError, match=r"plan.pp = 2: .*--set plan.pp=1$"):
        deepspeed_config(job_with(stack="deepspeed", pp=2, zero=1))


def test_layers_that_are_computed_again_are_switched_on_beside_the_json_of_deepspeed():
    again = job_with(stack="deepspeed", zero=2, recompute="full")
    kept = job_with(stack="deepspeed", zero=2)
    assert deepspeed_config(again) == deepspeed_config(kept)
    assert "gradient checkpointing" in switched_on_in_the_model(again)
    assert switched_on_in_the_model(kept) == ""


def test_a_gather_that_only_another_stack_overlaps_is_no_fault_of_its_own():
    with pytest.raises(UnsupportedError) as caught:
        deepspeed_config(job_with(zero=1))
    assert [fault.path for fault in caught.value.faults] == ["plan.stack"]


@pytest.mark.parametrize(
    ("stack", "zero", "overlaps", "is_said"),
    [
        ("deepspeed", 1, False, True),
        ("deepspeed", 1, True, False),
        ("deepspeed", 3, True, True),
        ("deepspeed", 3, False, False),
        ("deepspeed-2021", 3, None, True),
        ("deepspeed-2021", 3, False, True),
    ],
)
def test_a_gather_is_reported_where_it_differs_from_what_deepspeed_does(
    stack, zero, overlaps, is_said
):
    job = job_with(stack=stack, zero=zero, overlap_param_gather=overlaps)
    if is_said:
        assert deepspeed_config(job)
        return
    with pytest.raises(UnsupportedError, match=r"plan\.overlap_param_gather"):
        deepspeed_config(job)
