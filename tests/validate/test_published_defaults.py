"""What did a published run do where its row does not say?"""

from __future__ import annotations

import pytest

from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import predicted
from tests.validate.published_jobs import BIG, MOE, ROW, TORCH, job_of


def test_a_run_of_maxtext_that_does_not_say_has_the_defaults_of_its_base_yml():
    row = {**BIG, "framework": "MaxText", "global_batch": "256", "micro_batch": "", "tp": "2",
           "dp": "32", "recompute": "", "schedule": "", "pp": "1", "vpp": ""}  # fmt: skip
    job = job_of(row)
    assert (job.plan.recompute, job.batch.micro_batch) == ("full", 8)
    assert predicted(row).assumed == ""
    stated = job_of({**row, "micro_batch": "4", "recompute": "none"})
    assert (stated.plan.recompute, stated.batch.micro_batch) == ("none", 4)


def test_products_of_8_bit_integers_are_those_of_a_tpu_and_of_no_gpu():
    row = {**ROW, "framework": "MaxText", "precision": "int8"}
    on_tpu = {**row, "profile": "tpu-v5p", "gpus_per_node": ""}
    half = {**on_tpu, "precision": "bf16"}
    assert predicted(on_tpu).predicted_step_s < predicted(half).predicted_step_s
    assert "has no int8 matrix unit" in predicted(row).skipped


def test_experts_with_tensor_parallelism_cut_the_sequence_where_a_row_does_not_say():
    job = job_of({**MOE, "framework": "FSDP2", "sequence_parallel": ""})
    assert job.plan.cuts_sequence


@pytest.mark.parametrize(
    ("framework", "sharding"),
    [("torch fsdp", (3, False)), ("torch FSDP2", (3, False)), ("Megatron FSDP", (2, None)),
     ("DeepSpeed", (2, None))],
)  # fmt: skip
def test_stage_2_of_fsdp_shards_parameters_too_and_gathers_them_once(framework, sharding):
    row = {**ROW, "framework": framework, "zero": "2", "pp": "1", "dp": "4", "schedule": ""}
    plan = job_of(row).plan
    assert (plan.zero, plan.reshard_after_forward) == sharding
    assert job_of({**row, "zero": "3"}).plan.reshard_after_forward is None


@pytest.mark.parametrize(
    ("framework", "version", "zero"),
    [("FSDP", "PyTorch 2.1", 3), ("torchtitan", "", 3), ("PyTorch DDP", "", 0),
     ("Megatron-LM", "v2.5", 0), ("NeMo", "24.05", 1)],
)  # fmt: skip
def test_what_is_sharded_by_default_is_a_matter_of_the_framework(framework, version, zero):
    row = {**ROW, "framework": framework, "framework_version": version, "zero": "", "pp": "1",
           "dp": "4", "schedule": ""}  # fmt: skip
    assert job_of(row).plan.zero == zero


def test_parameters_are_not_taken_as_sharded_inside_a_pipeline():
    row = {**ROW, "framework": "Alpa", "framework_version": "", "zero": ""}
    assert job_of(row).plan.zero == 1


def test_bf16_gradients_of_old_megatron_are_added_up_in_fp32():
    old = {**ROW, "framework_version": "Megatron-LM 2021"}
    assert job_of({**old, "precision": "bf16"}).plan.stack.main_grad_precision == "fp32"
    assert job_of({**old, "precision": "fp16"}).plan.stack.main_grad_precision == "fp16"


def test_ulysses_is_how_deepspeed_divides_a_context():
    row = {**ROW, "framework": "DeepSpeed", "framework_version": "0.14", "cp": "2", "pp": "1",
           "schedule": "", "attention": "", "dp": ""}  # fmt: skip
    plan = job_of(row).plan
    assert (plan.cp_method, plan.attention) == ("all_to_all", "flash")


def test_no_fused_attention_reads_32_bit_numbers_so_a_framework_takes_another():
    asked = {**TORCH, "precision": "fp32", "attention": "flash attention 2"}
    assert job_of(asked).plan.attention_kernel == "unfused"
    assert job_of({**asked, "precision": "bf16"}).plan.attention_kernel == "flash"


def test_pytorch_takes_memory_efficient_attention_for_32_bit_numbers():
    asked = {**TORCH, "precision": "fp32", "attention": "flash", "framework_version": "PyTorch 2.3"}
    assert job_of(asked).choices.flash_kernel == "efficient"


@pytest.mark.parametrize(
    ("cells", "precision"),
    [
        ({}, "tf32"),
        ({"profile": "V100-SXM3-32GB", "attention": "unfused"}, "fp32"),
        ({"profile": "MI300X"}, "fp32"),
        ({"framework": "torch ddp", "framework_version": "PyTorch 2.1"}, "fp32"),
    ],
    ids=str,
)
def test_megatron_in_nvidias_container_multiplies_32_bit_numbers_in_tf32(cells, precision):
    row = {**ROW, "precision": "fp32", "attention": "unfused", **cells}
    assert job_document(row)["plan"]["precision"] == precision


@pytest.mark.parametrize(("zero", "overlaps"), [("1", False), ("2", False), ("3", True)])
def test_deepspeed_reduces_after_backward_below_zero_3_unless_a_row_says_otherwise(zero, overlaps):
    row = {**TORCH, "framework": "DeepSpeed", "zero": zero, "micro_batch": "1"}
    assert job_of(row).choices.overlaps_reduction is overlaps
    assert job_of({**row, "overlap_grad_reduce": "yes"}).choices.overlaps_reduction
    assert not job_of({**row, "overlap_grad_reduce": "no"}).choices.overlaps_reduction


def test_a_run_that_ran_recomputed_what_would_not_have_fitted():
    large = {**TORCH, "layers": "32", "hidden": "4096", "ffn_hidden": "16384", "heads": "32",
             "kv_heads": "32", "zero": "3", "framework": "FSDP", "micro_batch": "4",
             "global_batch": "32", "seq_len": "4096", "recompute": ""}  # fmt: skip
    unsaid, stated = predicted(large), predicted({**large, "recompute": "full"})
    assert unsaid.predicted_step_s == stated.predicted_step_s
    assert (unsaid.assumed, stated.assumed) == ("recompute full", "")
    kept = predicted({**large, "recompute": "none"})
    assert kept.predicted_step_s < unsaid.predicted_step_s
    assert not kept.fits
    small = predicted({**large, "seq_len": "128"})
    assert (small.assumed, small.fits) == ("", True)


@pytest.mark.parametrize(
    ("said", "repeats"), [("", True), ("sdpa", True), ("flash", "unfused"), ("eager", True)]
)
def test_the_package_flash_attn_takes_grouped_heads_which_pytorchs_attention_did_not(said, repeats):
    version = "transformers 4.48, PyTorch 2.5"
    row = {**TORCH, "framework": "hf trainer", "framework_version": version, "attention": said}
    assert job_of(row).plan.stack.repeats_kv_heads == repeats
