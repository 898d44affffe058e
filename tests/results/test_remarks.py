"""Sentences on a step beside its numbers: who waits for the host, and which experts run alone."""

from __future__ import annotations

import pytest

from simulator.api import simulate
from simulator.described.load import job_from_document
from simulator.results.views.remarks import remarks

MODEL = {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 32000}
EXPERTS = {"count": 16, "top_k": 2, "ffn_hidden": 256}


def said(seq_len, plan=None, **model):
    job = job_from_document(
        {
            "model": {**MODEL, "gated_mlp": True, **model},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
            "batch": {"global": 16, "seq_len": seq_len},
            "plan": plan or {},
        }
    )
    return list(remarks(simulate(job), job))


def test_a_step_of_large_kernels_needs_no_word():
    assert said(32768) == []


def test_a_step_that_waits_for_its_host_is_told_what_helps():
    (sentence,) = said(64)
    assert "wait for their host" in sentence
    assert "--set batch.micro=2" in sentence
    assert "--set plan.cuda_graphs=layer" in sentence
    assert "grouped" not in sentence


@pytest.mark.parametrize(
    ("plan", "has_graphs"),
    [
        ({"stack": "megatron-core"}, True),
        ({"stack": "torch", "zero": 0}, True),
        ({"stack": "torch", "zero": 3}, False),
        ({"stack": "torch-fsdp", "zero": 3}, False),
        ({"stack": "deepspeed", "zero": 3}, False),
        ({"stack": "deepspeed@0.15", "zero": 2}, False),
    ],
)
def test_graphs_of_layers_are_offered_only_where_a_framework_is_known_to_have_them(
    plan, has_graphs
):
    (sentence,) = said(64, plan)
    assert "wait for their host" in sentence
    assert ("cuda_graphs" in sentence) is has_graphs


def test_graphs_of_layers_are_not_refused_where_they_are_not_offered():
    assert "cuda_graphs" not in "".join(said(64, {"stack": "deepspeed", "cuda_graphs": "layer"}))


@pytest.mark.parametrize(
    ("plan", "count", "can_group"),
    [
        ({"ep": 4}, 4, True),
        ({"ep": 4, "stack": "megatron-deepspeed"}, 4, False),
        ({"ep": 4, "stack": {"base": "megatron-core", "grouped_experts": True}}, 0, False),
    ],
)
def test_experts_that_run_one_by_one_are_named_with_the_way_to_group_them(plan, count, can_group):
    sentences = [each for each in said(8192, plan, experts=EXPERTS) if "one after another" in each]
    assert [f"the {count} experts" in each for each in sentences] == ([True] if count else [])
    assert any("plan.stack.grouped_experts=true" in each for each in sentences) is can_group


def test_experts_that_autocast_leaves_in_fp32_are_told_three_ways_out():
    plan = {"stack": "trl", "zero": 0}
    (sentence,) = (each for each in said(1024, plan, experts=EXPERTS) if "Autocast" in each)
    for way in ("master_weights=false", "grouped_experts=false", "FSDP"):
        assert way in sentence
    (sentence,) = said(1024, plan | {"master_weights": False}, experts=EXPERTS)
    assert "wait for their host" in sentence
