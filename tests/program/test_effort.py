"""Is it said how long a step takes to simulate, before it is tried?"""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.program.build import build_program, steps_around
from simulator.program.effort import Effort, step_effort

LLAMA = {
    "model": {"base": "llama3.1-8b"},
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 64},
    "batch": {"global": 512, "seq_len": 4096},
}
STEPS = {
    "pipeline": {"plan.pp": 8},
    "chunks": {"plan.pp": 8, "plan.vpp": 4, "plan.schedule": "interleaved-1f1b"},
    "layers gathered": {"plan.zero": 3},
    "gathered in a pipeline": {"plan.zero": 3, "plan.pp": 4},
    "a slow GPU": {"plan.pp": 8, "perturbations": [{"gpu": 3, "slowdown": 0.2}]},
    "uneven experts": {"model.base": "mixtral-8x7b", "plan.ep": 8, "plan.expert_load": {"zipf": 1}},
}


@pytest.mark.parametrize("changes", STEPS.values(), ids=STEPS)
def test_the_work_of_a_step_follows_from_its_operations(changes):
    job = sim.load_job(LLAMA, changes)
    operations = len(build_program(job, steps=steps_around(job).total).operations)
    assert 0.3 < step_effort(job).num_bytes / (1300 * operations) < 3


def test_every_rank_by_itself_is_more_work_by_as_many_as_stand_for_one():
    job = sim.load_job(LLAMA, {"plan.pp": 8})
    ratio = step_effort(job, unfolded=True).num_bytes / step_effort(job).num_bytes
    assert ratio == 8


def test_work_is_said_in_minutes_and_gigabytes():
    assert str(Effort(240.0, 6.1 * 2**30)) == "about 4 min and 6 GiB"


def test_somebody_is_asked_before_a_minute_of_work_or_four_gibibytes_are_spent():
    gib = 2**30
    assert not Effort(60.0, 4.0 * gib).is_large()
    assert Effort(61.0, 1.0 * gib).is_large()
    assert Effort(1.0, 4.1 * gib).is_large()
    assert Effort(1.0, 1.0 * gib).times(61).is_large()
