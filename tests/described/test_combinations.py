"""Combinations that no framework runs are refused with the reason and a way out."""

from __future__ import annotations

import pytest

from simulator.described.load import job_from_document
from simulator.described.model import Experts
from simulator.errors import InputError
from tests.jobs import network_profile, small_job, small_model

TIED = small_model(tied_embeddings=True)


@pytest.mark.parametrize(
    ("model", "plan", "path", "words"),
    [
        (None, {"zero": 2, "stack": "deepspeed"}, "plan.zero", "must be at most 1"),
        (None, {"zero": 3, "stack": "megatron-deepspeed"}, "plan.zero", "gradients add up over"),
        (None, {"zero": 2, "stack": "nanotron", "pp": 1}, "plan.zero", "must be at most 1"),
        (TIED, {"zero": 3}, "plan.zero", "tied embeddings"),
        (
            None,
            {"zero": 2, "reshard_after_forward": True},
            "plan.reshard_after_forward",
            "shards no parameters",
        ),
        (
            None,
            {"data_parallel": "data-parallel", "overlap_grad_reduce": True, "pp": 1, "zero": 0},
            "plan.overlap_grad_reduce",
            "after the backward",
        ),
    ],
)
def test_what_no_framework_runs_is_refused_with_the_reason(model, plan, path, words):
    with pytest.raises(InputError) as raised:
        small_job(model, **{"gpus": 4, "pp": 2, **plan})
    (fault,) = raised.value.faults
    assert fault.path == path
    assert words in fault.rule
    assert fault.hint


def test_gloo_has_no_two_level_dispatch():
    network = network_profile().network.model_copy(update={"library": "gloo"})
    profile = network_profile().model_copy(update={"network": network})
    experts = small_model(experts=Experts(count=4, top_k=2, ffn_hidden=128))
    with pytest.raises(InputError, match="kernels on GPUs"):
        small_job(experts, gpus=4, ep=4, profile=profile, ep_dispatch="hierarchical")


@pytest.mark.parametrize(
    "plan",
    [
        {"zero": 1, "stack": "deepspeed"},
        {"zero": 1, "schedule": "chimera"},
        {"zero": 3, "stack": "torchtitan"},
        {"zero": 3, "stack": "torchtitan", "schedule": "zb-h1"},
        {"zero": 3, "pp": 1, "stack": "deepspeed"},
    ],
)
def test_what_some_framework_runs_is_not(plan):
    assert small_job(**{"gpus": 4, "pp": 2, **plan}).plan.zero


def test_gpus_that_make_no_whole_ranks_are_the_only_cause():
    """How many microbatches a rank has is not known before."""
    plan = {"tp": 4, "pp": 4, "vpp": 10, "cp": 2}
    with pytest.raises(InputError) as error:
        job_from_document(
            {
                "model": "llama3.1-70b",
                "cluster": {"profile": "h100-sxm-80gb", "gpus": 255},
                "batch": {"global": 512, "seq_len": 8192},
                "plan": plan,
            }
        )
    assert [fault.path for fault in error.value.faults] == ["cluster.gpus"]


def test_a_tensor_degree_that_no_model_has_is_one_cause_with_the_degrees_that_are_left():
    with pytest.raises(InputError) as raised:
        small_job(small_model(heads=8, kv_heads=8), gpus=8, tp=3)
    paths = [fault.path for fault in raised.value.faults]
    assert paths[0] == "plan.tp"
    assert "batch.global" not in paths
    assert "use 1, 2, 4, 8" in str(raised.value)
