"""What torch's own strategies do not do is refused by name, with a way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError, UnsupportedError
from simulator.ranks.world import World, check_world_size, chosen_backend
from simulator.validate.torch_run.supported_plan import (
    as_torch_runs_it,
    check_can_sleep,
    check_strategies,
)

DENSE = {"name": "small", "layers": 4, "hidden": 64, "heads": 8, "kv_heads": 4,
         "ffn_hidden": 128, "vocab": 512}  # fmt: skip
EXPERTS = {"count": 4, "top_k": 2, "ffn_hidden": 32}
CPU = World(0, 1, "gloo", torch.device("cpu"))
GPU = World(0, 1, "nccl", torch.device("cuda"))
WHOLE = {"base": "torch", "shards_whole_parameters": True}


def job(gpus: int, model: dict[str, Any] | None = None, **plan: Any) -> Job:
    return job_from_document(
        {
            "model": {**DENSE, **(model or {})},
            "cluster": {"profile": "a100-sxm-80gb", "gpus": gpus},
            "batch": {"global": 16, "micro": 1, "seq_len": 32},
            "plan": {"stack": "torch", "precision": "fp32", "zero": 0, **plan},
        },
        source="job.yaml",
    )


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("plan.schedule", job(2, pp=2, schedule="zb-h1")),
        ("plan.schedule", job(2, pp=2, vpp=2, schedule="v-half")),
        ("model.tied_embeddings", job(2, {"tied_embeddings": True}, pp=2, vpp=2)),
        ("model.tied_embeddings", job(2, {"tied_embeddings": True}, tp=2)),
        ("plan.zero", job(2, zero=1)),
        ("plan.zero", job(4, zero=1, pp=2, stack=WHOLE)),
        ("plan.zero", job(2, zero=2)),
        ("plan.zero", job(4, tp=2)),
        ("plan.zero_group", job(4, zero=3, zero_group=2, cp=2, precision="bf16")),
        ("plan.overlap_grad_reduce", job(2, overlap_grad_reduce=False)),
        ("plan.overlap_tp", job(2, tp=2, overlap_tp=True)),
        ("plan.ep", job(4, {"experts": EXPERTS}, ep=2)),
        ("plan.ep", job(4, {"experts": EXPERTS}, ep=2, zero=3)),
        ("plan.tp", job(2, {"experts": EXPERTS}, tp=2, sequence_parallel=True)),
        ("plan.expert_load", job(2, {"experts": EXPERTS}, ep=2, expert_load={"hot": 2})),
        ("plan.cp", job(2, cp=2, precision="bf16")),
        ("plan.cp_method", job(2, cp=2, cp_method="all_to_all", precision="bf16")),
        ("plan.precision", job(1, precision="fp16")),
        ("plan.precision", job(1, precision="tf32")),
        ("plan.attention", job(1, precision="bf16", attention="fused-softmax")),
        ("plan.recompute", job(1, recompute="selective",
                               stack={"base": "torch", "selective_policy": "alternate-products"})),
    ],
)  # fmt: skip
def test_a_plan_that_torch_has_no_strategy_for_is_refused(path, refused):
    with pytest.raises(UnsupportedError) as raised:
        check_strategies(refused, CPU)
    assert path in {fault.path for fault in raised.value.faults}
    assert all(fault.rule for fault in raised.value.faults)


def test_a_format_with_scales_of_blocks_is_refused():
    given = job(1).replace({"cluster.profile": "gb200-nvl72", "plan.precision": "mxfp8"})
    with pytest.raises(UnsupportedError, match="fp32, tf32, fp16, bf16 or fp8"):
        check_strategies(given, CPU)


@pytest.mark.parametrize(
    "accepted",
    [
        job(2),
        job(2, zero=3),
        job(4, zero=3, zero_group=2),
        job(2, zero=1, stack=WHOLE),
        job(2, tp=2),
        job(4, tp=2, zero=3),
        job(2, pp=2, vpp=2, schedule="zb-v"),
        job(2, {"tied_embeddings": True}),
        job(2, {"experts": EXPERTS}, ep=2),
        job(4, {"experts": EXPERTS}, ep=4, zero=3),
    ],
)
def test_what_torch_does_is_accepted(accepted):
    check_strategies(accepted, CPU)


def test_facts_that_torch_does_otherwise_are_replaced_and_said():
    as_run = as_torch_runs_it(job(2, stack="megatron-core", zero=3), CPU)
    assert as_run.job.plan.stack.fused_rotary is False
    assert any("fused_rotary" in note for note in as_run.notes)
    assert any("FSDP2 overlaps nothing" in note for note in as_run.notes)


@pytest.mark.parametrize(
    ("ranks", "world", "waits"), [(1, GPU, "expert"), (4, GPU, "layer"), (1, CPU, "none")]
)
def test_each_expert_of_the_reference_model_asks_the_device_for_its_rows(ranks, world, waits):
    """An only expert of a rank has all that came; a processor computes at once."""
    given = job(ranks, {"experts": EXPERTS}, ep=ranks)
    assert as_torch_runs_it(given, world).job.plan.stack.expert_waits == waits


def test_scores_that_are_not_widened_matter_to_unfused_attention_alone():
    narrow = {"widens_scores": False}
    check_strategies(job(1, narrow), CPU)
    with pytest.raises(UnsupportedError, match="widens_scores"):
        check_strategies(job(1, narrow, attention="unfused"), CPU)


def test_a_plain_torch_job_is_predicted_as_it_is():
    # On a processor the norm is operators.
    stack = {"base": "torch", "bucket": "2 MiB", "first_bucket": "0 B", "fused_rmsnorm": False}
    given = job(2, stack=stack)
    as_run = as_torch_runs_it(given, CPU)
    assert as_run.job.plan == given.plan
    assert as_run.notes == []


def test_a_world_of_another_size_than_the_job_is_refused():
    check_world_size(4, None)
    check_world_size(4, 4)
    with pytest.raises(InputError, match="the 2 ranks that torchrun started"):
        check_world_size(4, 2)


def test_nccl_is_refused_where_torch_has_none(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    with pytest.raises(InputError, match="built without NCCL"):
        chosen_backend("nccl", 1, None)


def test_nccl_needs_a_gpu_per_rank(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(InputError, match="needs one GPU per rank: 4 here, but torch finds 2"):
        chosen_backend("nccl", 4, None)
    assert chosen_backend("nccl", 2, None) == "nccl"
    assert chosen_backend("auto", 2, None) == "nccl"
    assert chosen_backend("auto", 4, None) == "gloo"


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("plan.recompute", job(1, recompute="full")),
        ("plan.schedule", job(2, pp=2, schedule="zb-1p")),
    ],
)
def test_layers_that_do_more_than_two_passes_cannot_sleep(path, refused):
    with pytest.raises(UnsupportedError, match="layers that sleep") as raised:
        check_can_sleep(refused)
    assert [fault.path for fault in raised.value.faults] == [path]
    assert raised.value.faults[0].hint


def test_layers_of_a_pipeline_may_sleep():
    check_can_sleep(job(2, pp=2, vpp=2, schedule="interleaved-1f1b"))


def test_layers_that_exchange_activations_may_sleep():
    check_can_sleep(job(2, tp=2))
    check_can_sleep(job(2, {"experts": EXPERTS}, ep=2))


def test_dtensors_cost_the_host_more_than_collectives_do():
    world = World(0, 2, "gloo", torch.device("cpu"))
    works = {
        tp: as_torch_runs_it(job(2, tp=tp), world).job.plan.stack.host_work_per_exchange
        for tp in (1, 2)
    }
    assert works[1] is None
    assert works[2] > 100
