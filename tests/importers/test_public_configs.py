"""Settings of configurations that are public, each read into a job that runs.

The files in ``public/`` hold the settings of the repositories that they name (of those
without comments: microsoft/DeepSpeedExamples ``Megatron-LM-v1.1.5-ZeRO3/examples`` and
``bing_bert``, pytorch/torchtitan ``torchtitan/models/llama3/config_registry.py``), laid out
anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from simulator.api import simulate
from simulator.errors import InputError, UnsupportedError
from simulator.importers.assembly import Given
from simulator.importers.deepspeed import read_deepspeed_config
from simulator.importers.finetuning.accelerate import read_accelerate_files
from simulator.importers.megatron.launch_line import read_megatron_script
from simulator.importers.megatron.nemo import read_nemo_recipe
from simulator.importers.torchtitan import read_torchtitan_config

PUBLIC = Path(__file__).parent / "public"
READERS: dict[str, Any] = {
    "megatron": read_megatron_script,
    "deepspeed": read_deepspeed_config,
    "titan": read_torchtitan_config,
    "accelerate": lambda path, given: read_accelerate_files([path], given),
    "nemo": read_nemo_recipe,
    "bridge": read_nemo_recipe,
}
GPT2 = {"model": "gpt2-xl", "gpus": 8, "seq_len": 1024}
LLAMA = {"model": "llama3.1-8b", "seq_len": 2048, "micro_batch": 1}
NVME = {"size": "15 TB", "read": "25 GB/s", "write": "20 GB/s"}
SPARSE = ("mode", "block", "different_layout_per_head", "num_local_blocks", "num_global_blocks",
          "attention")  # fmt: skip
BRIDGE = {"TP": "2", "PP": "16", "EP": "64", "CP": "1", "VPP": "1", "SEQ_LEN": "4096",
          "MBS": "1", "GBS": "1024", "vocab_size": "129280"}  # fmt: skip


@dataclass(frozen=True)
class Public:
    """A file, what is said beside it, and what its job must be.

    Attributes:
        file: Its name.
        given: What the user says.
        gpus, dp: Of the job.
        plan: Fields of the plan by name, as the file says them.
    """

    file: str
    given: dict[str, Any]
    gpus: int
    dp: int
    plan: dict[str, Any] = field(default_factory=dict)


CONFIGS = [
    Public("megatron_gpt3_175b.sh", {"gpus": 1024}, 1024, 8,
           {"tp": 8, "pp": 16, "zero": 0, "precision": "fp16", "clip_gradients": True}),
    Public("megatron_llama3_8b_fp8.sh",
           {"ignore": ("empty_unused_memory_level",)}, 8, 8,
           {"precision": "fp8", "zero": 1, "grad_reduce_precision": "bf16"}),
    Public("megatron_mixtral.sh", {}, 2, 2, {"ep": 2, "etp": 1, "precision": "fp32", "zero": 1}),
    Public("megatron_deepspeed_llama2.sh", {"definitions": {"vocab_size": "32000"}}, 8, 2,
           {"tp": 2, "pp": 2, "zero": 1, "recompute": "none", "precision": "bf16"}),
    Public("megatron_deepspeed_350m.sh", {"gpus": 8, "ignore": ("deepspeed_config",)}, 8, 8,
           {"recompute": "full", "precision": "fp16", "ep": 1}),
    Public("titan_llama3_405b.toml",
           {"gpus": 128, "ignore": ("float8.enable_fsdp_float8_all_gather",)}, 128, 16,
           {"tp": 8, "zero": 3, "recompute": "full", "precision": "fp8", "overlap_tp": True}),
    Public("titan_deepseek_v3.toml", {"gpus": 512}, 512, 512,
           {"zero": 3, "recompute": "selective", "precision": "bf16", "pp": 1}),
    Public("titan_llama4.toml", {"gpus": 256, "model": "mixtral-8x7b"}, 256, 8,
           {"tp": 8, "pp": 4, "zero": 3, "recompute": "full", "reshard_after_forward": False}),
    Public("titan_llama3_70b.json", {"gpus": 256}, 256, 32, {"tp": 8, "recompute": "full"}),
    Public("deepspeed_infinity.json", {**GPT2, "changes": {"cluster.host.nvme": NVME}}, 8, 8,
           {"zero": 3, "precision": "fp16", "clip_gradients": True}),
    Public("deepspeed_zero3.json", GPT2, 8, 8, {"zero": 3, "precision": "fp16"}),
    Public("deepspeed_bert_lamb.json",
           {**GPT2, "gpus": 64, "seq_len": 128, "changes": {"batch.micro": 16},
            "ignore": tuple(f"sparse_attention.{key}" for key in SPARSE)}, 64, 64,
           {"zero": 0, "optimizer": "lamb", "clip_gradients": True}),
    Public("accelerate_fsdp2.yaml", LLAMA, 8, 8, {"zero": 3, "recompute": "none"}),
    Public("accelerate_zero3.yaml", LLAMA, 8, 8, {"zero": 3, "precision": "fp16"}),
    Public("accelerate_ulysses.yaml", LLAMA, 4, 2,
           {"cp": 2, "cp_method": "all_to_all", "attention_kernel": "flash", "zero": 3}),
    Public("accelerate_context.yaml", LLAMA, 2, 1, {"cp": 2, "cp_method": "all_gather"}),
    Public("accelerate_offload.yaml", LLAMA, 8, 8, {"zero": 3, "precision": "bf16"}),
    Public("nemo_llama3_405b.yaml",
           {"definitions": {"vocab_size": "128256"}, "ignore": ("defer_embedding_wgrad_compute",)},
           4608, 32, {"tp": 8, "pp": 9, "vpp": 7, "cp": 2, "overlap_tp": True, "zero": 1}),
    Public("bridge_deepseek_v3.yaml", {"gpus": 1024, "definitions": BRIDGE}, 1024, 32,
           {"tp": 2, "pp": 16, "ep": 64, "etp": 1, "grad_reduce_precision": "bf16"}),
    Public("bridge_overrides.yaml", {"gpus": 8, "model": "llama3.1-8b"}, 8, 8, {"zero": 3}),
]  # fmt: skip


def read(config: Public) -> Any:
    return READERS[config.file.partition("_")[0]](PUBLIC / config.file, Given(**config.given))


def test_every_public_file_is_read():
    named = {config.file for config in CONFIGS} | {"megatron_t5.sh"}
    assert {path.name for path in PUBLIC.iterdir() if path.is_file()} == named


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.file)
def test_a_public_configuration_is_a_job_that_runs(config):
    job, report = read(config)
    assert (job.cluster.gpus, job.dp) == (config.gpus, config.dp)
    assert {name: getattr(job.plan, name) for name in config.plan} == config.plan
    # All that the user let go is told, and nothing else.
    assert len(report.unsupported) == len(config.given.get("ignore", ()))
    assert report.understood
    assert report.ignored
    small = job.replace(**{"batch.global": config.dp * job.plan.pp * job.batch.micro_batch})
    assert simulate(small, engine="replay").step_time_s > 0


@pytest.mark.parametrize(
    "config",
    [config for config in CONFIGS if "ignore" in config.given],
    ids=lambda config: config.file,
)
def test_what_is_not_modelled_of_a_public_configuration_is_an_error_until_it_is_let_go(config):
    given = {key: value for key, value in config.given.items() if key != "ignore"}
    with pytest.raises(InputError) as caught:
        read(Public(config.file, given, 0, 0))
    named = {fault.path for fault in caught.value.faults}
    assert named == set(config.given["ignore"])


def test_an_encoder_with_a_decoder_is_refused_for_what_it_is():
    with pytest.raises(UnsupportedError, match=r"pretrain_t5\.py.*not a language model"):
        read_megatron_script(PUBLIC / "megatron_t5.sh", Given())


def test_what_defaults_a_recipe_in_python_has_is_not_known():
    _, report = read(CONFIGS[-1])
    assert any("a recipe in Python may differ" in sentence for sentence in report.assumed)


def test_experts_of_megatron_deepspeed_are_in_every_second_layer(tmp_path):
    text = (PUBLIC / "megatron_deepspeed_350m.sh").read_text(encoding="utf-8")
    path = tmp_path / "moe.sh"
    path.write_text(text.replace("EP_SIZE=1\n", "EP_SIZE=128\n"), encoding="utf-8")
    job, report = read_megatron_script(path, Given(gpus=8, ignore=("deepspeed_config",)))
    experts = job.model.experts
    assert (experts.count, experts.top_k, experts.every) == (128, 1, 2)
    assert (experts.capacity_factor, job.plan.ep) == (1.0, 8)
    assert len(report.unsupported) == 1


REGISTRY = PUBLIC / "llama3" / "config_registry.py"


def test_configurations_in_python_are_read_and_never_run():
    job, report = read_torchtitan_config(f"{REGISTRY}:llama3_8b", Given(gpus=8))
    assert (job.model.name, job.batch.seq_len, job.plan.recompute) == (
        "llama3.1-8b", 8192, "selective",
    )  # fmt: skip
    assert not report.unsupported
    gathers = "float8.enable_fsdp_float8_all_gather"
    job, report = read_torchtitan_config(
        f"{REGISTRY}:llama3_405b", Given(gpus=128, ignore=(gathers,))
    )
    assert (job.plan.tp, job.plan.precision, job.plan.overlap_tp) == (8, "fp8", True)
    assert len(report.unsupported) == 1


def test_a_configuration_that_changes_another_is_followed():
    with pytest.raises(InputError, match=r"early_step_in_backward.*moves the update") as caught:
        read_torchtitan_config(f"{REGISTRY}:llama3_8b_in_backward", Given(gpus=8))
    ignore = tuple(fault.path for fault in caught.value.faults)
    job, _ = read_torchtitan_config(
        f"{REGISTRY}:llama3_8b_in_backward", Given(gpus=8, ignore=ignore)
    )
    assert job.batch.seq_len == 4096


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("sft", "does more in sft than define a configuration"),
        ("llama9", "has no function llama9.*one of llama3_8b, llama3_405b"),
    ],
)
def test_python_that_does_more_is_a_clear_error(function, why):
    with pytest.raises(InputError, match=why):
        read_torchtitan_config(f"{REGISTRY}:{function}", Given(gpus=8))


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    return f()\n",
        "def f(:\n",
        "def f():\n    return Config(x=" + "[" * 500 + "]" * 500 + ")\n",
        "def f():\n    open('mark', 'w')\n    return Config()\n",
        "def f():\n    return Config(x=" + "-" * 30000 + "1)\n",
        "\0",
    ],
)
def test_strange_python_is_a_clear_error_and_runs_nothing(tmp_path, text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "strange.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"strange\.py"):
        read_torchtitan_config(f"{path}:f", Given(gpus=8))
    assert not (tmp_path / "mark").exists()
