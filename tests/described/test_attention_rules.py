"""Which attention kernel does a plan mean?"""

from __future__ import annotations

import pytest

from simulator.described.job import Batch, Cluster, Job
from simulator.described.plan.plan import Plan
from simulator.described.rules.all_rules import job_faults
from simulator.errors import InputError
from tests.jobs import network_profile, small_job, small_model


def plan(**fields) -> Plan:
    return Plan.model_validate(fields)


def test_the_stack_decides_where_the_plan_is_silent():
    assert plan().attention_kernel == "flash"
    assert plan(stack="megatron-lm-2021").attention_kernel == "fused-softmax"
    assert plan(stack="megatron-lm-2021", attention="flash").attention_kernel == "flash"


def test_full_precision_has_no_fused_kernel():
    assert plan(precision="fp32").attention_kernel == "unfused"


def test_flash_attention_in_full_precision_is_refused():
    with pytest.raises(InputError, match="flash attention has no kernel"):
        small_job(precision="fp32", attention="flash")


def test_attention_of_pytorch_in_full_precision_is_memory_efficient():
    """Its formats are half, bfloat16 and float, FlashAttention's the first two (sdp_utils.cpp)."""
    stack = {"base": "torch", "flash_kernel": "sdpa-2.2"}
    wide, narrow = (
        small_job(small_model(kv_heads=8), precision=name, attention="flash", stack=stack).choices
        for name in ("fp32", "bf16")
    )
    assert (wide.flash_kernel, narrow.flash_kernel) == ("efficient", "flash-2")


@pytest.mark.parametrize(
    ("cp", "document_len", "path"),
    [(2, None, "plan.cp"), (1, 16, "batch.document_len")],
)
def test_grouped_heads_of_32_bits_are_refused_where_one_kernel_is_needed(cp, document_len, path):
    """PyTorch's memory-efficient kernel, which alone reads them, takes no grouped heads."""
    grouped, whole = (
        Job(
            model=small_model(kv_heads=kv_heads),
            cluster=Cluster(profile=network_profile(), gpus=cp),
            batch=Batch(global_batch=8, micro_batch=1, seq_len=64, document_len=document_len),
            plan=plan(precision="fp32", stack="torch", zero=0, cp=cp),
        )
        for kv_heads in (2, 8)
    )
    assert [fault.path for fault in job_faults(grouped)] == [path]
    assert job_faults(whole) == []


@pytest.mark.parametrize(("kv_heads", "precision"), [(2, "fp32"), (8, "fp32"), (2, "bf16")])
def test_flash_attention_is_refused_where_no_kernel_reads_grouped_heads_of_32_bits(
    kv_heads, precision
):
    """``enable_gqa`` works "only for Flash_attention and math kernel", as PyTorch documents it."""
    fields = {"precision": precision, "stack": "torch", "zero": 0, "attention": "flash"}
    if kv_heads == 8 or precision == "bf16":
        assert small_job(small_model(kv_heads=kv_heads), **fields).plan.attention == "flash"
        return
    with pytest.raises(InputError, match=r"plan\.attention.*reads grouped heads"):
        small_job(small_model(kv_heads=kv_heads), **fields)


def test_ranks_can_only_trade_whole_heads():
    with pytest.raises(InputError, match="heads that ranks exchange"):
        small_job(small_model(heads=12, kv_heads=12, head_dim=4), gpus=8, cp=8,
                  cp_method="all_to_all", seq_len=1024, global_batch=1)  # fmt: skip


@pytest.mark.parametrize("method", ["ring", "all_to_all+ring"])
def test_no_ring_passes_keys_round_under_a_window(method):
    model = small_model(sliding_window=64)
    with pytest.raises(InputError, match=r"attention window.*all_to_all or all_gather"):
        small_job(model, gpus=2, cp=2, cp_method=method, seq_len=1024, global_batch=1)


@pytest.mark.parametrize("method", ["all_to_all", "all_gather"])
def test_ranks_that_hold_all_keys_look_through_windows(method):
    model = small_model(sliding_window=64)
    job = small_job(model, gpus=2, cp=2, cp_method=method, seq_len=1024, global_batch=1)
    assert job.plan.cp == 2


def test_a_window_that_holds_the_whole_sequence_is_none():
    model = small_model(sliding_window=1024)
    assert small_job(model, gpus=2, cp=2, seq_len=1024, global_batch=1).plan.cp == 2


@pytest.mark.parametrize("attention", ["unfused", "fused-softmax"])
def test_ranks_share_no_attention_that_stores_its_scores(attention):
    with pytest.raises(InputError, match="one fused attention kernel"):
        small_job(gpus=2, cp=2, seq_len=1024, global_batch=1, attention=attention)
