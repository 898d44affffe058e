"""Which adapters does a published row train, in the words of its notes?"""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.validate.published.published_rows import job_document

ROW = {
    "id": "a-001", "model": "llama3-8b", "layers": "32", "hidden": "4096", "ffn_hidden": "14336",
    "heads": "32", "kv_heads": "8", "vocab": "128256", "gated_mlp": "true",
    "profile": "a100-sxm-80gb", "gpus": "1", "framework": "hf-trainer", "framework_version": "",
    "micro_batch": "4", "global_batch": "4", "seq_len": "4096", "zero": "0", "experts": "",
}  # fmt: skip


def plan_of(notes: str, **cells: str):
    return job_document({**ROW, **cells, "notes": notes})["plan"]


@pytest.mark.parametrize(
    ("notes", "lora"),
    [
        ("LoRA r16 q,k,v,o, frozen base in bf16",
         {"rank": 16, "targets": ["query", "key", "value", "output"]}),
        ("LoRA rank 32 all-linear", {"rank": 32, "targets": ["all"]}),
        ("LoRA, rank 16, of all-linear layers", {"rank": 16, "targets": ["all"]}),
        ("LoRA of rank 4", {"rank": 4}),
        ("QLoRA r=8, NF4", {"rank": 8, "base_precision": "nf4"}),
        ("LoRA rank 16 of all linear layers", {"rank": 16, "targets": ["all"]}),
        ("rank-16 LoRA, q_proj and v_proj", {"rank": 16, "targets": ["query", "value"]}),
        ("LoRA (r=64, alpha=16) on query, key and value; no output is kept",
         {"rank": 64, "targets": ["query", "key", "value"]}),
        ("LoRA rank 8 of attention", {"rank": 8, "targets": ["query", "key", "value", "output"]}),
        ("LoRA rank 8 of query_key_value; load_in_8bit",
         {"rank": 8, "targets": ["query", "key", "value"], "base_precision": "int8"}),
        ("DoRA rank 8 all-linear", {"rank": 8, "targets": ["all"], "kind": "dora"}),
    ],
)  # fmt: skip
def test_notes_say_rank_matrices_and_format(notes, lora):
    assert plan_of(notes)["lora"] == lora


def test_a_framework_with_recipes_of_its_own_trains_their_adapters():
    plan = plan_of("QLoRA, frozen base in NF4", framework="torchtune")
    assert plan["lora"]["rank"] == 8
    assert plan["lora"]["base_precision"] == "nf4"
    assert plan["stack"]["base"] == "torchtune"


def test_adapters_of_no_known_rank_are_refused():
    with pytest.raises(InputError, match="not their rank"):
        plan_of("frozen base in bf16", framework="maxtext")


@pytest.mark.parametrize(
    ("framework", "lora"),
    [
        ("hf-trainer", {"rank": 8}),
        ("llama-factory", {"rank": 8, "targets": ["all"]}),
        ("litgpt", {"rank": 8, "targets": ["query", "value"]}),
    ],
)
def test_adapters_are_those_of_a_framework_where_notes_name_them_alone(framework, lora):
    """``LoraConfig`` of peft, ``finetuning_args.py`` of LLaMA-Factory, ``finetune/lora.py``."""
    assert plan_of("LoRA fine-tuning", framework=framework)["lora"] == lora


def test_facts_of_a_row_say_what_its_notes_leave_out():
    facts = '{"plan": {"lora": {"rank": 16, "targets": ["query"]}}}'
    assert plan_of("LoRA", facts=facts)["lora"] == {"rank": 16, "targets": ["query"]}


def test_notes_say_what_a_fine_tuning_run_keeps():
    plan = plan_of("pure bf16 training; 8-bit paged AdamW and optimizer in backward; Liger kernels")
    assert plan["master_weights"] is False
    assert plan["optimizer"] == "adam-8bit-paged"
    assert plan["optimizer_in_backward"]
    assert plan["cross_entropy"] == "linear-fused"


def test_documents_of_a_packed_run_are_as_long_as_the_notes_say():
    notes = "LongAlpaca-12k (documents of about 9K tokens)"
    assert (
        job_document({**ROW, "seq_len": "16384", "notes": notes})["batch"]["document_len"] == 9216
    )


@pytest.mark.parametrize(
    ("notes", "plan"),
    [
        ("8-bit AdamW", {"optimizer": "adam-8bit"}),
        ("optim adamw_bnb_8bit", {"optimizer": "adam-8bit"}),
        ("paged AdamW", {"optimizer": "adam-paged"}),
        ("Adafactor", {"optimizer": "adafactor"}),
        ("pre-training with LAMB", {"optimizer": "lamb"}),
        ("activation offloading", {"offload": {"activations": "cpu"}}),
        ("ZeRO-Offload", {"offload": {"optimizer": "cpu"}}),
        ("optimizer and parameters offloaded to the CPU",
         {"offload": {"optimizer": "cpu", "parameters": "cpu"}}),
        ("the model is cast to bfloat16", {"master_weights": False}),
        ("loaded in float16", {"master_weights": False}),
        ("forward and backward only", {"optimizer": "sgd", "clip_gradients": False}),
        ("fused AdamW", {"optimizer_kernels": "fused"}),
        ("chunked cross entropy", {"cross_entropy": "chunked"}),
    ],
)  # fmt: skip
def test_notes_name_what_updates_and_what_is_kept_elsewhere(notes, plan):
    read = plan_of(notes)
    assert {key: read[key] for key in plan} == plan


@pytest.mark.parametrize("notes", ["no activation offloading", "LoRA rank 8, dropout 0.05"])
def test_notes_that_deny_or_speak_of_adapters_change_no_stack(notes):
    plan = plan_of(notes)
    assert "offload" not in plan
    assert "dropout" not in plan["stack"]


@pytest.mark.parametrize("notes", ["Adam moments kept in bf16", "gradients are cast to bf16"])
def test_other_numbers_in_16_bits_leave_fp32_weights(notes):
    assert "master_weights" not in plan_of(notes)
