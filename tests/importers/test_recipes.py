"""Settings files of training frameworks, each read into the job that a person would write for it.

The files in ``recipes/`` hold settings that are usual for their framework, in our own words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.api import simulate
from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.formats import FORMATS

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """Files of a format, what is said beside them, and what their job must be.

    Attributes:
        form: The format.
        files: Their names.
        job: Fields of the job by dotted path.
        given: What the user says.
    """

    form: str
    files: tuple[str, ...]
    job: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)


JOBS = [
    Recipe("axolotl", ("axolotl_full.yaml",),
           {"model.name": "llama2-7b", "plan.zero": 2, "plan.optimizer": "adam-8bit",
            "plan.precision": "bf16", "plan.recompute": "full", "batch.global_batch": 16,
            "batch.seq_len": 4096, "plan.attention_kernel": "flash"}, {"gpus": 8}),
    Recipe("axolotl", ("axolotl_fsdp.yaml",),
           {"model.name": "llama3.1-8b", "plan.zero": 3, "plan.cp": 2, "plan.cp_method": "ring",
            "batch.global_batch": 8, "batch.micro_batch": 2}, {"gpus": 8}),
    Recipe("llamafactory", ("llamafactory_zero3.yaml",),
           {"model.name": "llama3-8b", "plan.zero": 3, "plan.recompute": "full",
            "batch.seq_len": 1024,
            "batch.global_batch": 16, "plan.clip_gradients": True,
            # 4096 x 4096 elements of 2 bytes, as the Trainer fills "auto"
            "plan.stack.bucket_bytes": 2 * 4096**2}, {"gpus": 8}),
    Recipe("ms-swift", ("swift_full.sh",),
           {"model.name": "qwen2.5-32b", "cluster.gpus": 8, "plan.zero": 3,
            "plan.precision": "bf16",
            "plan.recompute": "full", "batch.global_batch": 16, "batch.seq_len": 8192}),
    Recipe("ms-swift", ("swift_megatron.sh",),
           {"model.name": "qwen3-30b-a3b", "cluster.gpus": 8, "plan.ep": 8, "plan.zero": 1,
            "plan.recompute": "full", "batch.global_batch": 16, "plan.ep_dispatch": "all_to_all"}),
    Recipe("nanotron", ("nanotron_small.yaml",),
           {"cluster.gpus": 16, "plan.tp": 2, "plan.pp": 2, "dp": 4, "plan.zero": 1,
            "plan.sequence_parallel": True, "batch.global_batch": 128, "model.kv_heads": 4,
            "model.tied_embeddings": True}),
    Recipe("gpt-neox", ("neox_20b.yml",),
           {"plan.tp": 2, "plan.pp": 4, "dp": 12, "batch.global_batch": 1536,
            "plan.precision": "fp16",
            "plan.recompute": "full", "model.parallel_block": True, "model.vocab": 50432,
            "model.ffn_hidden": 24576, "plan.attention_kernel": "fused-softmax"}, {"gpus": 96}),
    Recipe("gpt-neox", ("neox_llama_7b.yml", "neox_run.yml"),
           {"model.ffn_hidden": 11008, "model.mlp_bias": False, "model.gated_mlp": True,
            "model.vocab": 32000, "plan.precision": "bf16", "plan.attention": "flash",
            "batch.global_batch": 16}, {"gpus": 8}),
    Recipe("llm-foundry", ("foundry_mpt_7b.yaml",),
           {"model.ffn_hidden": 16384, "model.positions": "alibi", "plan.zero": 3,
            "plan.stack.grad_reduce_precision": "bf16", "batch.micro_batch": 8,
            "plan.stack.loss_metrics": 2}, {"gpus": 64}),
    Recipe("llm-foundry", ("foundry_llama3.yaml",),
           {"model.name": "llama3-8b", "plan.clip_gradients": False, "batch.micro_batch": 2},
           {"gpus": 8, "micro_batch": 2}),
    Recipe("primus", ("primus_llama3.1_70b.yaml",),
           {"model.name": "llama3.1-70b", "plan.zero": 3, "plan.recompute_layers": 12,
            "batch.global_batch": 256, "plan.precision": "bf16"},
           {"gpus": 64, "profile": "mi300x", "definitions": {"PRIMUS_GBS": "256"}}),
    Recipe("primus", ("primus_titan_8b.yaml",),
           {"model.name": "llama3.1-8b", "plan.zero": 3, "plan.recompute": "selective",
            "batch.micro_batch": 4, "batch.seq_len": 8192},
           {"gpus": 8, "profile": "mi300x"}),
    Recipe("maxtext", ("maxtext_llama3_70b.yml",),
           {"model.name": "llama3-70b", "plan.zero": 3, "plan.recompute": "full",
            "batch.global_batch": 256, "batch.micro_batch": 4}, {"gpus": 64}),
    Recipe("maxtext", ("maxtext_launch.sh",),
           {"model.name": "llama2-7b", "cluster.gpus": 16, "plan.recompute": "selective",
            "plan.stack.named_outputs": (
                "query", "key", "value", "context", "output", "gate", "up"),
            "plan.zero_group": 8, "batch.global_batch": 32}),
    Recipe("maxtext", ("maxtext_custom.yml",),
           {"plan.recompute": "selective", "plan.stack.selective_policy": "named-outputs",
            "plan.stack.named_outputs": ("query", "key", "value"),
            "plan.offload.activations": "cpu", "plan.master_weights": False},
           {"gpus": 32, "profile": "tpu-v6e"}),
    Recipe("torchtune", ("torchtune_8b_full.yaml",),
           {"model.name": "llama3.1-8b", "plan.zero": 3, "plan.recompute": "full",
            "batch.global_batch": 64, "batch.seq_len": 4096, "plan.clip_gradients": False},
           {"gpus": 8}),
    Recipe("automodel", ("automodel_llama_70b_lora.yaml",),
           {"model.name": "llama3.3-70b", "dp": 4, "plan.zero": 3, "plan.tp": 2,
            "plan.sequence_parallel": True, "plan.overlap_tp": True, "plan.recompute": "full",
            "plan.lora.rank": 16, "plan.lora.targets": ("all",),
            "batch.micro_batch": 2, "batch.seq_len": 4096}, {"gpus": 8}),
    # 61 layers make 31 chunks of two, rounded down to 28: seven for each of four ranks.
    Recipe("automodel", ("automodel_deepseek_v3.yaml",),
           {"plan.ep": 64, "plan.pp": 4, "plan.vpp": 7, "plan.schedule": "interleaved-1f1b",
            "plan.ep_dispatch": "hierarchical", "plan.reshard_after_forward": False,
            "plan.clip_gradients": False, "batch.micro_batch": 1, "batch.global_batch": 512},
           {"gpus": 256}),
    Recipe("xtuner", ("xtuner_full.py",),
           {"model.name": "llama3-8b", "plan.cp": 2, "plan.cp_method": "all_to_all", "plan.zero": 0,
            "batch.global_batch": 128, "plan.precision": "bf16"}, {"gpus": 8}),
    Recipe("axolotl", ("axolotl_qlora.yaml",),
           {"plan.lora.rank": 32, "plan.lora.base_precision": "nf4", "plan.lora.dropout": 0.05,
            "plan.lora.targets": ("all",), "plan.optimizer": "adam-8bit-paged",
            "plan.cross_entropy": "linear-fused"}, {"gpus": 2}),
    Recipe("llamafactory", ("llamafactory_lora.yaml",),
           {"plan.lora.rank": 8, "plan.lora.targets": ("query", "value"), "plan.lora.kind": "dora",
            "plan.lora.base_precision": None, "batch.global_batch": 64}, {"gpus": 8}),
    Recipe("ms-swift", ("swift_lora.sh",),
           {"cluster.gpus": 1, "plan.lora.rank": 8, "plan.zero": 0, "batch.global_batch": 16}),
    Recipe("torchtune", ("torchtune_70b_lora.yaml",),
           {"model.name": "llama3.1-70b", "plan.lora.rank": 16, "plan.loss_kernel": "chunked",
            "plan.lora.targets": ("query", "value", "output", "gate", "down", "up"),
            "plan.stack.sharding_units": "ends"},
           {"gpus": 8, "seq_len": 2048}),
    Recipe("xtuner", ("xtuner_qlora.py",),
           {"plan.lora.rank": 64, "plan.lora.base_precision": "nf4", "plan.lora.dropout": 0.1,
            "plan.precision": "fp16"}, {"gpus": 1}),
    # 70 layers and both embeddings over 12 stages: six each, five beside an embedding.
    Recipe("megatron", ("megatron_bloom_176b.sh",),
           {"cluster.gpus": 384, "dp": 8, "plan.pp": 12, "plan.account_for_embedding": True,
            "plan.account_for_loss": True, "plan.recompute": "full", "model.positions": "alibi",
            "model.embedding_norm": True, "model.vocab": 250880, "plan.precision": "bf16",
            "plan.zero": 1}),
    Recipe("megatron", ("megatron_bert.sh",),
           {"cluster.gpus": 8, "model.causal": False, "model.vocab": 30522,
            "model.extra_parameters": 2 * 1024 + 1024**2 + 3 * 1024 + 1024**2 + 3 * 1024 + 2}),
    Recipe("megatron", ("megatron_functional_test.yaml",),
           {"plan.tp": 2, "plan.pp": 2, "plan.sequence_parallel": False, "batch.seq_len": 1024},
           {"gpus": 8}),
    Recipe("axolotl", ("axolotl_mixtral_qlora.yaml",),
           {"model.name": "mixtral-8x7b", "plan.zero": 3, "plan.lora.base_precision": "nf4",
            "plan.offload.parameters": "cpu"}, {"gpus": 4}),
    Recipe("axolotl", ("axolotl_lora_1b.yaml",),
           {"model.name": "llama3.2-1b", "plan.lora.rank": 16, "plan.lora.base_precision": None,
            "plan.stack.attention": "flash"}, {"gpus": 1}),
    Recipe("axolotl", ("axolotl_liger_fsdp.yaml",),
           {"plan.cross_entropy": "linear-fused", "plan.zero": 3, "plan.attention_kernel": "flash"},
           {"gpus": 8}),
    Recipe("axolotl", ("axolotl_pythia_8bit.yaml",),
           {"model.name": "pythia-1.4b", "plan.lora.targets": ("query", "key", "value"),
            "plan.lora.base_precision": "int8"}, {"gpus": 1}),
    Recipe("llamafactory", ("llamafactory_lora_zero3.yaml",),
           {"plan.zero": 3, "plan.lora.rank": 8, "plan.lora.targets": ("all",)}, {"gpus": 8}),
    Recipe("llamafactory", ("llamafactory_qlora.yaml",),
           {"plan.lora.base_precision": "nf4", "batch.global_batch": 8}, {"gpus": 1}),
    Recipe("llamafactory", ("llamafactory_v1.yaml",),
           {"plan.zero": 3, "plan.cp": 2, "plan.cp_method": "all_to_all", "plan.lora.rank": 16,
            "plan.lora.targets": ("query", "value"), "plan.lora.base_precision": "nf4",
            "plan.lora.dropout": 0.05, "plan.precision": "bf16", "plan.recompute": "full",
            "batch.global_batch": 64, "batch.micro_batch": 2, "batch.seq_len": 4096},
           {"gpus": 8}),
    Recipe("gpt-neox", ("neox_1.3b.yml",),
           {"model.ffn_hidden": 8 * 2048, "plan.zero": 1, "model.vocab": 50304}, {"gpus": 8}),
    Recipe("gpt-neox", ("neox_bnb_0.1b.yml",), {"plan.optimizer": "adam-8bit"}, {"gpus": 1}),
    Recipe("nanotron", ("nanotron_qwen.yaml",),
           {"cluster.gpus": 8, "dp": 4, "batch.global_batch": 96, "model.qkv_bias": False}),
    Recipe("primus", ("primus_mixtral_8x7b.yaml",),
           {"model.name": "mixtral-8x7b", "plan.ep": 4, "plan.tp": 2, "plan.zero": 1,
            "plan.sequence_parallel": True},
           {"gpus": 64, "profile": "mi300x", "changes": {"plan.sequence_parallel": True}}),
    Recipe("primus", ("primus_titan_70b_fp8.yaml",),
           {"model.name": "llama3.1-70b", "plan.precision": "fp8", "plan.recompute": "full"},
           {"gpus": 8, "profile": "mi300x"}),
    Recipe("llm-foundry", ("foundry_lora.yaml",),
           {"plan.lora.rank": 64, "plan.optimizer": "lion",
            "plan.lora.targets": ("query", "key", "value")},
           {"gpus": 16, "model": "llama3-70b"}),
    # What the file leaves to the Trainer stands in its arguments.
    Recipe("deepspeed", ("deepspeed_auto.json", "training_arguments.json"),
           {"plan.zero": 3, "plan.precision": "bf16", "plan.recompute": "full",
            "batch.micro_batch": 2, "batch.global_batch": 64, "plan.clip_gradients": True,
            "plan.stack.bucket_bytes": 2 * 4096**2},
           {"gpus": 8, "model": "llama3.1-8b", "seq_len": 2048}),
    Recipe("accelerate", ("accelerate_fsdp2_lora.yaml",),
           {"cluster.gpus": 16, "plan.zero": 3, "plan.precision": "bf16"},
           {"model": "llama3.1-8b", "seq_len": 2048, "global_batch": 64}),
]  # fmt: skip


def read(recipe: Recipe) -> Any:
    paths = [RECIPES / name for name in recipe.files]
    return FORMATS[recipe.form].read(paths, Given(**recipe.given))


def field_of(job: Any, path: str) -> Any:
    for name in path.split("."):
        job = getattr(job, name)
    return job


@pytest.mark.parametrize("recipe", JOBS, ids=lambda recipe: recipe.files[0])
def test_a_recipe_is_the_job_that_a_person_would_write(recipe):
    job, report = read(recipe)
    assert {path: field_of(job, path) for path in recipe.job} == recipe.job
    assert not report.unsupported
    assert report.understood
    small = job.replace(**{"batch.global": job.dp * job.plan.pp * job.batch.micro_batch})
    assert simulate(small, engine="replay").step_time_s > 0


@pytest.mark.parametrize(
    ("file", "packs"),
    [
        ("axolotl_full.yaml", True),
        ("axolotl_mixtral_qlora.yaml", False),
        ("swift_full.sh", True),
    ],
)
def test_documents_that_are_packed_and_kept_apart_are_said_to_see_the_whole_sequence(file, packs):
    recipe = next(each for each in JOBS if each.files == (file,))
    _, report = read(recipe)
    assert any("document_len" in assumed for assumed in report.assumed) == packs


def test_every_recipe_is_read():
    named = {name for recipe in JOBS for name in recipe.files} | {
        "llamafactory_dpo.yaml",
        "swift_qlora_fsdp.sh",
    }
    assert {path.name for path in RECIPES.iterdir() if path.is_file()} == named


@pytest.mark.parametrize(
    ("form", "line", "reference"),
    [
        ("llamafactory", "", "same"),
        ("llamafactory", "pref_loss: orpo", None),
        ("llamafactory", "finetuning_type: lora", "adapters-off"),
        ("axolotl", "rl: ipo", "same"),
        ("axolotl", "rl: dpo\nadapter: lora\nlora_r: 8\nlora_target_linear: true", "adapters-off"),
    ],
)
def test_preferences_are_pairs_and_compared_with_a_reference_where_the_loss_does(
    tmp_path, form, line, reference
):
    """One example per rank is two sequences."""
    text = (RECIPES / "llamafactory_dpo.yaml").read_text(encoding="utf-8")
    if form == "axolotl":
        text = "base_model: Qwen/Qwen2.5-7B-Instruct\nsequence_len: 2048\nmicro_batch_size: 1\n"
    kept = [old for old in text.splitlines() if old.partition(":")[0] != line.partition(":")[0]]
    path = tmp_path / "dpo.yaml"
    path.write_text("\n".join([*kept, line]), encoding="utf-8")
    job, _ = FORMATS[form].read([path], Given(gpus=8))
    assert (job.batch.micro_batch, job.batch.global_batch) == (2, 16)
    assert job.reference == reference


@pytest.mark.parametrize(
    ("line", "precision"),
    [("", "bf16"), ("bf16: auto", "bf16"), ("fp16: true", "fp16"), ("bf16: false", "fp32"),
     ("bf16: false\ntf32: true", "tf32")],
)  # fmt: skip
def test_axolotl_computes_in_bf16_where_its_file_says_nothing_else(tmp_path, line, precision):
    path = tmp_path / "axolotl.yaml"
    path.write_text(f"base_model: Qwen/Qwen2.5-7B-Instruct\nmicro_batch_size: 1\n{line}\n")
    job, _ = FORMATS["axolotl"].read([path], Given(gpus=8))
    assert job.plan.precision == precision


@pytest.mark.parametrize(("shards", "is_said"), [(4, False), (2, True)])
def test_shards_that_the_gpus_do_not_leave_are_said_to_be_others(tmp_path, shards, is_said):
    text = (RECIPES / "axolotl_fsdp.yaml").read_text(encoding="utf-8")
    path = tmp_path / "axolotl.yaml"
    path.write_text(f"{text}\ndp_shard_size: {shards}\n", encoding="utf-8")
    _, report = FORMATS["axolotl"].read([path], Given(gpus=8))  # two of them share a sequence
    assert any("dp_shard_size" in each for each in report.assumed) is is_said


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("use_galore: true\ngalore_rank: 64", 64), ("use_galore: true", 16),
        ("optim: galore_adamw\noptim_args: rank=32, scale=2.0", 32), ("optim: galore_adamw", 128),
    ],
)  # fmt: skip
def test_the_rank_of_galore_is_read(tmp_path, line, rank):
    text = (RECIPES / "llamafactory_dpo.yaml").read_text(encoding="utf-8")
    path = tmp_path / "galore.yaml"
    path.write_text(text.replace("stage: dpo", "stage: sft") + line, encoding="utf-8")
    job, _ = FORMATS["llamafactory"].read([path], Given(gpus=1))
    assert (job.plan.optimizer, job.plan.optimizer_rank) == ("galore", rank)


@pytest.mark.parametrize(
    ("form", "lines", "stops"),
    [
        ("axolotl", "", False),
        ("axolotl", "gradient_checkpointing_kwargs: {use_reentrant: false}", True),
        ("axolotl", "deepspeed: deepspeed_configs/zero2.json", False),
        ("axolotl", "fsdp_version: 2\nfsdp_config: {activation_checkpointing: true}", True),
        ("llamafactory", "", False),
        ("llamafactory", "use_reentrant_gc: false", True),
    ],
)
def test_layers_are_checkpointed_as_a_trainer_around_transformers_says(
    tmp_path, form, lines, stops
):
    """Both take reentrant autograd where nothing is said; checkpoints of FSDP's plugin do not."""
    model = {"axolotl": "base_model", "llamafactory": "model_name_or_path"}[form]
    text = f"{model}: Qwen/Qwen2.5-7B-Instruct\ngradient_checkpointing: true\n{lines}\n"
    path = tmp_path / "settings.yaml"
    path.write_text(text + ("do_train: true\n" if form == "llamafactory" else ""))
    job, _ = FORMATS[form].read([path], Given(gpus=8, micro_batch=1, seq_len=1024))
    assert job.plan.stack.recompute_stops_early is stops


@pytest.mark.parametrize(
    ("line", "copies"),
    [("", 0), ("optimizer: adamw_torch_fused", 0), ("optimizer: adamw_torch", 1)],
)
def test_an_adamw_of_pytorch_that_a_trainer_names_is_fused_or_not(tmp_path, line, copies):
    path = tmp_path / "axolotl.yaml"
    path.write_text(f"base_model: Qwen/Qwen2.5-7B-Instruct\nmicro_batch_size: 1\n{line}\n")
    job, _ = FORMATS["axolotl"].read([path], Given(gpus=8))
    assert job.choices.update_copies == copies


def test_other_ways_of_training_are_refused_until_they_are_let_go(tmp_path):
    text = (RECIPES / "llamafactory_dpo.yaml").read_text(encoding="utf-8")
    path = tmp_path / "ppo.yaml"
    path.write_text(text.replace("stage: dpo", "stage: ppo"), encoding="utf-8")
    with pytest.raises(InputError, match=r"stage = 'ppo'.*--ignore stage"):
        FORMATS["llamafactory"].read([path], Given(gpus=8))
    _, report = FORMATS["llamafactory"].read([path], Given(gpus=8, ignore=("stage",)))
    assert report.unsupported


def test_what_deepspeed_leaves_to_the_trainer_is_asked_for():
    given = {"gpus": 8, "model": "llama3.1-8b", "seq_len": 2048,
             "changes": {"plan.precision": "bf16"}}  # fmt: skip
    with pytest.raises(InputError, match="is set by the trainer; give --micro-batch N"):
        read(Recipe("deepspeed", ("deepspeed_auto.json",), {}, given))
    with pytest.raises(InputError, match="--global-batch N"):
        read(Recipe("deepspeed", ("deepspeed_auto.json",), {}, {**given, "micro_batch": 2}))
    full = {**given, "micro_batch": 2, "global_batch": 64}
    job, _ = read(Recipe("deepspeed", ("deepspeed_auto.json",), {}, full))
    assert (job.batch.micro_batch, job.batch.global_batch) == (2, 64)


def test_how_ranks_shard_is_asked_for_where_a_file_that_is_not_read_says_it():
    given = {"definitions": {"gradient_accumulation_steps": "8"}}
    with pytest.raises(InputError, match=r"config_file.*--set plan\.zero"):
        read(Recipe("ms-swift", ("swift_qlora_fsdp.sh",), {}, given))


def test_the_gpus_are_asked_for_and_the_batch_follows_from_them():
    with pytest.raises(InputError) as caught:
        read(Recipe("axolotl", ("axolotl_full.yaml",), {}))
    assert [fault.hint for fault in caught.value.faults] == ["give --gpus N"]


@pytest.mark.parametrize(
    ("section", "settings", "field", "value"),
    [
        ("model", {"torch_dtype": "float32"}, "plan.master_weights", True),
        ("model.backend", {"experts": "torch"}, "plan.stack.grouped_experts", False),
        ("model.backend", {"dispatcher": "hybridep"}, "plan.stack.expert_exchange", "hybridep"),
        ("distributed.mp_policy", {"reduce_dtype": "torch.float32"},
         "plan.grad_reduce_precision", "fp32"),
        ("fp8", {"enabled": True, "recipe_name": "rowwise"}, "plan.stack.float8_scaling", "rows"),
        ("recipe", {"_target_": "x.TrainFinetuneRecipe"}, "plan.clip_gradients", True),
        ("clip_grad_norm", {"max_norm": 0}, "plan.clip_gradients", False),
        ("autopipeline", {"round_virtual_stages_to_pp_multiple": "up"}, "plan.vpp", 8),
        ("autopipeline", {"layers_per_stage": None}, "plan.vpp", 2),
        ("packed_sequence", {"packed_sequence_size": 8192}, "batch.seq_len", 8192),
        ("packed_sequence", {"packed_sequence_size": 0}, "batch.seq_len", 4096),
    ],
)  # fmt: skip
def test_a_setting_of_automodel_has_its_effect(tmp_path, section, settings, field, value):
    document = yaml.safe_load((RECIPES / "automodel_deepseek_v3.yaml").read_text(encoding="utf-8"))
    block = document
    for name in section.split("."):
        block = block.setdefault(name, {})
    block |= settings
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    lengths = {} if field != "batch.seq_len" or value == 8192 else {"seq_len": value}
    job, _ = FORMATS["automodel"].read([path], Given(gpus=256, **lengths))
    assert field_of(job, field) == value


def test_chunks_of_automodel_that_no_rounding_deals_to_all_ranks_are_refused(tmp_path):
    text = (RECIPES / "automodel_deepseek_v3.yaml").read_text(encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    path.write_text(text.replace("  round_virtual_stages_to_pp_multiple: down\n", ""))
    with pytest.raises(InputError, match="makes 31 stages, which cannot be divided evenly over 4"):
        FORMATS["automodel"].read([path], Given(gpus=256))


def test_copies_that_a_recipe_of_automodel_states_say_how_many_gpus_it_wants(tmp_path):
    text = (RECIPES / "automodel_llama_70b_lora.yaml").read_text(encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    path.write_text(text.replace("  tp_size: 2\n", "  tp_size: 2\n  dp_size: 4\n"))
    job, _ = FORMATS["automodel"].read([path], Given())
    assert job.cluster.gpus == 8
