"""Switch tiers in whole steps: up-links are ports that all groups of a stage share."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.job import Job
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.program.build import build_program
from tests.jobs import FABRIC, jobs, network_profile, small_job


def below_leafs(oversubscription: float, load: float = 0.0) -> HardwareProfile:
    """Two nodes of four GPUs below each leaf, two leafs to a pod."""
    leaf = {"gpus": 8, "oversubscription": oversubscription, "background_load": load}
    return network_profile(fabric={"leaf": leaf, "pod": {"gpus": 16}})


def on(job: Job, profile: HardwareProfile) -> Job:
    cluster = job.cluster.model_copy(update={"profile": profile})
    return job.model_copy(update={"cluster": cluster})


@given(jobs(profile=below_leafs(1.0)), st.floats(1.0, 16.0), st.floats(0.0, 0.9))
@settings(deadline=None, max_examples=25)
def test_narrower_and_busier_uplinks_never_make_a_step_faster(job, oversubscription, load):
    wide = replay(build_program(job)).step_time_s
    narrow = replay(build_program(on(job, below_leafs(oversubscription, load)))).step_time_s
    assert narrow >= wide * (1 - 1e-12)


@given(jobs(profile=below_leafs(4.0)))
@settings(deadline=None, max_examples=25)
def test_sharing_uplinks_never_makes_a_step_faster(job):
    program = build_program(job)
    assert replay(program).step_time_s <= simulate_program(program).step_time_s * (1 + 1e-9)


def test_a_tier_without_oversubscription_changes_nothing():
    job = small_job(gpus=32, tp=4, pp=2)
    shaped = build_program(on(job, below_leafs(1.0)))
    assert simulate_program(shaped).step_time_s == simulate_program(build_program(job)).step_time_s


def test_a_group_below_one_leaf_is_as_fast_as_before_and_one_above_is_slower():
    """Ranks 0 and 4 share a leaf; with four copies, half of the hops leave it."""

    def step_s(dp: int, oversubscription: float) -> float:
        job = small_job(gpus=4 * dp, tp=4, profile=below_leafs(oversubscription))
        return replay(build_program(job)).step_time_s

    assert step_s(2, 8.0) == step_s(2, 1.0)
    assert step_s(4, 8.0) > step_s(4, 1.0)


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])
def test_the_rank_order_decides_who_pays_for_narrow_uplinks(order):
    """Whichever is numbered last is spread over the leafs."""
    profile = below_leafs(8.0)
    job = small_job(gpus=16, tp=4, pp=2, profile=profile, rank_order=order)
    program = build_program(job)
    climbing = {
        str(op.category)
        for op in program.operations
        if op.work.traffic and op.work.traffic.port_bytes.get("leaf_uplink")
    }
    assert climbing == ({"pipeline"} if order.endswith("pp") else {"data_parallel"})


def test_capacities_of_uplinks_are_those_of_the_tiers():
    ports = build_program(small_job(gpus=32, tp=4, profile=below_leafs(4.0, 0.5))).ports
    assert FABRIC["nic"] == "1 GB/s"
    assert ports == {
        "scale_up": 1e9, "fabric": 1e9, "leaf_uplink": 0.125e9, "pod_uplink": 0.25e9,
    }  # fmt: skip
