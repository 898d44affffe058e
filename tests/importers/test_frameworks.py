"""Files of training frameworks, read against the jobs that a person would write for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError, UnsupportedError
from simulator.importers.accelerate import read_accelerate_files
from simulator.importers.assembly import Given
from simulator.importers.deepspeed import read_deepspeed_config
from simulator.importers.foreign_file import MAX_FILE_BYTES
from simulator.importers.megatron import read_megatron_script
from simulator.importers.nemo import read_nemo_recipe
from simulator.importers.torchtitan import read_torchtitan_config
from simulator.spec.load import load_model

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
        ("--optimizer-cpu-offload", "moves optimizer states to the host"),
        ("--cpu-offloading-num-layers 4", "moves activations"),
        ("--external-cuda-graph", "host's launches"),
        ("--fp32-residual-connection", "32 bits"),
        ("--optimizer muon", "is not modelled; known: adam"),
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
    path = launch(tmp_path, "--optimizer-cpu-offload", "--wings 2")
    _, report = read_megatron_script(path, Given(ignore=("--optimizer-cpu-offload", "wings")))
    assert len(report.unsupported) == 2
    assert "optimizer_cpu_offload = True is left out" in report.unsupported[0]


def test_a_word_without_a_meaning_may_be_left_out_too(tmp_path):
    path = launch(tmp_path, "--optimizer muon")
    job, report = read_megatron_script(path, Given(ignore=("optimizer",)))
    assert job.plan.optimizer == "adam"
    assert report.unsupported[0].startswith("optimizer = muon is left out; it is not modelled")


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


# DeepSpeed


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


def test_offloading_of_fsdp_is_refused(tmp_path):
    path = edited(tmp_path, "fsdp.yaml", ("offload_params: false", "offload_params: true"))
    with pytest.raises(InputError, match="moves states to the host"):
        read_accelerate_files([path], Given(model="gpt2", seq_len=1024, micro_batch=1))


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
