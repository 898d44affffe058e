"""A field that other frameworks call otherwise is named in the fault."""

from __future__ import annotations

import pytest

from simulator.described.documents import with_changes
from simulator.described.load import job_from_document
from simulator.described.other_names import other_name_hint
from simulator.errors import Fault, InputError
from simulator.facts import shipped_facts

JOB = {
    "model": "llama2-7b",
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
    "batch": {"global": 8, "seq_len": 4096},
    "plan": {},
}


def fault_of(path: str, value: object = 1) -> Fault:
    with pytest.raises(InputError) as caught:
        job_from_document(with_changes(JOB, {path: value}))
    return next(fault for fault in caught.value.faults if fault.path == path)


def hint_of(path: str, value: object = 1) -> str:
    return fault_of(path, value).hint


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
        ("model.num_hidden_layers", "model.layers"),
        ("model.num_attention_heads", "model.heads"),
        ("model.num_key_value_heads", "model.kv_heads"),
        ("model.hidden_size", "model.hidden"),
        ("model.intermediate_size", "model.ffn_hidden"),
        ("model.vocab_size", "model.vocab"),
        ("model.moe", "model.experts"),
        ("model.num_experts", "model.experts.count"),
        ("model.num_local_experts", "model.experts.count"),
        ("plan.overlap_comm", "plan.overlap_grad_reduce"),
        ("plan.stack.overlap_comm", "plan.overlap_grad_reduce"),
    ],
)
def test_the_name_of_another_framework_leads_to_the_field(given, meant) -> None:
    assert hint_of(given) == f"its name here is {meant}"


@pytest.mark.parametrize("given", ["plan.dp", "plan.dp_size", "batch.gradient_accumulation_steps"])
def test_what_follows_from_other_fields_is_to_be_left_out(given) -> None:
    assert hint_of(given).startswith("remove it: ")


@pytest.mark.parametrize(
    ("given", "value", "written"),
    [
        ("plan.fsdp", True, "plan.zero: 3"),
        ("fsdp", "full_shard", "plan.zero: 3"),
        ("plan.activation_checkpointing", True, "plan.recompute: full"),
        ("plan.gradient_checkpointing", False, "plan.recompute: none"),
        ("plan.recompute", True, "plan.recompute: full"),
        ("plan.bf16", True, "plan.precision: bf16"),
        ("plan.offload", "cpu", "plan.offload.optimizer: cpu"),
        ("plan.offload_param", "nvme", "plan.offload.parameters: nvme"),
        ("plan.data_parallel", "hsdp", "plan.zero_group"),
        ("plan.data_parallel", "zero-2", "plan.zero: 2"),
    ],
)
def test_a_value_of_another_framework_is_written_as_it_is_here(given, value, written) -> None:
    assert f"write {written}" in hint_of(given, value) or f"and {written}" in hint_of(given, value)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("pytorch-ddp", ["plan.stack: torch,", "plan.zero: 0"]),
        ("ddp", ["plan.stack: torch,", "plan.zero: 0"]),
        ("FSDP", ["plan.stack: torch-fsdp (FSDP1", "plan.stack: torch (FSDP2)"]),
        ("xla", ["plan.stack: jax"]),
        ("pax", ["plan.stack: jax"]),
        ("peft", ["plan.stack: trl", "plan.lora"]),
        ("verl", ["torch-fsdp", "megatron-core"]),
        ("openrlhf", ["plan.stack: deepspeed"]),
        ("maxtext", ["the stack for it is 'jax'"]),
        ("zero3", ["plan.zero: 3"]),
        ("ZeRO-2", ["plan.zero: 2"]),
    ],
)
def test_a_technique_that_is_given_as_the_stack_is_told_its_stack_or_field(given, written) -> None:
    fault = fault_of("plan.stack", given)
    assert all(words in fault.rule for words in written)
    assert not fault.hint


def test_a_compiler_has_a_field_of_the_plan() -> None:
    assert hint_of("plan.torch_compile", value=True) == "write plan.compile: true"


def test_the_longest_sequence_of_a_model_is_the_length_of_the_batch() -> None:
    assert "batch.seq_len" in hint_of("model.max_position_embeddings")


def test_a_value_of_no_framework_has_no_hint() -> None:
    assert hint_of("plan.fsdp", "colour") == "its name here is plan.zero"


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


@pytest.mark.parametrize("given", ["plan.lr", "plan.learning_rate", "plan.seed"])
def test_what_costs_nothing_is_to_be_left_out(given) -> None:
    assert hint_of(given) == "remove it: no step takes longer for it"


@pytest.mark.parametrize(
    ("path", "given", "written"),
    [
        ("batch.seq_len", "4k", "4096 or 4000"),
        ("cluster.gpus", "1e6", "1000000"),
        ("batch.global", "2M", "2000000"),
    ],
)
def test_a_short_form_of_a_count_is_written_out(path, given, written) -> None:
    assert hint_of(path, given) == f"write all digits: {written}"


def test_a_number_that_no_count_can_have_is_not_written_out() -> None:
    assert "write" not in hint_of("batch.global", "1e99").replace("write a whole number", "")


def faults_of_cluster(**cluster: object) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        job_from_document({**JOB, "cluster": cluster})
    return {fault.path: fault.hint for fault in caught.value.faults}


def test_a_field_under_another_name_is_one_fault_and_not_a_missing_one_too() -> None:
    faults = faults_of_cluster(gpu="h100", nodes=8)
    assert list(faults) == ["cluster.gpu", "cluster.nodes"]
    assert faults["cluster.gpu"].startswith("write cluster.profile")
    model = {"hidden_size": 64, "layers": 2, "heads": 2, "ffn_hidden": 64, "vocab": 100}
    with pytest.raises(InputError) as caught:
        job_from_document({**JOB, "model": model})
    assert [fault.path for fault in caught.value.faults] == ["model.hidden_size"]


def test_what_would_override_a_profile_is_no_fault_where_the_profile_is_missing() -> None:
    faults = faults_of_cluster(gpus=8, device={"memory": "80 GiB"}, colour="red")
    assert list(faults) == ["cluster.profile", "cluster.colour"]
