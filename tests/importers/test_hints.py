"""Ways out that errors name: whoever follows one meets no error a second time."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from reports.make.importers.hints import outcome_of
from simulator.errors import Fault, InputError
from simulator.importers.assembly import Given
from simulator.importers.formats import FORMATS

RECIPES = Path(__file__).parent / "recipes"
PUBLIC = Path(__file__).parent / "public"
SCRIPTS = sorted([*RECIPES.glob("[ms][ew]*.sh"), *PUBLIC.glob("*.sh")])
OPTIONS = (
    "--num-layers-per-virtual-pipeline-stage 3", "--context-parallel-size 2", "--no-such 4",
    "--expert-model-parallel-size 4", "--cpu-offloading", "--recompute-granularity selective",
    "--optimizer lion", "--fp8-format hybrid", "--sequence-parallel", "--moe-router-topk 2",
    "--position-embedding-type mrope", "--deterministic-mode", "--attention-backend none",
    "--tensor-model-parallel-size 3", "--recompute-num-layers 4",
)  # fmt: skip
VALUES = ("$(cat file)", "${UNSET}", "$1", "${12}", "$((A * 2))", "`nproc`", "7", "many", "0", "-1")


def mutated(text: str, random_source: random.Random) -> str:
    """A launch script with a few options lost, added or given other values."""
    for _ in range(random_source.randint(1, 4)):
        options = re.findall(r"--[\w-]+ +[\w.$/{}-]+", text)
        chosen = random_source.choice(options)
        name = chosen.split()[0]
        changed = random_source.choice(
            ["", f"{name} {random_source.choice(VALUES)}",
             f"{chosen} {random_source.choice(OPTIONS)}"]
        )  # fmt: skip
        text = text.replace(chosen, changed, 1)
    return text


def format_of(script: Path) -> str:
    return "ms-swift" if script.stem.startswith("swift") else "megatron"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_way_out_never_leads_to_the_same_error(tmp_path, script):
    text = script.read_text(encoding="utf-8")
    for seed in range(6):
        path = tmp_path / f"{seed}.sh"
        path.write_text(mutated(text, random.Random(seed)), encoding="utf-8")
        outcome = outcome_of(FORMATS[format_of(script)], [path])
        assert not outcome.is_circular, outcome.reason
        assert outcome.help != "refused" or outcome.reason


def test_a_file_that_wants_a_disk_is_read_once_the_hint_is_followed():
    outcome = outcome_of(FORMATS["deepspeed"], [PUBLIC / "deepspeed_infinity.json"])
    assert outcome.help == "options", outcome.reason


def test_a_way_out_of_a_rule_of_the_job_names_the_option_of_the_import(tmp_path):
    path = tmp_path / "launch.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
        "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
        "--micro-batch-size 1 --global-batch-size 12 --bf16"
    )
    with pytest.raises(InputError, match=r"give --global-batch \d+, or "):
        FORMATS["megatron"].read([path], Given())


def test_a_batch_below_one_is_named_by_its_own_setting_and_once(tmp_path):
    path = tmp_path / "sft.sh"
    path.write_text(
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-32B --train_type full "
        "--per_device_train_batch_size -1 --max_length 8192"
    )
    with pytest.raises(InputError) as raised:
        FORMATS["ms-swift"].read([path], Given())
    faults = [(fault.path, fault.rule) for fault in raised.value.faults]
    assert faults == [("per_device_train_batch_size", "must be at least 1")]


def faults_of(name: str, text: str, path: Path, **given: object) -> list[Fault]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        FORMATS[name].read([path], Given(**given))
    return error.value.faults


def test_a_model_that_nobody_knows_is_asked_for_once(tmp_path):
    text = "base_model: someone/unheard-of-9b\nsequence_len: 2048\nmicro_batch_size: 1\n"
    (fault,) = faults_of("axolotl", text, tmp_path / "axolotl.yaml", gpus=8)
    assert (fault.path, "--model NAME" in fault.hint) == ("base_model", True)


def test_matrices_that_nobody_knows_are_one_fault(tmp_path):
    text = (
        "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\nmicro_batch_size: 1\n"
        "adapter: lora\nlora_r: 8\n"
        "lora_target_modules: [q_proj, linear_attn.in_proj_ba, mlp.gate]\n"
    )
    (fault,) = faults_of("axolotl", text, tmp_path / "axolotl.yaml", gpus=8)
    assert fault.value == "linear_attn.in_proj_ba, mlp.gate"
    assert fault.rule.startswith("names matrices that are not known")
