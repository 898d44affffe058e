"""Files of accelerate and the Trainer, read against the jobs that a person would write for them."""

from __future__ import annotations

import json

import pytest

from simulator.described.plan.plan_blocks import FSDP_OFFLOAD
from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.finetuning.accelerate import read_accelerate_files
from simulator.importers.finetuning.trainer import read_deepspeed_files
from tests.importers.samples import FILES, edited

NVME = {"size": "15 TB", "read": "25 GB/s", "write": "20 GB/s"}


def test_accelerate_and_training_arguments_are_read_as_one():
    files = [FILES / "fsdp.yaml", FILES / "training_args.json"]
    job, report = read_accelerate_files(files, Given(model="llama3.1-8b", seq_len=2048))
    assert (job.cluster.gpus, job.batch.global_batch, job.batch.micro_batch) == (16, 128, 2)
    assert (job.plan.zero, job.plan.recompute, job.plan.precision) == (3, "full", "bf16")
    assert not report.unsupported


@pytest.mark.parametrize(
    ("kind", "base"), [("FSDP", "trl"), ("MULTI_GPU", "trl"), ("DEEPSPEED", "deepspeed")]
)
def test_accelerate_runs_the_models_of_hugging_face(tmp_path, kind, base):
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"distributed_type: {kind}\nmixed_precision: bf16\nnum_processes: 8\n")
    given = Given(model="llama3.1-8b", seq_len=2048, micro_batch=1)
    assert read_accelerate_files([path], given)[0].stack_name == base


@pytest.mark.parametrize(("version", "has_hooks"), [("1", True), ("2", False)])
def test_hooks_of_fsdp_are_those_of_its_version(tmp_path, version, has_hooks):
    path = edited(tmp_path, "fsdp.yaml", ("fsdp_version: 2", f"fsdp_version: {version}"))
    given = Given(model="llama3.1-8b", seq_len=2048, micro_batch=1)
    stack = read_accelerate_files([path], given)[0].plan.stack
    assert stack.frozen_units_keep_inputs is has_hooks
    assert stack.limits_gathers is has_hooks
    assert (stack.host_work_per_gather > 0) is has_hooks


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_checkpoints_of_the_fsdp_plugin_stop_early_and_those_of_the_trainer_as_it_says(
    tmp_path, is_on, reentrant
):
    new = f"fsdp_activation_checkpointing: {str(is_on).lower()}"
    path = edited(tmp_path, "fsdp.yaml", ("fsdp_activation_checkpointing: true", new))
    arguments = {} if reentrant is None else {"use_reentrant": reentrant}
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"gradient_checkpointing_kwargs": arguments}))
    given = Given(model="llama3.1-8b", seq_len=2048, micro_batch=1)
    stack = read_accelerate_files([path, more], given)[0].plan.stack
    assert stack.recompute_stops_early is (is_on or not reentrant)


@pytest.mark.parametrize(
    ("version", "each", "unsharded"), [(1, False, True), (1, True, False), (2, False, False)]
)
def test_fsdp1_adds_up_whole_gradients_unless_every_batch_is_reduced(
    tmp_path, version, each, unsharded
):
    """Accelerate enters the model's ``no_sync``, which modules of FSDP2 do not have."""
    path = edited(tmp_path, "fsdp.yaml", ("fsdp_version: 2", f"fsdp_version: {version}"))
    block = {"gradient_accumulation_kwargs": {"sync_each_batch": each}}
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"accelerator_config": block, "gradient_accumulation_steps": 4}))
    given = Given(model="gpt2", seq_len=1024, micro_batch=1)
    job, _ = read_accelerate_files([path, more], given)
    assert job.plan.stack.sums_unsharded is unsharded


def test_fsdp_under_accelerate_reduces_in_the_format_of_the_products():
    given = Given(model="llama3.1-8b", seq_len=2048, micro_batch=1)
    job, _ = read_accelerate_files([FILES / "fsdp.yaml"], given)
    assert job.choices.reduced_gradients == "bf16"


def test_files_that_contradict_each_other_are_refused(tmp_path):
    path = edited(tmp_path, "training_args.json", ('"bf16": true', '"num_processes": 4'))
    with pytest.raises(InputError, match="is 16 in another file"):
        read_accelerate_files([FILES / "fsdp.yaml", path], Given(model="gpt2", seq_len=1024))


@pytest.mark.parametrize(
    ("strategy", "zero", "group", "reshards"),
    [
        ("FULL_SHARD", 3, 0, None),
        ("SHARD_GRAD_OP", 3, 0, False),
        ("NO_SHARD", 0, 0, None),
        ("HYBRID_SHARD", 3, 8, None),
    ],
)
def test_sharding_strategies_of_fsdp(tmp_path, strategy, zero, group, reshards):
    old, new = "fsdp_reshard_after_forward: true", f"fsdp_sharding_strategy: {strategy}"
    path = edited(tmp_path, "fsdp.yaml", (old, new))
    given = Given(model="llama3.1-8b", seq_len=2048, micro_batch=1)
    job, _ = read_accelerate_files([path], given)
    assert (job.plan.zero, job.plan.zero_group) == (zero, group)
    assert job.plan.reshard_after_forward is reshards


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fsdp_offload_params: false", "fsdp_offload_params: true"),
        ("fsdp_offload_params: false", "fsdp_cpu_offload: true"),
        ("distributed_type: FSDP", "fsdp: full_shard auto_wrap offload"),
    ],
)
def test_fsdp_offloads_all_that_it_knows(tmp_path, old, new):
    path = edited(tmp_path, "fsdp.yaml", (old, new))
    job, report = read_accelerate_files([path], Given(model="gpt2", seq_len=1024, micro_batch=1))
    assert job.plan.offload == FSDP_OFFLOAD
    assert not report.unsupported


def test_accelerate_says_where_deepspeed_keeps_states(tmp_path):
    path = tmp_path / "zero3.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: nvme\n"
        "  offload_param_device: cpu\n  offload_optimizer_nvme_path: /nvme\n"
        "  gradient_clipping: 0.0\n"
    )
    given = Given(model="gpt2", seq_len=1024, micro_batch=1, changes={"cluster.host.nvme": NVME})
    job, report = read_accelerate_files([path], given)
    assert (job.plan.offload.optimizer, job.plan.offload.parameters) == ("nvme", "cpu")
    assert not job.plan.clip_gradients
    assert not report.unsupported


def test_gpus_that_are_given_replace_those_of_the_file_and_attention_is_named(tmp_path):
    path = tmp_path / "zero3.yaml"
    path.write_text("distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n")
    given = Given(model="gpt2", seq_len=1024, micro_batch=1, gpus=4)
    job, report = read_accelerate_files([path], given)
    assert (job.cluster.gpus, job.plan.attention_kernel) == (4, "flash")
    assert any(note.startswith("attention flash: ") for note in report.assumed)


def test_the_trainer_clips_gradients_unless_it_is_told_not_to(tmp_path):
    for number, clips in (("1.0", True), ("0.0", False)):
        old, new = '"bf16": true', f'"bf16": true, "max_grad_norm": {number}'
        path = edited(tmp_path, "training_args.json", (old, new))
        given = Given(model="gpt2", gpus=8, seq_len=1024)
        assert read_accelerate_files([path], given)[0].plan.clip_gradients is clips


@pytest.mark.parametrize(("backend", "is_compiled"), [("INDUCTOR", True), ("NO", None)])
def test_a_backend_of_dynamo_compiles_the_model(tmp_path, backend, is_compiled):
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
        f"dynamo_config: {{dynamo_backend: {backend}, dynamo_mode: default}}\n"
    )
    given = Given(model="llama3.1-8b", seq_len=2048, micro_batch=1)
    assert read_accelerate_files([path], given)[0].plan.compile is is_compiled


SFT = {
    "model_name_or_path": "Qwen/Qwen3-8B",
    "dataset_name": "trl-lib/Capybara",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True,
    "bf16": True,
    "max_length": 4096,
    "packing": True,
    "use_liger_kernel": True,
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_target_modules": "all-linear",
}
"""What ``trl sft --config`` takes: SFTConfig, and what its script adds (TRL's ModelConfig)."""


def test_a_configuration_of_trl_is_read_as_it_stands(tmp_path):
    path = tmp_path / "sft.json"
    path.write_text(json.dumps(SFT))
    job, report = read_accelerate_files([FILES / "fsdp.yaml", path], Given())
    assert (job.model.name, job.batch.seq_len, job.batch.global_batch) == ("qwen3-8b", 4096, 128)
    assert (job.plan.recompute, job.plan.cross_entropy) == ("full", "linear-fused")
    assert job.plan.lora.rank == 16
    assert any("documents that are packed" in each for each in report.assumed)


@pytest.mark.parametrize("said", [{}, {"loss_type": "nll"}, {"loss_type": "chunked_nll"}])
def test_trainers_of_trl_never_have_all_logits_and_that_is_said(tmp_path, said):
    """Source: TRL 1.16, ``add_fused_lm_head`` of trainer/utils.py."""
    path = tmp_path / "sft.json"
    path.write_text(json.dumps({**SFT, "use_liger_kernel": False, **said}))
    job, report = read_accelerate_files([FILES / "fsdp.yaml", path], Given())
    assert job.plan.cross_entropy == "tiled"
    assert any("TRL 1.15 or later" in each for each in report.assumed)


def test_trainers_of_transformers_have_all_logits(tmp_path):
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps({"per_device_train_batch_size": 2, "bf16": True}))
    given = Given(model="qwen3-8b", seq_len=2048)
    job, _ = read_accelerate_files([FILES / "fsdp.yaml", path], given)
    assert job.plan.loss_kernel == "eager"


def test_documents_that_trl_packs_by_cutting_them_see_the_whole_sequence(tmp_path):
    path = tmp_path / "sft.json"
    path.write_text(json.dumps({**SFT, "packing_strategy": "wrapped"}))
    _, report = read_accelerate_files([FILES / "fsdp.yaml", path], Given())
    assert not any("documents" in each for each in report.assumed)


def test_the_length_that_the_user_says_counts_before_that_of_the_file(tmp_path):
    path = tmp_path / "sft.json"
    path.write_text(json.dumps(SFT))
    config = tmp_path / "ds.json"
    config.write_text('{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}')
    job, _ = read_deepspeed_files([config, path], Given(gpus=8, seq_len=8192))
    assert (job.batch.seq_len, job.plan.zero, job.plan.lora.rank) == (8192, 3, 16)
