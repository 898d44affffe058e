"""What an allocator reserved is not asked again of an equal one."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator.exchanges import Exchange, KeptReserves, told_apart
from simulator.results.memory import reserved_memory
from simulator.results.simulation import KeptSteps, perturbation_cost, run_step

MIB = 2**20
NAME = "llama3-70b-64xh100"


def replays(kept):
    return kept.reserved_bytes.cache_info().misses


def memory_of(result):
    return [
        (each.peak_allocated_bytes, each.peak_reserved_bytes, each.least_device_bytes)
        for each in result.memory
    ]


def test_a_change_that_moves_times_alone_replays_no_allocator_and_one_of_memory_does():
    job = sim.load_job(NAME)
    faster = job.replace(**{"cluster.network.fabric.efficiency": 0.5})
    leaner = job.replace(**{"plan.recompute": "full"})
    kept = KeptSteps()
    first = run_step(job, "replay", kept=kept)
    asked = replays(kept.reserves)
    again = run_step(faster, "replay", kept=kept)
    assert replays(kept.reserves) == asked
    assert memory_of(again) == memory_of(first)
    assert again.step_time_s != first.step_time_s
    other = run_step(leaner, "replay", kept=kept)
    assert replays(kept.reserves) > asked
    assert memory_of(other) == memory_of(run_step(leaner, "replay"))


def test_stages_that_ask_for_the_same_blocks_share_one_replay():
    """Under GPipe each stage between the ends runs all forwards, then all backwards."""
    plan = {"plan.vpp": 1, "plan.schedule": "gpipe", "plan.pp": 8, "plan.tp": 8, "plan.cp": 1}
    kept = KeptSteps()
    result = run_step(sim.load_job(NAME, plan), "replay", kept=kept)
    assert len(result.memory) == 8
    assert kept.reserves.reserved_bytes.cache_info().hits >= 4


@pytest.mark.parametrize(("lingers", "asked"), [((), 1), ((30 * MIB,), 2)])
def test_a_device_that_has_room_for_all_blocks_is_not_asked_twice_unless_some_linger(
    lingers, asked
):
    """It is asked again where more than the blocks may be reserved, and that is too much."""
    kept = KeptReserves()
    step = told_apart([Exchange((50 * MIB,) * 2, (50 * MIB,) * 2, lingers=lingers)])
    reserved = reserved_memory(
        step, AllocatorSettings(), kept, resident_bytes=0.0, allocated_bytes=100.0 * MIB,
        least_bytes=140.0 * MIB, room_bytes=135.0 * MIB,
    )  # fmt: skip
    assert reserved == (140 * MIB, 100 * MIB)
    assert replays(kept) == asked


@pytest.mark.parametrize("engine", ["des", "replay"])
def test_a_step_without_slow_gpus_takes_as_long_as_when_all_of_it_is_summarised(engine):
    job = sim.load_job(NAME, {"perturbations": [{"gpu": 7, "slowdown": 0.2}]})
    cost = perturbation_cost(job, run_step(job, engine).step_time_s, engine)
    assert cost.step_time_without_s == run_step(sim.load_job(NAME), engine).step_time_s
