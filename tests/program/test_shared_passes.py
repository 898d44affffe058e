"""What ranks that hold equal layers share changes no operation of any of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import simulator as sim
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice
from simulator.program.grid.stand_ins import StandIns
from simulator.program.states.pipeline_ranks import PipelineRanks
from tests.jobs import jobs


def alone(job, steps):
    """The program of ranks that share nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineRanks, "stand_ins", StandIns())
        return build_program(job, steps=steps)


@given(jobs())
@settings(max_examples=120, deadline=None)
def test_programs_are_the_same_operation_for_operation(job):
    assert build_program(job, steps=2) == alone(job, 2)


@pytest.mark.parametrize(
    "plan",
    [
        {"plan.pp": 16, "plan.tp": 8},
        {"plan.pp": 16, "plan.tp": 8, "plan.schedule": "zb-h1", "plan.zero": 0},
        {"plan.pp": 16, "plan.tp": 8, "plan.schedule": "pipedream", "plan.zero": 0},
        {"plan.pp": 8, "plan.tp": 8, "plan.vpp": 2, "plan.zero": 2, "plan.stack": "torchtitan"},
        {"plan.pp": 8, "plan.tp": 8, "plan.first_bf16_layers": 20, "plan.precision": "fp8"},
        {"plan.pp": 8, "plan.tp": 8, "plan.recompute": "full", "plan.recompute_layers": 5},
        {"plan.pp": 8, "plan.tp": 8, "perturbations": [{"gpu": 70, "slowdown": 0.2}]},
    ],
    ids=str,
)
def test_long_pipelines_are_the_same_operation_for_operation(plan):
    job = sim.load_job(
        "llama3-70b-64xh100", {"plan.vpp": 1, "plan.cp": 1, "cluster.gpus": 256} | plan
    )
    assert build_program(job, steps=2) == alone(job, 2)


def test_most_ranks_add_what_the_second_one_added():
    """Their operations hold the very blocks of that one, not equal ones."""
    job = sim.load_job(
        "llama3-70b-64xh100", {"plan.vpp": 1, "plan.pp": 8, "plan.tp": 8, "plan.cp": 1}
    )
    program = build_program(job)
    kept = {id(each.takes) for each in program.operations if each.takes and each.lanes[0][0] == 1}
    third = [each.takes for each in program.operations if each.takes and each.lanes[0][0] == 2]
    assert third
    assert {id(takes) for takes in third} <= kept


def test_equal_layers_stand_for_those_of_later_ranks_and_ends_for_themselves():
    runs = [[Slice(0, 2, has_embedding=True)], [Slice(2, 4)], [Slice(4, 6)], [Slice(6, 7)]]
    stand_ins = StandIns(runs, "aabbbbb")
    assert [stand_ins.of(run) for (run,) in runs] == [
        *(run for (run,) in runs[:2]),
        *runs[1],
        *runs[3],
    ]
    assert [stand_ins.leader(rank) for rank in range(4)] == [None, 1, 1, None]
    assert stand_ins.shown(2, Slice(3, 4)) == (5, 6)
    assert stand_ins.shown(1, Slice(3, 4)) == (3, 4)


def test_unlike_layers_stand_for_themselves():
    runs = [[Slice(0, 2)], [Slice(2, 4)]]
    assert StandIns(runs, "aaab").leader(1) is None
