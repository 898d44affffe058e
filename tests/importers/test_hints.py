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


ADAPTERS = (
    "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\nmicro_batch_size: 1\n"
    "adapter: lora\nlora_r: 8\n"
)


@pytest.mark.parametrize(
    ("said", "targets"),
    [
        (r"'model.layers.[\d]+.(mlp|self_attn).(up|q|k)_proj'", ("query", "key", "up")),
        (r'".*\\.self_attn\\.(q|v)_proj"', ("query", "value")),
        (r"'model\.language_model\.layers\.\d+\.mlp\.(gate|down)_proj'", ("gate", "down")),
        ("[self_attn.q_proj, mlp.down_proj]", ("query", "down")),
    ],
)
def test_expressions_and_ends_of_names_say_matrices_as_peft_reads_them(tmp_path, said, targets):
    """Source: PEFT, ``check_target_module_exists``."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(f"{ADAPTERS}lora_target_modules: {said}\n", encoding="utf-8")
    job, _ = FORMATS["axolotl"].read([path], Given(gpus=8))
    assert job.plan.lora.targets == targets


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (r"'.*\.layers\.(3|7|11)\.self_attn\.(q|k)_proj'", "gives some layers adapters"),
        (r"'model.visual.blocks.\d+.attn.qkv'", "names a matrix that is not known"),
        (r"'([a-z.]+)+x'", "names a matrix that is not known"),
        ("'[q_proj'", "names a matrix that is not known"),
    ],
)
def test_expressions_that_are_not_modelled_are_faults(tmp_path, said, rule):
    text = f"{ADAPTERS}lora_target_modules: {said}\n"
    (fault,) = faults_of("axolotl", text, tmp_path / "axolotl.yaml", gpus=8)
    assert rule in fault.rule


def test_numbers_of_adapters_mean_nothing_where_there_are_none(tmp_path):
    path = tmp_path / "axolotl.yaml"
    text = ADAPTERS.replace("adapter: lora", "adapter:") + "lora_target_modules: [q_proj]\n"
    path.write_text(f"{text}attn_implementation: flex_attention\n", encoding="utf-8")
    job, _ = FORMATS["axolotl"].read([path], Given(gpus=8))
    assert (job.plan.lora, job.plan.attention_kernel) == (None, "flash")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("unsloth/llama-3-8b-bnb-4bit", "nf4"),
        ("someone/Meta-Llama-3-8B-Instruct-AWQ", "nf4"),
        ("someone/Meta-Llama-3-8B-Instruct-GPTQ-Int8", "int8"),
        ("meta-llama/Meta-Llama-3-8B", None),
    ],
)
def test_a_model_that_the_hub_keeps_in_few_bits_is_trained_beside_in_them(tmp_path, name, form):
    path = tmp_path / "axolotl.yaml"
    path.write_text(ADAPTERS.replace("NousResearch/Llama-3.2-1B", name), encoding="utf-8")
    job, report = FORMATS["axolotl"].read([path], Given(gpus=8))
    assert job.plan.lora.base_precision == form
    assert any("fewer bits" in each for each in report.assumed) == bool(form)


def test_adapters_of_megatron_swift_are_read(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B --train_type lora --lora_rank 32 "
        "--lora_alpha 64 --target_modules linear_qkv linear_proj --tensor_model_parallel_size 2 "
        "--max_length 4096\n",
        encoding="utf-8",
    )
    job, _ = FORMATS["ms-swift"].read([path], Given())
    assert (job.plan.lora.rank, job.plan.tp) == (32, 2)
    assert job.plan.lora.targets == ("query", "key", "value", "output")


PRIMUS = """modules:
  pre_trainer:
    framework: megatron
    model: deepseek_v3.yaml
    overrides:
      seq_length: 4096
      micro_batch_size: 1
      global_batch_size: 64
      expert_model_parallel_size: 8
"""


def test_what_a_file_states_of_the_model_that_it_names_counts(tmp_path):
    path = tmp_path / "experiment.yaml"
    further = "      num_layers: 4\n      num_experts: 64\n      mtp_num_layers: null\n"
    path.write_text(PRIMUS + further, encoding="utf-8")
    job, _ = FORMATS["primus"].read([path], Given(gpus=8))
    assert (job.model.layers, job.model.experts.count, job.model.hidden) == (4, 64, 7168)
    assert job.model.multi_token_layers == 0
    path.write_text(PRIMUS + "      multi_latent_attention: false\n", encoding="utf-8")
    with pytest.raises(InputError, match="another attention than the named model"):
        FORMATS["primus"].read([path], Given(gpus=8))


@pytest.mark.parametrize(("said", "layers"), [("", 0), ("--mtp_num_layers 1", 1)])
def test_megatron_swift_predicts_further_tokens_only_where_it_is_told(tmp_path, said, layers):
    """Source: ms-swift 4.6, ``mtp_num_layers`` of megatron_args.py, and ``lora_dropout``."""
    path = tmp_path / "train.sh"
    path.write_text(
        "NPROC_PER_NODE=8 megatron sft --model ZhipuAI/GLM-4.5-Air --tuner_type lora "
        f"--expert_model_parallel_size 8 --max_length 4096 {said}\n",
        encoding="utf-8",
    )
    job, _ = FORMATS["ms-swift"].read([path], Given())
    assert (job.model.multi_token_layers, job.plan.lora.dropout) == (layers, 0.05)


SWIFT = "megatron sft --load Qwen3-30B-A3B-Base-mcore --expert_model_parallel_size 4"


def test_a_copy_for_megatron_core_is_the_model_that_its_name_says(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(f"NPROC_PER_NODE=4 {SWIFT} --max_length 4096\n", encoding="utf-8")
    job, _ = FORMATS["ms-swift"].read([path], Given())
    assert (job.model.name, job.cluster.gpus) == ("qwen3-30b-a3b", 4)


@pytest.mark.parametrize("launch", ["", "torchrun --nproc_per_node 8 --nnodes $NNODES "])
def test_nodes_that_only_the_environment_knows_are_asked_for(tmp_path, launch):
    path = tmp_path / "train.sh"
    command = SWIFT if not launch else SWIFT.replace("megatron sft", "cli/_megatron/sft.py")
    text = f"NNODES=${{CLOUD_NODES}}\nNPROC_PER_NODE=8\n{launch}{command} --max_length 4096\n"
    (fault,) = faults_of("ms-swift", text, path)
    assert "--gpus N" in fault.hint


def test_llm_foundry_takes_no_more_at_a_time_than_a_rank_has(tmp_path):
    """Source: llm-foundry 0.22, ``calculate_batch_size_info`` of utils/config_utils.py."""
    path = tmp_path / "train.yaml"
    path.write_text(
        "model: {name: hf_causal_lm, pretrained_model_name_or_path: meta-llama/Llama-3.1-8B}\n"
        "max_seq_len: 2048\nglobal_train_batch_size: 32\ndevice_train_microbatch_size: 16\n"
        "precision: amp_bf16\noptimizer: {name: decoupled_adamw}\n"
        "fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE}\n",
        encoding="utf-8",
    )
    job, _ = FORMATS["llm-foundry"].read([path], Given(gpus=8))
    assert (job.batch.global_batch, job.batch.micro_batch) == (32, 4)


@pytest.mark.parametrize(("said", "batch"), [("", 64), ("gradient_accumulation_steps: 2\n", 32)])
def test_the_batch_of_a_rank_says_its_microbatches_where_nothing_else_does(tmp_path, said, batch):
    """Source: axolotl 0.19, ``normalize_config`` of utils/config."""
    path = tmp_path / "axolotl.yaml"
    path.write_text(f"{ADAPTERS}batch_size: 8\n{said}".replace("_size: 1", "_size: 2"))
    job, _ = FORMATS["axolotl"].read([path], Given(gpus=8))
    assert job.batch.global_batch == batch
