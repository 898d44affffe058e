"""A host that asks for counts of tokens per expert, in round numbers."""

from __future__ import annotations

import pytest

from simulator.described.load import load_profile
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Category
from simulator.program.price.expert_waits import Step, stall_s
from simulator.program.price.stage_cost import StageCosts
from simulator.schedule.slots import Phase
from tests.jobs import small_job, small_model

FAST, SLOW = Step(5.0, 1.0, 1), Step(1.0, 4.0, 1)
"""Launched in 1 s and 5 s long; launched in 4 s and 1 s long."""


def test_a_device_waits_for_the_first_kernel_behind_the_answers():
    assert stall_s([FAST, FAST], answers_s=2.0, hidden_s=0.0) == 2.0 + 1.0


def test_what_it_does_meanwhile_hides_the_question():
    assert stall_s([FAST, FAST], answers_s=2.0, hidden_s=2.5) == 0.5
    assert stall_s([FAST, FAST], answers_s=2.0, hidden_s=9.0) == 0.0


def test_it_waits_for_the_kernel_that_is_launched_the_latest():
    """The third starts at 9 s, when two ran for 6 s; one that is long after it changes nothing."""
    assert stall_s([FAST, SLOW, SLOW], answers_s=0.0, hidden_s=0.0) == 9.0 - 6.0
    assert stall_s([FAST, SLOW, SLOW, FAST], answers_s=0.0, hidden_s=0.0) == 9.0 - 6.0


def test_a_step_of_several_launches_waits_for_its_first_or_its_last():
    assert stall_s([Step(2.0, 8.0, 4)], answers_s=0.0, hidden_s=0.0) == 8.0 - 1.5
    assert stall_s([Step(8.0, 2.0, 4)], answers_s=0.0, hidden_s=0.0) == 0.5


def waits_s(phase: Phase, *, capacity: float | None = None, **plan: object) -> float:
    """What a stage of experts waits for its host in one pass."""
    experts = {"count": 4, "top_k": 2, "ffn_hidden": 64, "capacity_factor": capacity}
    model = small_model(layers=4, vocab=8, experts=experts)
    facts = {"base": "megatron-core", "host_work_per_launch": 1, **plan.pop("facts", {})}
    h100 = load_profile("h100-sxm-80gb")
    costs = StageCosts(small_job(model, profile=h100, stack=facts, **plan))
    (run,) = stage_slices(costs.job, 1)
    layers = run._replace(has_embedding=False, has_head=False, has_loss=False)
    parts = costs.work(layers, phase).parts
    return sum(part.seconds for part in parts if part.category is Category.HOST)


@pytest.mark.parametrize("capacity", [None, 1.0])
def test_capacities_leave_nothing_to_ask_for(capacity):
    asked, never = (
        waits_s(Phase.FORWARD, capacity=capacity, facts={"expert_waits": each})
        for each in ("expert", "none")
    )
    assert (asked > never) is (capacity is None)


def test_backward_asks_again_where_it_repeats_the_router():
    asks = {"expert_waits": "expert"}
    kept, repeated = (
        waits_s(Phase.BACKWARD, recompute=recompute, facts=asks) for recompute in ("none", "full")
    )
    assert repeated > kept
