"""A field that other frameworks call otherwise is named in the fault."""

from __future__ import annotations

import pytest

from simulator.described.documents import with_changes
from simulator.described.faults import other_name_hint
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.facts import shipped_facts

JOB = {
    "model": "llama2-7b",
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
    "batch": {"global": 8, "seq_len": 4096},
    "plan": {},
}


def hint_of(path: str) -> str:
    block, _, word = path.rpartition(".")
    document = JOB | ({block: {**JOB[block], word: 1}} if block else {word: 1})
    with pytest.raises(InputError) as caught:
        job_from_document(document)
    return next(fault.hint for fault in caught.value.faults if fault.path == path)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("plan.tensor_model_parallel_size", "plan.tp"),
        ("plan.tensor_parallel_degree", "plan.tp"),
        ("plan.pipeline-model-parallel-size", "plan.pp"),
        ("plan.framework", "plan.stack"),
        ("framework", "plan.stack"),
        ("plan.gradient_checkpointing", "plan.recompute"),
        ("batch.micro_batch_size", "batch.micro"),
        ("micro_batch_size", "batch.micro"),
        ("plan.micro_batch_size", "batch.micro"),
        ("cluster.num_gpus", "cluster.gpus"),
        ("plan.zero_stage", "plan.zero"),
        ("plan.grouped_gemm", "plan.stack.grouped_experts"),
        ("plan.moe_grouped_gemm", "plan.stack.grouped_experts"),
        ("plan.expert_tp", "plan.etp"),
        ("plan.deepep", "plan.ep_dispatch"),
        ("cluster.nic", "cluster.network.fabric.nic"),
    ],
)
def test_the_name_of_another_framework_leads_to_the_field(given, meant) -> None:
    assert hint_of(given) == f"its name here is {meant}"


@pytest.mark.parametrize("given", ["plan.dp", "plan.dp_size", "batch.gradient_accumulation_steps"])
def test_what_follows_from_other_fields_is_to_be_left_out(given) -> None:
    assert hint_of(given).startswith("remove it: ")


def test_nodes_are_given_as_their_gpus() -> None:
    assert hint_of("cluster.nodes") == "give cluster.gpus, the GPUs of all nodes together"


def test_a_misspelt_field_still_leads_to_its_neighbour() -> None:
    assert hint_of("plan.tpp") == "did you mean 'tp' or 'pp'?"


def test_a_field_of_another_block_is_pointed_at() -> None:
    assert hint_of("tp") == "did you mean plan.tp?"


@pytest.mark.parametrize("path", shipped_facts("other_names")["fields"])
def test_every_answer_is_a_field_of_a_job(path) -> None:
    with pytest.raises(InputError) as caught:
        job_from_document(with_changes(JOB, {path: object()}))
    assert not any(fault.rule == "no such field" for fault in caught.value.faults)


def test_an_unknown_word_has_no_other_name() -> None:
    assert other_name_hint("colour") == ""
