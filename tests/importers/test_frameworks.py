"""Files of training frameworks, read against the jobs that a person would write for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.api import simulate
from simulator.errors import InputError, UnsupportedError
from simulator.importers.accelerate import read_accelerate_files
from simulator.importers.assembly import Given
from simulator.importers.deepspeed import read_deepspeed_config
from simulator.importers.foreign_file import MAX_FILE_BYTES
from simulator.importers.megatron import read_megatron_script
from simulator.importers.nemo import read_nemo_recipe
from simulator.importers.torchtitan import read_torchtitan_config
from simulator.spec.load import job_from_document, load_model
from simulator.spec.offload import FSDP_OFFLOAD

NVME = {"size": "15 TB", "read": "25 GB/s", "write": "20 GB/s"}
FILES = Path(__file__).parent / "files"

Reader = Callable[..., Any]


def read(reader: Reader, name: str, **given: Any) -> Any:
    return reader(FILES / name, Given(**given))


def plan_of(job: Any) -> dict[str, Any]:
    return dict(job.document["plan"])


def edited(folder: Path, name: str, *replacements: tuple[str, str]) -> Path:
    """A copy of a sample file with some texts replaced; each must be there."""
    text = (FILES / name).read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# Megatron-LM


def test_options_in_strings_are_joined_as_the_shell_would():
    job, report = read(read_megatron_script, "launch_gpt.sh")
    assert (job.cluster.gpus, job.dp, job.microbatches) == (32, 4, 16)
    assert plan_of(job) == {
        "tp": 2, "pp": 4, "zero": 0, "precision": "fp16", "grad_reduce_precision": "fp16",
        "recompute": "full", "overlap_grad_reduce": False, "overlap_param_gather": False,
        "sequence_parallel": False,
        "stack": {"base": "megatron-core", "dropout": True, "cross_entropy": "in-place"},
    }  # fmt: skip
    assert report.is_complete
    assert "the vocabulary has the 50257 entries of GPT-2" in report.assumed
    assert {"lr", "data_path", "save"} <= set(report.ignored)


def test_a_model_without_options_of_its_own_is_the_gpt_that_megatron_defaults_to():
    job, _ = read(read_megatron_script, "launch_gpt.sh")
    model = job.model
    assert (model.ffn_hidden, model.activation, model.gated_mlp) == (8192, "gelu", False)
    assert (model.positions, model.max_positions, model.normalisation) == (
        "learned", 2048, "layernorm",
    )  # fmt: skip
    assert model.tied_embeddings
    assert model.mlp_bias


def test_options_in_arrays_give_the_named_model():
    job, report = read(read_megatron_script, "launch_moe.sh")
    named = load_model("mixtral-8x7b")
    assert job.model == named.model_copy(update={"name": "launch_moe"})
    assert (job.cluster.gpus, job.plan.vpp, job.plan.ep, job.plan.etp) == (64, 2, 8, 1)
    assert job.plan.precision == "fp8"
    assert job.plan.stack.grouped_experts
    assert report.is_complete


@pytest.mark.parametrize(("value", "precision"), [("mxfp8", "mxfp8"), ("none", "bf16")])
def test_definitions_decide_conditions(value, precision):
    job, _ = read(read_megatron_script, "launch_moe.sh", definitions={"PRECISION": value})
    assert job.plan.precision == precision


def test_a_script_that_writes_its_deepspeed_configuration_is_read_with_it():
    job, _ = read(read_megatron_script, "launch_deepspeed.sh")
    assert (job.plan.zero, job.cluster.gpus, job.plan.recompute) == (1, 16, "full")
    assert job.plan.stack.description.startswith("Megatron-DeepSpeed")


def test_the_inner_configuration_says_what_leaves_the_gpu(tmp_path):
    path = edited(tmp_path, "launch_deepspeed.sh", ('"device": "none"', '"device": "cpu"'))
    job, _ = read_megatron_script(path, Given())
    assert job.plan.offload.optimizer == "cpu"


def test_a_costly_setting_of_the_inner_configuration_is_refused(tmp_path):
    costly = ('"offload_optimizer": {"device": "none"}', '"zero_quantized_weights": true')
    path = edited(tmp_path, "launch_deepspeed.sh", costly)
    with pytest.raises(InputError, match=r"ZeRO\+\+"):
        read_megatron_script(path, Given())


def test_a_single_launch_line_is_enough(tmp_path):
    path = tmp_path / "line.txt"
    path.write_text(
        "torchrun --nproc-per-node=8 pretrain_gpt.py --num-layers=12 --hidden-size=768 "
        "--num-attention-heads=12 --seq-length=1024 --max-position-embeddings=1024 "
        "--micro-batch-size=8 --global-batch-size=64 --bf16"
    )
    job, _ = read_megatron_script(path, Given(gpus=8))
    assert (job.model.layers, job.batch.global_batch) == (12, 64)


def launch(folder: Path, *options: str) -> Path:
    """A launch line with further options."""
    path = folder / "line.sh"
    base = (FILES / "launch_gpt.sh").read_text(encoding="utf-8")
    path.write_text(base.replace("--fp16", " ".join(["--fp16", *options])), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--cpu-offloading-num-layers 24", "must be below the 24 layers"),
        ("--cpu-offloading-weights", "moves weights to the host"),
        ("--cpu-optimizer", "moves optimizer states to the host"),
        ("--optimizer-offload-policy auto", "moves optimizer states to the host"),
        ("--partition-activations", "has no --deepspeed"),
        ("--external-cuda-graph", "host's launches"),
        ("--fp32-residual-connection", "32 bits"),
        ("--optimizer shampoo", "is not modelled; known: adam"),
        ("--optimizer dist_muon", "is not modelled; known: adam"),
        ("--cp-comm-type allgather", "is not modelled; known: p2p, a2a"),
        ("--wings 2", "is not known"),
        ("--moe-offload-everything", "moves activations to the host"),
        ("--new-offload-of-logits", "is not known"),
    ],
)
def test_an_option_that_costs_something_is_an_error_with_a_way_out(tmp_path, option, why):
    name = option.split()[0][2:].replace("-", "_")
    with pytest.raises(InputError, match=why) as caught:
        read_megatron_script(launch(tmp_path, option), Given())
    (fault,) = caught.value.faults
    assert fault.path == name
    assert f"--ignore {name}" in fault.hint


def test_an_option_may_be_left_out_when_the_user_says_so_and_is_reported(tmp_path):
    path = launch(tmp_path, "--fp32-residual-connection", "--wings 2")
    _, report = read_megatron_script(path, Given(ignore=("--fp32-residual-connection", "wings")))
    assert len(report.unsupported) == 2
    assert "fp32_residual_connection = True is left out" in report.unsupported[0]


def test_a_word_without_a_meaning_may_be_left_out_too(tmp_path):
    path = launch(tmp_path, "--optimizer shampoo")
    job, report = read_megatron_script(path, Given(ignore=("optimizer",)))
    assert job.plan.optimizer == "adam"
    assert report.unsupported[0].startswith("optimizer = shampoo is left out; it is not modelled")


def test_leaving_out_what_is_not_there_is_an_error():
    with pytest.raises(InputError, match="--ignore wings: names no setting"):
        read(read_megatron_script, "launch_gpt.sh", ignore=("wings",))


def test_what_only_the_shell_would_know_is_asked_for(tmp_path):
    path = edited(tmp_path, "launch_gpt.sh", ("parallel-size 2 ", "parallel-size $TP "))
    with pytest.raises(InputError, match=r"does not define TP.*--define TP=") as caught:
        read_megatron_script(path, Given())
    assert caught.value.faults[0].path == "tensor_model_parallel_size"
    job, _ = read_megatron_script(path, Given(definitions={"TP": "8"}))
    assert job.plan.tp == 8


def test_gradients_are_clipped_unless_the_script_says_zero(tmp_path):
    job, _ = read_megatron_script(FILES / "launch_gpt.sh", Given())
    assert job.plan.clip_gradients
    path = edited(
        tmp_path, "launch_gpt.sh", ("--recompute-method", "--clip-grad 0 --recompute-method")
    )
    job, _ = read_megatron_script(path, Given())
    assert not job.plan.clip_gradients


def test_recomputing_only_some_layers_counts_them(tmp_path):
    path = edited(
        tmp_path, "launch_gpt.sh",
        ("--recompute-method uniform --recompute-num-layers 1",
         "--recompute-method block --recompute-num-layers 2"),
    )  # fmt: skip
    job, _ = read_megatron_script(path, Given())
    assert (job.plan.recompute, job.plan.recompute_layers) == ("full", 2)


MODULES = [
    ("--recompute-granularity selective", ("selective", ())),
    ("--recompute-activations --recompute-modules core_attn", ("selective", ("core_attn",))),
    ("--recompute-granularity selective --recompute-modules layernorm mlp",
     ("selective", ("layernorm", "mlp"))),
    ("--recompute-granularity none --recompute-modules moe_act", ("none", ())),
]  # fmt: skip


@pytest.mark.parametrize(("options", "recomputed"), MODULES)
def test_megatron_names_the_modules_that_are_computed_again(tmp_path, options, recomputed):
    full = "--recompute-method uniform --recompute-num-layers 1"
    path = edited(tmp_path, "launch_gpt.sh", (full, options))
    job, _ = read_megatron_script(path, Given())
    assert (job.plan.recompute, job.plan.recompute_modules) == recomputed


def test_an_unknown_module_is_refused_with_those_that_there_are(tmp_path):
    full = "--recompute-method uniform --recompute-num-layers 1"
    options = "--recompute-granularity selective --recompute-modules mlp gdn_norm_out"
    path = edited(tmp_path, "launch_gpt.sh", (full, options))
    with pytest.raises(InputError, match="known: core_attn") as caught:
        read_megatron_script(path, Given())
    assert [(fault.path, fault.value) for fault in caught.value.faults] == [
        ("recompute_modules", "gdn_norm_out")
    ]


@pytest.mark.parametrize("script", ["pretrain_bert.py", "pretrain_t5.py", "x/pretrain_mamba.py"])
def test_networks_of_other_sorts_are_refused(tmp_path, script):
    path = edited(tmp_path, "launch_gpt.sh", ("pretrain_gpt.py", script))
    with pytest.raises(UnsupportedError, match="no language model"):
        read_megatron_script(path, Given())


def test_nothing_of_a_script_is_run(tmp_path):
    mark = tmp_path / "mark"
    path = tmp_path / "evil.sh"
    path.write_text(
        f"touch {mark}\nX=$(touch {mark})\nY=`touch {mark}`\neval touch {mark}\n"
        f'Z=$((__import__("pathlib").Path("{mark}").touch()))\n'
        + (FILES / "launch_gpt.sh").read_text()
    )
    read_megatron_script(path, Given())
    assert not mark.exists()


MEMORY_OPTIONS = [
    ("--use-distributed-optimizer --optimizer-cpu-offload --use-precision-aware-optimizer",
     {"optimizer": "cpu", "overlap": False}),
    ("--use-distributed-optimizer --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d"
     " --optimizer-offload-fraction 0.5", {"optimizer": "cpu", "share": 0.5}),
    ("--optimizer-cpu-offload --optimizer-offload-fraction 0.0", {}),
    ("--pipeline-model-parallel-size 1 --recompute-granularity none"
     " --cpu-offloading --cpu-offloading-num-layers 23", {"activations": "cpu"}),
    ("--pipeline-model-parallel-size 1 --recompute-granularity none"
     " --cpu-offloading-num-layers 4", {"activations": "cpu", "activation_layers": 4}),
    ("--cpu-offloading-num-layers 0", {}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "offload"), MEMORY_OPTIONS)
def test_megatron_says_what_leaves_the_gpu(tmp_path, options, offload):
    path = tmp_path / "line.sh"
    # The last of several values counts.
    path.write_text(launch(tmp_path, "").read_text().replace("--save", f"{options} --save"))
    job, report = read_megatron_script(path, Given())
    assert job.plan.offload.model_dump(exclude_defaults=True) == offload
    assert report.is_complete


def test_copies_through_memory_that_is_not_pinned_are_refused(tmp_path):
    options = ["--use-distributed-optimizer", "--optimizer-cpu-offload", "--no-pin-cpu-grads"]
    with pytest.raises(InputError, match=r"no_pin_cpu_grads.*pinned"):
        read_megatron_script(launch(tmp_path, *options), Given())


def test_copies_that_do_not_overlap_the_update_lengthen_the_step():
    plan = {"zero": 1, "offload": {"optimizer": "cpu", "overlap": True}}
    job = job_from_document(
        {
            "model": "llama3.1-8b",
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
            "batch": {"global": 8, "seq_len": 4096},
            "plan": plan,
        }
    )
    apart = job.replace(**{"plan.offload.overlap": False})
    numel = 8.03e9 / 8
    profile = job.cluster.profile
    # The gradients go in fp32, the weights come back in 16 bits, and nothing else runs then.
    copies_s = numel * (4 + 2) / profile.host.pcie_bytes_per_s
    gained_s = simulate(apart).step_time_s - simulate(job).step_time_s
    assert 0.7 * copies_s < gained_s < 1.05 * copies_s


def test_gradients_without_an_fp32_copy_are_a_fact_of_the_stack(tmp_path):
    options = "--use-precision-aware-optimizer --main-grads-dtype bf16"
    path = edited(tmp_path, "launch_moe.sh", ("--use-distributed-optimizer",
                  f"--use-distributed-optimizer {options}"))  # fmt: skip
    job, report = read_megatron_script(path, Given())
    assert (job.plan.grad_reduce_precision, job.plan.stack.copies_gradients) == ("bf16", False)
    assert report.is_complete


@pytest.mark.parametrize("option", ["--exp-avg-dtype bf16", "--main-params-dtype fp16"])
def test_states_of_16_bits_are_refused(tmp_path, option):
    path = launch(tmp_path, "--use-precision-aware-optimizer", option)
    with pytest.raises(InputError, match=r"keeps the optimizer's states in fp32|known: fp32"):
        read_megatron_script(path, Given())
    # Without the optimizer that heeds them, Megatron's formats have no effect.
    read_megatron_script(launch(tmp_path, "--exp-avg-dtype fp32"), Given())


def test_muon_is_read_and_its_costly_settings_are_refused(tmp_path):
    options = ["--optimizer muon", "--muon-momentum 0.95", "--muon-tp-mode blockwise"]
    job, report = read_megatron_script(launch(tmp_path, *options), Given())
    assert job.plan.optimizer == "muon"
    assert report.is_complete
    path = launch(tmp_path, "--optimizer muon", "--muon-tp-mode duplicated")
    with pytest.raises(InputError, match="gathers the parts"):
        read_megatron_script(path, Given())


def test_saved_activations_are_distributed(tmp_path):
    job, report = read_megatron_script(launch(tmp_path, "--distribute-saved-activations"), Given())
    assert job.plan.partition_activations
    assert report.is_complete


def test_options_of_megatron_deepspeed_say_where_checkpoints_are(tmp_path):
    options = "--partition-activations --contigious-checkpointing"
    old = "--deepspeed-activation-checkpointing"
    path = edited(tmp_path, "launch_deepspeed.sh", (old, f"{old} {options}"))
    job, _ = read_megatron_script(path, Given())
    assert job.plan.partition_activations
    assert job.plan.contiguous_checkpoints
    # Without recomputation there are none.
    job, _ = read_megatron_script(edited(tmp_path, "launch_deepspeed.sh", (old, options)), Given())
    assert not job.plan.partition_activations


# DeepSpeed


DEEPSPEED = {"model": "llama3.1-8b", "gpus": 8, "seq_len": 4096}


@pytest.mark.parametrize(
    ("number", "clips"), [("0", False), ("0.0", False), ("1.0", True), ('"auto"', True)]
)
def test_deepspeed_clips_gradients_where_the_file_says_so(tmp_path, number, clips):
    old, new = '"gradient_clipping": 1.0', f'"gradient_clipping": {number}'
    path = edited(tmp_path, "ds_config.json", (old, new))
    job, report = read_deepspeed_config(path, Given(**DEEPSPEED))
    assert job.plan.clip_gradients is clips
    assert ("not clipped" in " ".join(report.assumed)) is not clips


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
    assert report.is_complete


def test_tensor_parallel_ranks_divide_checkpoints(tmp_path):
    old = '"wall_clock_breakdown": false'
    new = f'{old}, "tensor_parallel": {{"autotp_size": 2}}, "activation_checkpointing": '
    path = edited(tmp_path, "ds_config.json", (old, new + '{"partition_activations": true}'))
    job, _ = read_deepspeed_config(path, Given(**DEEPSPEED))
    assert job.plan.partition_activations


def test_two_of_three_batch_numbers_give_the_third():
    given = {"model": "llama3.1-8b", "gpus": 8, "seq_len": 4096}
    job, report = read(read_deepspeed_config, "ds_config.json", **given)
    assert (job.batch.global_batch, job.batch.micro_batch) == (64, 4)
    assert (job.plan.zero, job.plan.precision, job.plan.optimizer) == (2, "bf16", "adam")
    assert job.plan.stack.bucket_bytes == 1e9
    assert report.is_complete


def test_everything_that_a_deepspeed_file_cannot_say_is_asked_for_at_once():
    with pytest.raises(InputError) as caught:
        read(read_deepspeed_config, "ds_config.json")
    asked = {fault.path: fault.hint for fault in caught.value.faults}
    assert set(asked) == {"model", "cluster.gpus", "batch.global", "batch.seq_len"}
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
    with pytest.raises(InputError, match=r"bf16.*left to the trainer.*plan\.precision"):
        read_deepspeed_config(path, Given(**given))
    job, _ = read_deepspeed_config(path, Given(**given, changes={"plan.precision": "fp16"}))
    assert job.plan.precision == "fp16"


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ('"zero_quantized_weights": true', "ZeRO\\+\\+"),
        (
            '"x": 0}, "activation_checkpointing": {"synchronize_checkpoint_boundary": true',
            "wait for the device",
        ),
        ('"offload_param": {"device": "nvme"}', r"plan\.offload\.parameters.*plan\.zero: 3"),
        ('"reduce_scatter": false', "more than they need"),
        ('"zero_hpz_partition_size": 8', "second copy"),
    ],
)
def test_a_costly_setting_of_deepspeed_is_refused(tmp_path, setting, why):
    path = edited(tmp_path, "ds_config.json", ('"stage": 2', f'"stage": 2, {setting}'))
    with pytest.raises(InputError, match=why):
        read_deepspeed_config(path, Given(model="gpt2", gpus=8, seq_len=1024))


# torchtitan


def test_a_torchtitan_file_gives_model_pipeline_and_sharding():
    job, report = read(read_torchtitan_config, "llama3_70b.toml", gpus=512)
    assert job.model == load_model("llama3.1-70b")
    plan = job.plan
    # 82 units in stages of 11 make 8 stages on 4 ranks; 16 ranks of data in 2 replicas.
    assert (plan.pp, plan.vpp, plan.schedule, plan.zero, plan.zero_group) == (4, 2, None, 3, 8)
    assert (job.batch.global_batch, job.batch.micro_batch, job.microbatches) == (128, 1, 8)
    assert (plan.precision, plan.recompute) == ("fp8", "selective")
    assert plan.account_for_embedding
    assert plan.account_for_loss
    assert report.is_complete


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"70B"', '"70B_mine"', r"--model NAME"),
        ('"op"', '"2"', "one layer in so many"),
        ("[training]", "[training]\nenable_cpu_offload = true", "not modelled in a pipeline"),
        ("[compile]", "[fault_tolerance]\nenable = true\n[compile]", "adds work"),
        ('"Interleaved1F1B"', '"Mine"', "known: 1F1B"),
        ("[parallelism]", "[parallelism]\nwings = 2", "is not known"),
    ],
)
def test_a_costly_setting_of_torchtitan_is_refused(tmp_path, old, new, why):
    path = edited(tmp_path, "llama3_70b.toml", (old, new))
    with pytest.raises(InputError, match=why):
        read_torchtitan_config(path, Given(gpus=512))


@pytest.mark.parametrize(
    ("section", "recompute"),
    [
        ("null", "none"),
        ('{"preserve_rng_state": true}', "full"),
        ('{"preserve_rng_state": true, "force_recompute_mm_shapes_by_fqns": []}', "selective"),
    ],
)
def test_resolved_json_of_today_shows_recomputation_by_its_fields(tmp_path, section, recompute):
    path = tmp_path / "resolved.json"
    path.write_text(
        '{"model_spec": {"name": "llama3", "flavor": "8B", "model": {"dim": 4096}},'
        ' "dump_folder": "out", "training": {"local_batch_size": 1, "seq_len": 8192},'
        ' "compile": {"enable": true, "components": ["model", "loss"]},'
        f' "activation_checkpoint": {section}}}'
    )
    job, report = read_torchtitan_config(path, Given(gpus=8))
    assert job.plan.recompute == recompute
    assert job.model == load_model("llama3.1-8b")
    assert report.is_complete


def test_without_compilation_layers_are_eager(tmp_path):
    path = edited(tmp_path, "llama3_70b.toml", ("enable = true", "enable = false"))
    job, _ = read_torchtitan_config(path, Given(gpus=512))
    assert not job.plan.stack.fused_rmsnorm
    assert job.plan.stack.cross_entropy == "eager"


@pytest.mark.parametrize("part", ["model", "loss"])
def test_the_model_or_the_loss_may_be_compiled_alone(tmp_path, part):
    only = f'enable = true\ncomponents = ["{part}"]'
    path = edited(tmp_path, "llama3_70b.toml", ("enable = true", only))
    stack = read_torchtitan_config(path, Given(gpus=512))[0].plan.stack
    assert stack.fused_rmsnorm == (part == "model")
    assert stack.cross_entropy == ("fused" if part == "loss" else "eager")


# accelerate


def test_accelerate_and_training_arguments_are_read_as_one():
    files = [FILES / "fsdp.yaml", FILES / "training_args.json"]
    job, report = read_accelerate_files(files, Given(model="llama3.1-8b", seq_len=2048))
    assert (job.cluster.gpus, job.batch.global_batch, job.batch.micro_batch) == (16, 128, 2)
    assert (job.plan.zero, job.plan.recompute, job.plan.precision) == (3, "full", "bf16")
    assert report.is_complete


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
    assert report.is_complete


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
    assert report.is_complete


def test_the_trainer_clips_gradients_unless_it_is_told_not_to(tmp_path):
    for number, clips in (("1.0", True), ("0.0", False)):
        old, new = '"bf16": true', f'"bf16": true, "max_grad_norm": {number}'
        path = edited(tmp_path, "training_args.json", (old, new))
        given = Given(model="gpt2", gpus=8, seq_len=1024)
        assert read_accelerate_files([path], given)[0].plan.clip_gradients is clips


# NeMo and Megatron-Bridge


def test_a_nemo_recipe_with_references_is_read():
    job, report = read(read_nemo_recipe, "nemo_gpt.yaml")
    assert (job.cluster.gpus, job.plan.vpp, job.plan.zero) == (32, 2, 1)
    assert (job.model.ffn_hidden, job.model.max_positions) == (16384, 2048)
    assert (job.plan.recompute, job.plan.overlap_tp) == ("selective", True)
    assert job.plan.overlap_param_gather is False
    assert report.is_complete


def test_a_bridge_recipe_gives_layout_experts_and_latent_attention():
    given = {"gpus": 64, "definitions": {"TP": "2"}}
    job, report = read(read_nemo_recipe, "bridge_moe.yaml", **given)
    experts = job.model.experts
    assert (job.plan.tp, job.plan.layout) == (2, "Etttt|tttt|tttt|ttttmL")
    assert (experts.count, experts.first_dense_layers, experts.router_bias) == (64, 1, True)
    assert job.model.latent_attention.kv_lora_rank == 256
    assert job.model.multi_token_layers == 1
    assert report.is_complete


def test_a_reference_that_the_recipe_leaves_open_is_asked_for():
    with pytest.raises(InputError, match=r"tensor_model_parallel_size.*--define TP="):
        read(read_nemo_recipe, "bridge_moe.yaml", gpus=64)


# Bad input


READERS = {
    "sh": read_megatron_script,
    "json": read_deepspeed_config,
    "toml": read_torchtitan_config,
    "yaml": read_nemo_recipe,
}
BAD = {
    "empty": b"",
    "binary": bytes(range(256)),
    "foreign": b"<html><body>not found</body></html>",
    "truncated": b'{"zero_optimization": {"stage": 3, "x": "',
    "list": b"[1, 2, 3]",
    "deep json": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep brackets": b"[" * 20000,
    "python object": b"!!python/object/apply:os.system ['touch mark']",
    "aliases": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9))
               for i in range(12)),
    "doubling": b"X=xxxxxxxxxxxxxxxx\n" + b"X=$X$X$X$X\n" * 40,
    "open quote": b'torchrun pretrain_gpt.py --num-layers "12',
    "huge": b"a" * (MAX_FILE_BYTES + 1),
    "huge number": b"--num-layers " + b"9" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("ending", READERS)
@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_clear_errors(tmp_path, kind, ending):
    path = tmp_path / f"bad.{ending}"
    path.write_bytes(BAD[kind])
    with pytest.raises(InputError, match=r"bad\."):
        READERS[ending](path, Given(model="gpt2", gpus=8, seq_len=1024, global_batch=8))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("ending", READERS)
def test_a_missing_file_is_a_clear_error(tmp_path, ending):
    with pytest.raises(InputError, match="is not a file"):
        READERS[ending](tmp_path / f"none.{ending}", Given())
