"""Which stack stands for a framework, by the words and versions of other tables."""

from __future__ import annotations

import pytest

from simulator.described.plan.shipped_stacks import STACKS
from simulator.validate.published.framework_stacks import (
    context_parallelism_of,
    drops_out,
    eager_model_facts,
    prints_decimal_gb,
    recipe_settings,
    stack_facts,
    stack_of,
    sums_unsharded,
    unsaid_settings,
    untuned_fabric,
    wraps_tensors,
    zero_of,
)
from simulator.validate.published.run_releases import (
    releases_of_their_time,
    transformers_of_their_time,
)


@pytest.mark.parametrize(
    ("framework", "version", "stack"),
    [
        ("Megatron-LM", "v1.1.5", "megatron-lm-2020"),
        ("megatron", "Megatron-LM 2020", "megatron-lm-2020"),
        ("megatron", "arXiv 2021", "megatron-lm-2021"),
        ("megatron", "v2.1", "megatron-lm-2021"),
        ("Megatron_LM", "core_r0.12.0rc1", "megatron-core"),
        ("megatron-core", "main", "megatron-core"),
        ("NeMo", "24.12", "megatron-core"),
        ("megatron", "NeMo 24.05", "megatron-core"),
        ("NeMo", "2.0.0rc1", "megatron-core"),
        ("Megatron-Bridge", "0.2", "megatron-core"),
        ("megatron", "Megatron-LM fork (zero-bubble)", "zero-bubble"),
        ("Megatron-DeepSpeed", "", "megatron-deepspeed"),
        ("GPT-NeoX", "2.0", "megatron-deepspeed"),
        ("Colossal-AI", "0.4", "megatron-deepspeed"),
        ("colossalai", "ColossalAI Gemini, August 2023", "deepspeed"),
        ("DeepSpeed", "0.3.16", "deepspeed-2021"),
        ("DeepSpeed", "0.15.1", "deepspeed"),
        ("deepspeed", "", "deepspeed"),
        ("deepspeed", "DeepSpeed 2021", "deepspeed-2021"),
        ("LLaMA-Factory + DeepSpeed", "", "deepspeed"),
        ("Unsloth", "in LLaMA-Factory", "unsloth"),
        ("FSDP", "PyTorch 2.1", "torch-fsdp"),
        ("FSDP2", "PyTorch 2.6", "torch"),
        ("torch-fsdp", "torchtune (FSDP2)", "torchtune"),
        ("torch-fsdp", "torchtitan 0.1", "torchtitan"),
        ("torch-fsdp", "llm-foundry", "torch-fsdp"),
        ("torchtitan", "main", "torchtitan"),
        ("llm-foundry", "v0.8", "torch-fsdp"),
        ("HF accelerate", "0.30", "trl"),
        ("PyTorch Lightning", "2.2", "torch"),
        ("MaxText", "", "jax"),
        ("JAX", "0.4.30", "jax"),
        ("HF transformers", "Flax", "jax"),
        ("prime-rl", "2026", "torchtitan"),
        ("OLMo-core", "2.0", "torch-fsdp"),
        ("Lit-GPT", "2023", "litgpt"),
        ("ms-swift", "3.8, HF Trainer", "ms-swift"),
        ("Oumi", "0.1", "trl"),
        ("nanochat", "d20", "torch"),
        ("Transformer Engine", "2.13", "torch"),
        ("InternEvo", "", "internevo"),
        ("PaddlePaddle", "2.6", "paddle"),
        ("nanotron", "bench branch", "nanotron"),
        ("llm.c", "llm.c CUDA", "llm-c"),
        ("somebody's own", "", "megatron-core"),
    ],
)
def test_every_framework_has_a_stack(framework, version, stack):
    assert stack_of(framework, version) == stack


def test_every_stack_stands_for_itself():
    assert [stack_of(name, "") for name in STACKS] == list(STACKS)


def test_megatron_of_2022_adds_weight_gradients_up_in_the_product():
    for version in ("Megatron-LM 2022", "v3.0", "23.05"):
        facts = stack_facts("megatron", version)
        assert facts == {"base": "megatron-lm-2021", "fused_accumulation": True}


def test_transformers_copies_logits_to_shift_them_before_4_49():
    for version, loss in (("4.48.3", "eager-shifted"), ("4.49", "eager"), ("5.0", "eager")):
        facts = eager_model_facts("DeepSpeed + HF transformers", f"transformers {version}")
        assert facts["cross_entropy"] == loss
    assert eager_model_facts("HF Trainer FSDP", "torch 2.4")["cross_entropy"] == "eager-shifted"


@pytest.mark.parametrize(
    ("said", "release"),
    [
        ("transformers 4.31, pytorch 2.6", "4.31"),
        ("transformers<5.0, torch 2.9", "4.54"),
        ("transformers 4.4x, pytorch 2.6", "4.46"),
        ("accelerate, march 2025", "4.49"),
        ("axolotl, end of 2024", "4.46"),
        ("llama-factory of 2024, torch 2.9", "4.36"),
        ("trl, nov 2023", "4.32"),
        ("pytorch 2.6", "4.46"),
        ("pytorch 2.7.1", "4.49"),
        ("pytorch 2.10", "5.0"),
        ("pytorch 2.13", "5.2"),
        ("deepspeed 0.16", "4.46"),
        ("hf trainer", "4.54"),
    ],
)
def test_transformers_is_the_newest_of_a_runs_month_where_it_names_none(said, release):
    """Without a month, a run is as old as its PyTorch, and that is one before October 2025."""
    assert transformers_of_their_time(said) == release


def test_models_of_transformers_4_53_repeat_grouped_heads_whatever_shards_them():
    for release, repeats in (("4.53", True), ("4.54", "unfused")):
        facts = eager_model_facts("DeepSpeed + HF transformers", f"transformers {release}")
        assert facts["repeats_kv_heads"] == repeats
    of_old_torch = eager_model_facts("HF transformers FSDP", "transformers 4.54, torch 2.4")
    assert of_old_torch["repeats_kv_heads"] is True


def test_trainers_checkpoint_without_reentrant_autograd_since_transformers_5():
    for release, stops in (("4.57", False), ("5.0", True)):
        facts = eager_model_facts("DeepSpeed + hf trainer", f"transformers {release}")
        assert facts["recompute_stops_early"] is stops
        own_loop = eager_model_facts("DeepSpeed + HF transformers", f"transformers {release}")
        assert "recompute_stops_early" not in own_loop


def test_nemo_before_flash_attention_ran_a_fused_softmax():
    assert stack_facts("NeMo", "22.11")["attention"] == "fused-softmax"
    assert "attention" not in stack_facts("NeMo", "23.11")


def test_a_compiler_has_the_loss_of_models_that_compute_it_in_forward():
    said = "PyTorch 2.5, torch.compile"
    assert stack_facts("torch ddp nanogpt-speedrun", said)["cross_entropy"] == "whole-graph"
    assert stack_facts("torch nanochat", said)["cross_entropy"] == "fused"
    assert stack_facts("torch ddp", said).get("cross_entropy") is None


def test_a_compiler_before_pytorch_2_5_scatters_targets_into_fp32_zeros():
    """32 sequences of gptscratch ran out of memory at 6.14 GiB: 32 x 1024 x 50304 x 4 bytes."""
    for version, loss in (("2.4.1", "whole-graph-scattered"), ("2.10", "whole-graph")):
        found = stack_facts("torch nanogpt", f"PyTorch {version}, torch.compile")
        assert found["cross_entropy"] == loss


def test_a_compiled_model_has_fused_kernels_and_one_that_is_not_has_none_of_its_own():
    compiled = stack_facts("FSDP2", "PyTorch 2.6", "torch.compile; sac")
    assert compiled["fused_rmsnorm"] is compiled["fused_elementwise"] is True
    assert compiled["float8_scaling"] == "tensor"
    assert stack_facts("FSDP2", "PyTorch 2.6", "no torch.compile") == {"base": "torch"}


@pytest.mark.parametrize(
    ("framework", "version", "records"),
    [
        ("megatron", "Megatron-Core v0.6.0, Transformer Engine", True),
        ("megatron", "Megatron-Core v0.12", False),
        ("megatron", "NGC PyTorch 25.06 container", False),
        ("megatron", "NeMo 24.07", False),
        ("megatron", "Megatron-Bridge 25.02", False),
    ],
)
def test_megatron_records_streams_before_may_2025_unless_recipes_of_nvidia_say_no(
    framework, version, records
):
    """NVIDIA/Megatron-LM#1586; PERF_ENV_VARS of NeMo's scripts."""
    assert "records_streams" in stack_facts("megatron", "Megatron-LM 2023")
    assert stack_facts(framework, version).get("records_sums", False) is records


def test_what_is_not_pytorch_records_no_streams_and_places_its_tensors_before_it_runs():
    assert stack_facts("megatron", "Megatron-LM 2021").get("records_streams") is None
    for framework in ("OneFlow", "MindSpore"):
        facts = stack_facts(framework, "2021")
        assert facts["base"] == "megatron-lm-2021"
        assert (facts["records_streams"], facts["records_sums"]) == (False, False)
        assert facts["plans_memory"]


def test_xla_compiles_a_step_of_torch_and_places_its_tensors():
    facts = stack_facts("torch_xla", "PyTorch/XLA 2.6, torchprime")
    assert facts["base"].startswith("torch")
    assert facts["plans_memory"]
    assert facts["fused_elementwise"]
    assert "plans_memory" not in stack_facts("torch", "PyTorch 2.6")


def test_a_host_issues_what_nothing_compiled_as_plain_torch_does():
    compiled, eager = (
        stack_facts("torchtitan", f"torchtitan 2026{how}") for how in ("", ", eager")
    )
    assert "host_work_per_launch" not in compiled
    assert eager["host_work_per_launch"] == STACKS["torch"].host_work_per_launch


@pytest.mark.parametrize(
    ("base", "said", "wraps"),
    [("torch", "fsdp2, pytorch 2.9", True), ("torch", "fsdp2, torch.compile", False),
     ("torchtitan", "torchtitan", False), ("torchtitan", "torchtitan, no torch.compile", True),
     ("megatron-core", "megatron-lm, eager", False)],
)  # fmt: skip
def test_tensor_parallelism_of_dtensors_runs_in_python_unless_it_is_compiled(base, said, wraps):
    assert wraps_tensors(base, said) is wraps


@pytest.mark.parametrize(
    ("framework", "version", "sums"),
    [
        ("Lit-GPT", "fabric", True),
        ("fsdp", "HF Trainer with FSDP2", True),
        ("Accelerate", "1.0 with FSDP", True),
        ("accelerate", "with DeepSpeed", False),
        ("fsdp", "torch 2.5", False),
    ],
)
def test_some_loops_leave_gradients_whole_between_microbatches(framework, version, sums):
    assert sums_unsharded(framework, version) is sums


def test_kernels_of_llm_foundry_are_not_those_of_every_model_under_fsdp():
    composer = stack_facts("torch-fsdp", "Composer/llm-foundry PyTorch FSDP")
    assert composer == {"base": "torch-fsdp", "loss_metrics": 2}
    assert "loss_metrics" not in stack_facts("FSDP", "PyTorch 2.3")
    assert stack_facts("FSDP", "PyTorch 2.3")["flash_kernel"] == "sdpa-2.2"
    assert stack_facts("FSDP", "PyTorch 2.0")["flash_kernel"] == "sdpa-2.0"
    assert stack_facts("FSDP", "PyTorch 2.9")["flash_kernel"] == "sdpa-2.9"
    assert stack_facts("FSDP", "PyTorch 2.3")["cross_entropy"] == "eager"


OF_MARCH_2024 = {"torch": "2.3", "deepspeed": "0.14", "transformers": "4.36"}


@pytest.mark.parametrize(
    ("base", "version", "releases"),
    [
        ("torch", "PyTorch 2.9.1, cuDNN 9.10", {"torch": "2.9"}),
        ("trl", "transformers 4.48, torch v2.4",
         {"torch": "2.4", "transformers": "4.48", "trl": "0.25"}),
        ("llama-factory", "April 2025", {"torch": "2.7", "transformers": "4.49"}),
        ("torchtitan", "torchtitan 0.2.1, torch 2.10", {"torch": "2.10", "torchtitan": "0.2"}),
        ("torchtitan", "torchtitan (FSDP2)", {"torch": "2.8", "torchtitan": "0.1"}),
        ("torchtitan", "torchtitan main of May 2026", {"torch": "2.12", "torchtitan": "0.2"}),
        ("torch", "own code, December 2025", {"torch": "2.9"}),
        ("torchtitan", "torchtitan of March 2025", {"torch": "2.6", "torchtitan": "0.0"}),
        ("torchtitan", "torchtitan of April 2025", {"torch": "2.7", "torchtitan": "0.1"}),
        ("torchtune", "recipes of 2024", {"torch": "2.3"}),
        ("deepspeed", "DeepSpeed 0.14.2, torch 2.3", OF_MARCH_2024),
        ("megatron-core", "NeMo 25.07", {}),
        ("megatron-core", "NeMo/Megatron-Core 24.04", {}),
        ("megatron-core", "Megatron-Core v0.6", {"megatron-core": "0.6"}),
        ("megatron-core", "Megatron-LM core_r0.10", {"megatron-core": "0.10"}),
        ("megatron-core", "Megatron-LM 0.14, TE 2.11",
         {"megatron-core": "0.14", "transformer_engine": "2.11"}),
        ("megatron-core", "Transformer Engine, container 25.06", {}),
    ],
)  # fmt: skip
def test_a_run_is_of_the_releases_that_it_names_or_of_those_of_its_month(base, version, releases):
    assert releases_of_their_time(base, "", version) == releases


@pytest.mark.parametrize(
    ("base", "framework", "zero"),
    [("torch-fsdp", "FSDP", 3), ("torch", "DDP", 0), ("torch", "FSDP2", 3), ("jax", "MaxText", 3),
     ("megatron-lm-2021", "Megatron-LM", 0), ("megatron-core", "NeMo", 1)],
)  # fmt: skip
def test_what_a_framework_shards_by_default(base, framework, zero):
    assert zero_of(base, framework, "") == zero


def test_deepspeed_trades_heads_and_megatron_sends_keys_round_a_ring():
    assert context_parallelism_of("deepspeed") == "all_to_all"
    assert context_parallelism_of("megatron-core") == "ring"


@pytest.mark.parametrize(
    ("framework", "version", "keeps"),
    [
        ("megatron", "Megatron-LM 0.14, TE 2.11", True),
        ("megatron", "Megatron-LM, TE 2.2", False),
        ("megatron", "NeMo 25.07", True),
        ("megatron", "NeMo 25.02 (Megatron-Core)", False),
        ("megatron", "Megatron-LM fork, mid 2024", False),
        ("megatron", "Megatron-Bridge", True),
    ],
)
def test_placeholder_gradients_came_with_transformer_engine_2_3(framework, version, keeps):
    facts = stack_facts(framework, version)
    assert facts.get("keeps_placeholder_gradients", True) is keeps


@pytest.mark.parametrize(
    ("framework", "version", "loss"),
    [
        ("megatron", "Megatron-LM core_r0.12", "in-place"),
        ("megatron", "Megatron-Core/NeMo 25.09", None),
        ("Megatron-Bridge", "0.2", None),
    ],
)
def test_megatron_lm_fuses_its_loss_only_where_it_is_told_to(framework, version, loss):
    assert stack_facts(framework, version).get("cross_entropy") == loss


_RECIPES_EXPERTS = {"stack": {"fused_permutation": True, "grouped_experts": True}}


@pytest.mark.parametrize(
    ("version", "plan", "settings"),
    [
        ("NeMo 25.02", {"tp": 4}, {"overlap_tp": True, "grad_reduce_precision": "bf16"}),
        ("Megatron-Bridge", {"tp": 1}, {"grad_reduce_precision": "bf16", **_RECIPES_EXPERTS}),
        (
            "NeMo 25.07",
            {"tp": 2, "sequence_parallel": False},
            {"grad_reduce_precision": "bf16", **_RECIPES_EXPERTS},
        ),
        (
            "NeMo 25.11",
            {"tp": 2, "precision": "nvfp4"},
            {"grad_reduce_precision": "bf16", **_RECIPES_EXPERTS},
        ),
        ("NeMo 22.11", {"tp": 4}, {}),
        ("Megatron-LM 0.14", {"tp": 4}, {}),
        ("Megatron-Core, NeMo container 25.04", {"tp": 4}, {}),
    ],
)
def test_recipes_of_nvidia_overlap_exchanges_and_reduce_in_16_bits(version, plan, settings):
    assert recipe_settings("megatron", version, plan) == settings


@pytest.mark.parametrize(
    ("kind", "framework", "version", "latency"),
    [
        ("efa", "nanotron", "nanotron bench branch", "300 us"),
        ("efa", "torch-fsdp", "PyTorch 2.1.2", "300 us"),
        ("efa", "torch-fsdp", "PyTorch 2.4", None),
        ("efa", "nanotron", "nanotron 2026", None),
        ("ib", "nanotron", "nanotron bench branch", None),
    ],
)
def test_nccl_2_18_takes_longer_hops_on_efa(kind, framework, version, latency):
    """collectives_opened.csv, aws-p5-ar-old: all_reduces of NCCL 2.18.5 on p5.48xlarge."""
    assert untuned_fabric(kind, framework, version).get("bulk_latency") == latency


def test_recipes_of_megatron_bridge_keep_moments_of_deepseek_and_moonlight_in_16_bits():
    of_model = {
        model: recipe_settings("megatron", "Megatron-Bridge", {}, model).get("moment_precision")
        for model in ("deepseek-v3", "moonlight-16b-a3b", "qwen3-30b-a3b", "llama3-70b")
    }
    assert of_model == {
        "deepseek-v3": "bf16", "moonlight-16b-a3b": "bf16", "qwen3-30b-a3b": None,
        "llama3-70b": None,
    }  # fmt: skip
    assert recipe_settings("megatron", "Megatron-LM 0.14", {}, "deepseek-v3") == {}


def test_other_names_with_nemo_or_bridge_in_them_are_not_nvidias_recipes():
    """BioNeMo trains with PyTorch's FSDP2, and mcore_bridge is ms-swift's own."""
    assert stack_of("torch fsdp2", "BioNeMo recipes of 2026") == "torch"
    assert recipe_settings("megatron", "ms-swift 4.1, mcore_bridge 1.1", {"tp": 2}) == {}


def test_trl_checkpoints_layers_unless_it_is_told_not_to():
    """twosparks-001 and -002: memory +19 and +25 % without this, +4 with it."""
    assert unsaid_settings("trl", "TRL of September 2026, FSDP2") == {"recompute": "full"}
    assert unsaid_settings("trl", "TRL 1.2") == {"recompute": "full"}
    assert unsaid_settings("trl", "TRL 0.9") == {}
    assert unsaid_settings("hf trainer", "transformers of 2026") == {}


def test_a_compiler_of_a_model_of_transformers_has_its_loss_too():
    """Memory of sftthree-011: +40 % without this, +16 with it; steps of dewboard-001: +12, +0.5."""
    compiled = stack_facts("hf accelerate fsdp2", "transformers 5.5, torch.compile")
    assert compiled["cross_entropy"] == "whole-graph"
    assert "cross_entropy" not in stack_facts("torch", "own code, torch.compile")


def test_torchtitan_without_a_compiler_runs_pytorchs_operators():
    """titanl8h200-001 and titanq32-*: memory -23 to -49 % without this, -1 to -8 % with it."""
    eager = stack_facts("torchtitan", "torchtitan main, no torch.compile")
    assert not any(eager[kernel] for kernel in ("fused_elementwise", "fused_rotary"))
    assert eager["cross_entropy"] == "eager"
    assert "cross_entropy" not in stack_facts("torchtitan", "torchtitan main, torch.compile")


def test_recipes_of_megatron_bridge_as_they_come_leave_gates_and_rotations_of_qwen_to_pytorch():
    """Peaks of 19 of 21 runs on 16 H100 are then met to 4 % (nebpoc-*, September 2025)."""

    def settings(version, model, published):
        return recipe_settings("megatron", version, {"tp": 2}, model, published)

    experts = _RECIPES_EXPERTS["stack"]
    written = {"fused_elementwise": False, "fused_rotary": False, **experts}
    of_2025 = settings("Megatron-Bridge 0.1.0", "qwen3-8b", "a course; mock data")
    assert of_2025 == {
        "grad_reduce_precision": "fp32", "overlap_tp": False, "cross_entropy": "compiled",
        "stack": written,
    }  # fmt: skip
    later = settings("Megatron-Bridge 0.3", "qwen3-32b", "a course")
    assert (later["recompute"], later["stack"]) == ("full", written)
    assert "cross_entropy" not in later
    assert "fused_rotary" not in settings("Megatron-Bridge 0.3", "llama3-8b", "a course")["stack"]
    preset = settings("Megatron-Bridge", "qwen3-8b", "performance summary")
    assert (preset["grad_reduce_precision"], preset["overlap_tp"]) == ("bf16", True)


@pytest.mark.parametrize(
    ("framework", "model", "drops"),
    [("hf-trainer", "bert-large", True), ("hf-trainer", "gpt2-medium", True),
     ("hf-trainer", "modernbert-base", False), ("hf-trainer", "llama3-8b", False),
     ("megatron", "gpt2-medium", False), ("paddle", "gpt3-6.7b", True),
     ("paddle", "llama1-7b", False)],
)  # fmt: skip
def test_frameworks_drop_out_where_a_models_configuration_does(framework, model, drops):
    assert drops_out(framework, "transformers 2022", model) is drops


def test_only_megatron_bridge_prints_gigabytes_of_a_thousand_million_bytes():
    assert prints_decimal_gb("megatron", "Megatron-Bridge main")
    assert not prints_decimal_gb("megatron", "Megatron-LM core_r0.14")


def test_layers_of_transformer_engine_have_its_kernels_whatever_trains_them():
    engine = stack_facts("torch", "PyTorch 2.9, Transformer Engine 2.13")
    assert engine["fused_rmsnorm"] is engine["fused_projections"] is engine["fused_casts"] is True
    assert stack_facts("hf accelerate", "PyTorch 2.9", "Transformer Engine layers") == {
        **engine, "base": "trl"
    }  # fmt: skip
    assert stack_facts("torch", "PyTorch 2.9", "as fast as Transformer Engine") == {"base": "torch"}


def test_attention_of_pytorch_before_2_2_and_of_all_in_2022_is_the_first_flash_attention():
    for version in ("PyTorch 2.0 nightly", "PyTorch Lightning DDP 2022"):
        assert stack_facts("torch ddp", version)["flash_kernel"] == "flash-1"
    assert stack_facts("torch ddp", "PyTorch 2.2") == {"base": "torch"}


def test_a_loss_of_pytorch_reads_the_16_bit_logits_of_a_model_that_was_cast_to_16_bits():
    """Nothing casts them up: autocast is off, and the code is neither transformers' nor fused."""
    for notes in ("pure bf16, the model is cast to bfloat16", "fp16; model cast to float16"):
        assert stack_facts("torch", "PyTorch 2.6", notes)["cross_entropy"] == "eager-16bit"
    for framework, notes in (
        ("torch", "pure bf16"),
        ("torch", "the model is cast to bfloat16 and runs under autocast"),
        ("hf transformers", "the model is cast to bfloat16"),
        ("torchtune", "the model is cast to bfloat16"),
    ):
        assert "cross_entropy" not in stack_facts(framework, "2025", notes)


def test_recipes_of_nemo_and_megatron_bridge_have_8_bit_weights_where_products_are():
    """And so no copies of 16-bit ones, which Megatron-LM keeps where it is told nothing."""
    for version in ("NeMo 25.02", "Megatron-Bridge main"):
        assert stack_facts("megatron", version)["keeps_cast_weights"] is False
    assert "keeps_cast_weights" not in stack_facts("megatron", "Megatron-Core v0.6.0")
