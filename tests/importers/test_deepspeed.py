"""DeepSpeed's configuration, read against the jobs that a person would write for it."""

from __future__ import annotations

import json

import pytest

from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.deepspeed import read_deepspeed_config
from tests.importers.samples import FILES, edited, plan_of, read

DEEPSPEED = {"model": "llama3.1-8b", "gpus": 8, "seq_len": 4096}


@pytest.mark.parametrize(
    ("number", "clips"), [("0", False), ("0.0", False), ("1.0", True), ('"auto"', True)]
)
def test_deepspeed_clips_gradients_where_the_file_says_so(tmp_path, number, clips):
    old, new = '"gradient_clipping": 1.0', f'"gradient_clipping": {number}'
    path = edited(tmp_path, "ds_config.json", (old, new))
    job, _ = read_deepspeed_config(path, Given(**DEEPSPEED))
    assert job.plan.clip_gradients is clips


def test_deepspeed_does_not_clip_unless_it_is_told_to(tmp_path):
    path = edited(tmp_path, "ds_config.json", ('"gradient_clipping": 1.0,', ""))
    assert not read_deepspeed_config(path, Given(**DEEPSPEED))[0].plan.clip_gradients


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        ({"cpu_checkpointing": True}, {"recompute": "full", "offload": {"activations": "cpu"}}),
        ({"partition_activations": True}, {}),
        ({"partition_activations": True, "contiguous_memory_optimization": True,
          "number_checkpoints": 32}, {"recompute": "full", "contiguous_checkpoints": True}),
        ({"partition_activations": False, "cpu_checkpointing": False}, {}),
    ],
)  # fmt: skip
def test_deepspeed_says_where_checkpoints_are_kept(tmp_path, block, fields):
    old = '"wall_clock_breakdown": false'
    new = f'{old}, "activation_checkpointing": {json.dumps(block)}'
    path = edited(tmp_path, "ds_config.json", (old, new))
    job, report = read_deepspeed_config(path, Given(**DEEPSPEED))
    without, _ = read_deepspeed_config(FILES / "ds_config.json", Given(**DEEPSPEED))
    assert plan_of(job) == plan_of(without) | fields
    assert not report.unsupported


def test_tensor_parallel_ranks_divide_checkpoints(tmp_path):
    old = '"wall_clock_breakdown": false'
    new = f'{old}, "tensor_parallel": {{"autotp_size": 2}}, "activation_checkpointing": '
    path = edited(tmp_path, "ds_config.json", (old, new + '{"partition_activations": true}'))
    job, _ = read_deepspeed_config(path, Given(**DEEPSPEED))
    assert job.plan.partition_activations


THRESHOLDS = (
    '"stage": 3, "stage3_param_persistence_threshold": 1e4, "stage3_max_live_parameters": 3e8,'
    ' "stage3_max_reuse_distance": "auto"'
)


def test_parameter_wise_zero_3_takes_its_thresholds_from_the_file(tmp_path):
    path = edited(tmp_path, "ds_config.json", ('"stage": 2', THRESHOLDS))
    named = {**DEEPSPEED, "changes": {"plan.stack": "deepspeed-2021"}}
    job, report = read_deepspeed_config(path, Given(**named))
    stack = job.plan.stack
    assert stack.sharding_units == "parameters"
    assert (stack.whole_below_numel, stack.live_numel, stack.reuse_numel) == (1e4, 3e8, 1e9)
    assert "zero_optimization.stage3_max_live_parameters" in report.understood
    today, _ = read_deepspeed_config(path, Given(**DEEPSPEED))
    assert (today.plan.stack.whole_below_numel, today.plan.stack.live_numel) == (0, None)


@pytest.mark.parametrize(
    ("libraries", "attention"),
    [({}, "flash"), ({"torch": "2.1"}, "flash"), ({"torch": "2.0"}, "unfused")],
)
def test_models_under_deepspeed_have_the_attention_of_transformers_at_that_release(
    libraries, attention
):
    """huggingface/transformers#28005: PyTorch's own since 4.36, which asks for PyTorch 2.1.1."""
    changes = {"plan.libraries": libraries}
    job, _ = read(read_deepspeed_config, "ds_config.json", **DEEPSPEED, changes=changes)
    assert job.plan.attention_kernel == attention


@pytest.mark.parametrize(
    ("changes", "assumed"),
    [({}, {"attention flash", "recompute none"}),
     ({"plan.attention": "unfused"}, {"recompute none"}),
     ({"plan.stack": "deepspeed-2021"}, {"attention fused-softmax", "recompute none"})],
)  # fmt: skip
def test_what_the_models_code_decides_is_named_with_what_is_taken_for_it(changes, assumed):
    _, report = read(read_deepspeed_config, "ds_config.json", **DEEPSPEED, changes=changes)
    assert {note.partition(":")[0] for note in report.assumed if "code decides" in note} == assumed


def test_buckets_of_fp32_training_have_elements_of_four_bytes(tmp_path):
    path = edited(tmp_path, "ds_config.json", ('{"enabled": true}', '{"enabled": false}'))
    job, _ = read_deepspeed_config(path, Given(**DEEPSPEED))
    assert (job.plan.precision, job.plan.stack.bucket_bytes) == ("fp32", 2e9)


def test_two_of_three_batch_numbers_give_the_third():
    given = {"model": "llama3.1-8b", "gpus": 8, "seq_len": 4096}
    job, report = read(read_deepspeed_config, "ds_config.json", **given)
    assert (job.batch.global_batch, job.batch.micro_batch) == (64, 4)
    assert (job.plan.zero, job.plan.precision, job.plan.optimizer) == (2, "bf16", "adam")
    assert job.plan.stack.bucket_bytes == 1e9
    assert not report.unsupported


def test_everything_that_a_deepspeed_file_cannot_say_is_asked_for_at_once():
    with pytest.raises(InputError) as caught:
        read(read_deepspeed_config, "ds_config.json")
    asked = {fault.path: fault.hint for fault in caught.value.faults}
    # The batch follows from the GPUs, since the file says what each of them takes.
    assert set(asked) == {"model", "cluster.gpus", "batch.seq_len"}
    assert "--model" in asked["model"]
    assert "--gpus" in asked["cluster.gpus"]


def test_zero_without_a_stage_is_the_first(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(
        '{"train_batch_size": 16, "zero_optimization": true, "fp16": {"enabled": true}}'
    )
    job, _ = read_deepspeed_config(path, Given(model="gpt2", gpus=8, seq_len=1024))
    assert (job.plan.zero, job.batch.micro_batch) == (1, 2)


def test_a_format_that_is_left_to_the_trainer_is_asked_for(tmp_path):
    path = edited(tmp_path, "ds_config.json", ('{"enabled": true}', '{"enabled": "auto"}'))
    given = {"model": "gpt2", "gpus": 8, "seq_len": 1024}
    with pytest.raises(InputError, match=r"bf16.*set by the trainer.*plan\.precision"):
        read_deepspeed_config(path, Given(**given))
    job, _ = read_deepspeed_config(path, Given(**given, changes={"plan.precision": "fp16"}))
    assert job.plan.precision == "fp16"


def test_a_format_that_both_16_bit_blocks_leave_open_is_asked_for_once(tmp_path):
    both = '{"enabled": "auto"}, "fp16": {"enabled": "auto"}'
    path = edited(tmp_path, "ds_config.json", ('{"enabled": true}', both))
    with pytest.raises(InputError) as caught:
        read_deepspeed_config(path, Given(model="gpt2", gpus=8, seq_len=1024))
    (fault,) = caught.value.faults
    assert fault.hint == "give --set plan.precision=bf16 or --set plan.precision=fp16"


@pytest.mark.parametrize(
    ("setting", "sums_all"),
    [
        ('"reduce_scatter": true', True),
        ('"reduce_scatter": false', True),
        ('"use_multi_rank_bucket_allreduce": true', True),
        ('"use_multi_rank_bucket_allreduce": false', False),
    ],
)
def test_a_file_says_whether_zero_2_all_reduces_whole_gradients(tmp_path, setting, sums_all):
    path = edited(tmp_path, "ds_config.json", ('"stage": 2', f'"stage": 2, {setting}'))
    job, _ = read_deepspeed_config(path, Given(model="gpt2", gpus=8, seq_len=1024))
    assert job.plan.stack.all_reduces_shards == sums_all


@pytest.mark.parametrize(
    ("stage", "setting", "holds"), [(3, "false", True), (3, "true", False), (2, "false", False)]
)
def test_a_file_says_whether_products_of_zero_3_hold_weights(tmp_path, stage, setting, holds):
    said = f'"stage": {stage}, "memory_efficient_linear": {setting}'
    path = edited(tmp_path, "ds_config.json", ('"stage": 2', said))
    job, _ = read_deepspeed_config(path, Given(model="gpt2", gpus=8, seq_len=1024))
    assert job.plan.products_keep_gathered == holds


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ('"zero_quantized_weights": true', "ZeRO\\+\\+"),
        (
            '"x": 0}, "activation_checkpointing": {"synchronize_checkpoint_boundary": true',
            "wait for the device",
        ),
        ('"offload_param": {"device": "nvme"}', r"plan\.offload\.parameters.*plan\.zero: 3"),
        ('"allgather_partitions": false', "more than they need"),
        ('"zero_hpz_partition_size": 8', "second copy"),
    ],
)
def test_a_costly_setting_of_deepspeed_is_refused(tmp_path, setting, why):
    path = edited(tmp_path, "ds_config.json", ('"stage": 2', f'"stage": 2, {setting}'))
    with pytest.raises(InputError, match=why):
        read_deepspeed_config(path, Given(model="gpt2", gpus=8, seq_len=1024))


@pytest.mark.parametrize(("grouped", "runs"), [({}, True), ({"use_grouped_mm": False}, False)])
def test_auto_ep_spreads_experts_over_ranks(tmp_path, grouped, runs):
    """DeepSpeed 0.19, module_inject/auto_ep_config.py; DeepSpeedExamples, expert_parallel."""
    block = {"enabled": True, "autoep_size": 8, "preset_model": "qwen3_moe", **grouped}
    path = tmp_path / "ds_config.json"
    path.write_text(
        json.dumps(
            {
                "bf16": {"enabled": True},
                "zero_optimization": {"stage": 1, "gather_16bit_weights_on_model_save": True},
                "expert_parallel": block,
                "train_micro_batch_size_per_gpu": 2,
            }
        )
    )
    job, report = read_deepspeed_config(path, Given(**{**DEEPSPEED, "model": "qwen3-30b-a3b"}))
    assert (job.plan.ep, job.plan.stack.grouped_experts) == (8, runs)
    assert not report.unsupported
    off = path.read_text().replace('"enabled": true, "autoep', '"enabled": false, "autoep')
    path.write_text(off)
    assert read_deepspeed_config(path, Given(**DEEPSPEED))[0].plan.ep == 1
