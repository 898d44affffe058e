"""How far do exchanges of experts hide beside the pass of another microbatch?"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.cluster.hardware import HardwareProfile
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category
from simulator.program.price.stage_cost import StageCosts
from simulator.results.simulation import run_step
from simulator.schedule import Phase
from tests.jobs import FAST_HOST, network_profile, small_job
from tests.program.test_experts import expert_job, expert_model


def expert_seconds(
    phase: Phase, profile: HardwareProfile, *, beside: Phase | None = None, **plan: Any
) -> dict[bool, float]:
    """Time of a layer's pass: exposed exchanges (True) and everything else (False).

    Where it runs beside another pass, of the same layer.
    """
    plan = {"stack": FAST_HOST} | plan
    costs, layer = StageCosts(expert_job(ep=8, profile=profile, **plan)), Slice(0, 1)
    exposed = costs.exposed_share(layer, phase, layer, beside) if beside else 1.0
    parts = costs.work(layer, phase, exposed).parts
    is_exchange = [part.category is Category.EXPERT_PARALLEL for part in parts]
    return {
        kind: sum(p.seconds for p, is_one in zip(parts, is_exchange, strict=True) if is_one is kind)
        for kind in (True, False)
    }


def with_idle_memory(profile: HardwareProfile) -> HardwareProfile:
    """The profile with communication that takes multiprocessors only."""
    alone = {"memory_accesses_per_link_byte": 1e-9}
    return profile.model_copy(update={"common": profile.common.model_copy(update=alone)})


def test_exchanges_longer_than_the_other_microbatchs_pass_stick_out_by_the_rest():
    slow = with_idle_memory(network_profile({"bandwidth": "10 MB/s"}, {"nic": "10 MB/s"}))
    plain = {phase: expert_seconds(phase, slow) for phase in (Phase.FORWARD, Phase.BACKWARD)}
    for phase, other in ((Phase.FORWARD, Phase.BACKWARD), (Phase.BACKWARD, Phase.FORWARD)):
        hidden = expert_seconds(phase, slow, beside=other, overlap_ep=True)
        rest = plain[phase][True] - plain[other][False]
        assert rest > 0
        assert hidden[True] == pytest.approx(rest)
        assert hidden[False] == plain[phase][False]


def test_nothing_hides_where_the_plan_says_so():
    slow = network_profile({"bandwidth": "10 MB/s"}, {"nic": "10 MB/s"})
    alone = expert_seconds(Phase.FORWARD, slow)
    beside = expert_seconds(Phase.FORWARD, slow, beside=Phase.BACKWARD, overlap_ep=False)
    assert beside == alone


def test_hidden_exchanges_slow_the_other_microbatch_by_the_multiprocessors_they_hold():
    """One of the four multiprocessors."""
    fast = with_idle_memory(network_profile({"bandwidth": "1 TB/s"}, {"nic": "1 TB/s"}))
    plain = expert_seconds(Phase.FORWARD, fast)
    hidden = expert_seconds(Phase.FORWARD, fast, beside=Phase.BACKWARD, overlap_ep=True)
    assert hidden[True] == pytest.approx(plain[True] / 4, rel=1e-4)


@pytest.mark.parametrize(("schedule", "vpp"), [("dualpipe", 1), ("dualpipev", 2)])
def test_joint_passes_of_dualpipe_hide_the_exchanges_of_experts(schedule, vpp):
    """As much as sticks out of no pair, pair by pair: less exposed, never negative."""
    model = expert_model().model_copy(update={"layers": 8})
    sizes = {"gpus": 16, "global_batch": 128, "ep": 4, "pp": 4}
    profile = with_idle_memory(network_profile())
    plan = {"schedule": schedule, "vpp": vpp, "profile": profile, "stack": FAST_HOST}
    hidden = run_step(small_job(model, **sizes, **plan), "replay")
    open_ = run_step(small_job(model, **sizes, **plan, overlap_ep=False), "replay")
    exchange = Category.EXPERT_PARALLEL
    assert 0 < hidden.breakdown_s[exchange] < open_.breakdown_s[exchange] / 2
    assert hidden.step_time_s < open_.step_time_s


def test_schedules_without_joint_passes_have_nothing_to_hide_behind():
    model = expert_model().model_copy(update={"layers": 8})
    sizes = {"gpus": 16, "global_batch": 128, "ep": 4, "pp": 4}
    left_out = run_step(small_job(model, **sizes), "replay")
    off = run_step(small_job(model, **sizes, overlap_ep=False), "replay")
    assert left_out.step_time_s == off.step_time_s
