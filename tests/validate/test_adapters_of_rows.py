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
        plan_of("frozen base in bf16")


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
