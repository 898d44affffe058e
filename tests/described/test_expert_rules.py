"""Rules between the experts of a model and the plan that spreads them."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.model import Model
from simulator.errors import InputError
from tests.jobs import small_job, small_model


def expert_model(**experts: Any) -> Model:
    return small_model(experts={"count": 8, "top_k": 2, "ffn_hidden": 32, **experts})


def faults(model: Model, **plan: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        small_job(model, gpus=8, global_batch=8, **plan)
    return {fault.path: fault.rule for fault in caught.value.faults}


def test_a_dense_model_has_nothing_to_spread():
    assert set(faults(small_model(), ep=2)) == {"plan.ep"}
    assert set(faults(small_model(), etp=1)) == {"plan.etp"}


def test_expert_ranks_divide_the_experts():
    assert faults(expert_model(count=6), ep=4)["plan.ep"] == "must divide the model's 6 experts"


def test_expert_tensor_ranks_divide_an_experts_width():
    rule = faults(expert_model(ffn_hidden=30), etp=4)["plan.etp"]
    assert rule == "must divide the width 30 of an expert"


def test_experts_are_spread_inside_one_pipeline_stage():
    rule = faults(expert_model(), ep=8, pp=2)["plan.ep"]
    assert rule == "ep x etp = 8 x 1 must divide dp x cp x tp = 4"


def test_ranks_that_share_experts_count_too():
    assert "plan.ep" in faults(expert_model(), ep=8, etp=2)
    assert small_job(expert_model(), gpus=8, global_batch=8, ep=4, etp=2).plan.expert_tp == 2


def test_tensor_parallel_ranks_route_tokens_of_their_own():
    rule = faults(expert_model(), tp=2, sequence_parallel=False)["plan.sequence_parallel"]
    assert rule.startswith("must be on for experts with tp > 1")
    assert "plan.sequence_parallel" in faults(expert_model(), tp=2, stack="megatron-lm-2021")


def test_without_tensor_parallelism_tokens_are_always_a_ranks_own():
    assert small_job(expert_model(), gpus=8, global_batch=8, sequence_parallel=False).dp == 8


def test_tokens_travel_beside_another_microbatch_only_where_there_is_one():
    assert "plan.overlap_ep" in faults(small_model(), overlap_ep=True)
    assert "plan.overlap_ep" in faults(expert_model(), overlap_ep=True, pp=2)
    job = small_job(expert_model(), gpus=8, global_batch=8, overlap_ep=True, pp=2, vpp=2, ep=4)
    assert job.plan.overlap_ep
