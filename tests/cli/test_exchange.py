"""Do import and export speak with files, stdout, stderr and exit codes as they should?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "torchtitan"])
def test_the_command_writes_the_file_to_stdout_and_talks_on_stderr(clustersim, write, framework):
    stack = {"megatron": "megatron-core"}.get(framework, framework)
    extra = {"deepspeed": "zero: 3", "torchtitan": "zero: 3", "megatron": "tp: 2"}[framework]
    job = write(
        f"""
        model: llama3.1-8b
        cluster: {{profile: h100-sxm-80gb, gpus: 8}}
        batch: {{global: 32, seq_len: 4096}}
        plan: {{stack: {stack}, {extra}}}
        """
    )
    outcome = clustersim("export", framework, job)
    assert outcome.code == 0
    assert outcome.out.startswith({"megatron": "torchrun", "deepspeed": "{"}.get(framework, "["))
    assert outcome.err


def test_exporting_to_deepspeed_says_on_stderr_what_the_model_has_to_switch_on(clustersim, write):
    job = write(
        """
        model: llama3.1-8b
        cluster: {profile: h100-sxm-80gb, gpus: 8}
        batch: {global: 32, seq_len: 4096}
        plan: {stack: deepspeed, zero: 3, recompute: full}
        """
    )
    outcome = clustersim("export", "deepspeed", job)
    assert outcome.code == 0
    assert json.loads(outcome.out)["zero_optimization"]["stage"] == 3
    assert "switch gradient checkpointing on in the model" in outcome.err


def test_exporting_to_accelerate_says_on_stderr_what_the_trainer_is_told(clustersim, tmp_path):
    fsdp = tmp_path / "fsdp.yaml"
    said = ("--model", "llama3.1-8b", "--seq-len", "2048", "--micro-batch", "2", "--gpus", "16")
    imported = clustersim("import", "accelerate", FILES / "fsdp.yaml", *said)
    fsdp.write_text(imported.out, encoding="utf-8")
    outcome = clustersim("export", "accelerate", fsdp)
    assert outcome.code == 0
    config = yaml.safe_load(outcome.out)
    assert (config["distributed_type"], config["num_processes"]) == ("FSDP", 16)
    assert "accelerate launch --config_file" in outcome.err
    assert "--per_device_train_batch_size 2" in outcome.err


def test_exporting_to_axolotl_says_on_stderr_how_it_is_launched(clustersim, write):
    job = write(
        """
        model: llama3.2-1b
        cluster: {profile: a100-sxm-80gb, gpus: 8}
        batch: {global: 64, micro: 2, seq_len: 2048}
        plan: {stack: axolotl, zero: 3, lora: {rank: 16}}
        """
    )
    outcome = clustersim("export", "axolotl", job)
    assert outcome.code == 0
    assert yaml.safe_load(outcome.out)["lora_r"] == 16
    assert "torchrun --nnodes 1 --nproc-per-node 8 -m axolotl.cli.train" in outcome.err


FILES = Path(__file__).parents[1] / "importers" / "files"


@pytest.mark.parametrize(
    "words",
    [
        ("megatron", FILES / "launch_moe.sh"),
        ("megatron", FILES / "launch_gpt.sh", "--gpus", 64, "--set", "plan.zero=1"),
        ("deepspeed", FILES / "ds_config.json", "--model", "gpt2", "--gpus", 8, "--seq-len", 1024),
        ("torchtitan", FILES / "llama3_70b.toml", "--gpus", 512),
        ("accelerate", FILES / "fsdp.yaml", FILES / "training_args.json", "--model", "gpt2-xl",
         "--seq-len", 1024),
        ("nemo", FILES / "bridge_moe.yaml", "--gpus", 64, "--define", "TP=2"),
    ],
)  # fmt: skip
def test_what_is_imported_is_a_job_that_runs(clustersim, write, words):
    outcome = clustersim("import", *words)
    assert outcome.code == 0
    assert "understood" in outcome.err
    result = clustersim("run", write(outcome.out), "--json")
    assert result.code in {0, 1}
    assert json.loads(result.out)["step_time_s"] > 0


def test_a_wrong_definition_is_bad_input(clustersim):
    outcome = clustersim("import", "megatron", FILES / "launch_gpt.sh", "--define", "TP")
    assert outcome.code == 2
    assert "--define TP=8" in outcome.err


def test_a_costly_setting_is_bad_input_with_nothing_on_stdout(clustersim, write):
    config = write('{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}', "d.json")
    outcome = clustersim("import", "deepspeed", config, "--model", "gpt2", "--gpus", 8)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--ignore zero_optimization.zero_hpz_partition_size" in outcome.err


def test_hardware_that_nobody_named_is_said(clustersim):
    words = ("import", "torchtitan", FILES / "llama3_70b.toml", "--gpus", 512)
    said = "hardware: h100-sxm-80gb, until --profile names another"
    assert said in clustersim(*words).err
    for named in (("--profile", "h100-sxm-80gb"), ("--set", "cluster.profile=h100-sxm-80gb")):
        assert said not in clustersim(*words, *named).err


def test_hardware_of_a_launch_line_is_said_unless_it_is_named(clustersim, write):
    launch = write("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2\n", "launch.sh")
    assert "hardware: h100-sxm-80gb" in clustersim("import", "vllm", launch).err
    named = clustersim("import", "vllm", launch, "--profile", "h200-sxm-141gb")
    assert named.code == 0
    assert "hardware" not in named.err


def test_gpus_count_for_the_batch_whichever_option_states_them(clustersim):
    file = FILES / "llama3_70b.toml"
    either = [
        clustersim("import", "torchtitan", file, *option).out
        for option in (("--gpus", 512), ("--set", "cluster.gpus=512"))
    ]
    assert either[0] == either[1]
    assert "global: 128" in either[0]


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2"])
def test_a_model_is_named_as_here_or_as_on_the_hub(clustersim, name):
    words = (FILES / "ds_config.json", "--model", name, "--gpus", 8, "--seq-len", 1024)
    assert "model: gpt2\n" in clustersim("import", "deepspeed", *words).out


def test_a_model_that_nobody_knows_says_how_to_get_its_config(clustersim):
    words = (FILES / "ds_config.json", "--model", "someone/something", "--gpus", 8)
    outcome = clustersim("import", "deepspeed", *words)
    assert outcome.code == 2
    assert "hf download someone/something config.json" in outcome.err


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("llama3_70b.toml", "import torchtitan {}"),
        ("launch_gpt.sh", "import megatron {}"),
        ("../../../workloads/capture/ddp.py", "capture {} --world N"),
    ],
)
def test_a_framework_s_file_in_place_of_a_job_is_sent_to_the_command_that_reads_it(
    clustersim, name, way
):
    outcome = clustersim("run", FILES / name)
    assert outcome.code == 2
    assert f"clustersim {way.format(FILES / name)}" in outcome.err


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("distributed_type: FSDP\nnum_processes: 8\n", "clustersim import accelerate"),
        ("zero_optimization: {stage: 3}\n", "clustersim import deepspeed"),
        (
            "base_model: NousResearch/Llama-3.2-1B\n\n",
            "clustersim import axolotl",
        ),
        ("model: {seq_length: 8}\nddp: {}\n", "clustersim import nemo"),
        ("model_name_or_path: gpt2\ndataset_name: d\n", "clustersim import accelerate"),
        ("model_type: llama\nhidden_size: 4096\n", "clustersim import hf"),
        ("deployment: {gpus: 8}\nworkload: {}\n", "clustersim serve run"),
        ("offers: {}\nworkloads: {}\n", "clustersim rent"),
    ],
)
def test_a_file_of_another_kind_is_told_with_the_command_that_reads_it(
    clustersim, tmp_path, text, way
):
    file = tmp_path / "file of mine.yaml"
    file.write_text(text, encoding="utf-8")
    for command in ("run", "plan", "memory"):
        outcome = clustersim(command, file)
        assert outcome.code == 2
        assert "is not a job: it " in outcome.err
        assert f"{way} '{file}'" in outcome.err


def test_a_schedule_without_a_name_in_torchtitan_lies_beside_the_file(clustersim, write, tmp_path):
    job = write(
        """
        model: llama3.1-8b
        cluster: {profile: h100-sxm-80gb, gpus: 4}
        batch: {global: 8, seq_len: 4096}
        plan: {stack: torchtitan, zero: 3, pp: 4, schedule: zb-h1}
        """
    )
    outcome = clustersim("export", "torchtitan", job)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--out FILE.toml" in outcome.err
    toml = tmp_path / "out" / "job.toml"
    outcome = clustersim("export", "torchtitan", job, "--out", toml)
    assert (outcome.code, outcome.out) == (0, "")
    assert toml.with_suffix(".csv").read_text().startswith("0F0,")
    again = clustersim("import", "torchtitan", toml, "--gpus", 4)
    assert again.code == 0
    first = clustersim("run", job, "--json")
    second = clustersim("run", write(again.out, "again.yaml"), "--json")
    assert json.loads(first.out)["step_time_s"] == json.loads(second.out)["step_time_s"]


def test_a_step_goes_out_as_traces_and_is_replayed_on_other_links(clustersim, job_file, tmp_path):
    folder = tmp_path / "traces"
    outcome = clustersim("export", "chakra", job_file, "--out", folder)
    assert (outcome.code, outcome.out) == (0, "")
    assert sorted(file.name for file in folder.iterdir()) == ["job.0.et", "job.8.et"]
    step_s = json.loads(clustersim("run", job_file, "--json").out)["step_time_s"]
    replayed = json.loads(clustersim("replay", folder, "--json").out)
    assert replayed["step_time_s"] == pytest.approx(step_s, rel=1e-12)
    other = clustersim("replay", folder, "--profile", "a100-sxm-80gb")
    assert other.code == 0
    assert "of the recorded step" in other.out
    assert clustersim("replay", job_file).code == 2
    assert clustersim("export", "chakra", job_file, "--out", folder, "--ranks", "99").code == 2


def test_traces_of_all_ranks_can_be_asked_for(clustersim, job_file, tmp_path):
    assert clustersim("export", "chakra", job_file, "--out", tmp_path, "--ranks", "0,3").code == 0
    assert len(list(tmp_path.glob("*.et"))) == 2
