"""Are steps of jobs that differ a little what each would be by itself?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simulator.described.load import load_job
from simulator.engine.des import LimitError
from simulator.engine.replay import is_timed_alike
from simulator.program.build import build_program
from simulator.results import simulation
from simulator.results.simulation import KeptSteps, StepTimes, run_step

JOB = load_job("llama3-8b-8xh100", {"batch.global": 16})
UNFELT = {"cluster.kernels.gemm.fp8.efficiency": 0.5}
FELT = {"cluster.kernels.memory_efficiency": 0.5}


@pytest.mark.parametrize("engine", ["des", "replay"])
@pytest.mark.parametrize("changes", [{}, UNFELT, FELT, {"plan.tp": 4}, {"batch.micro": 2}])
def test_the_step_of_a_changed_job_is_that_of_its_own_simulation(engine, changes):
    changed = JOB.replace(changes)
    assert StepTimes(JOB, engine).of(changed) == run_step(changed, engine).step_time_s


def test_a_step_between_others_is_cut_out_of_them():
    job = JOB.replace({"plan.pp": 2, "plan.zero": 0, "plan.schedule": "pipedream"})
    steps = StepTimes(job, "des")
    assert steps.step_time_s == run_step(job).step_time_s
    assert steps.of(job.replace(FELT)) == run_step(job.replace(FELT)).step_time_s


def test_a_change_that_no_operation_feels_is_not_simulated_again(monkeypatch):
    steps = StepTimes(JOB, "des")

    def simulate_program(_: object) -> None:
        pytest.fail("simulated again")

    monkeypatch.setattr(simulation, "simulate_program", simulate_program)
    assert steps.of(JOB.replace(UNFELT)) == steps.step_time_s


@pytest.mark.parametrize("changes", [UNFELT, FELT, {"plan.recompute": "full"}])
def test_a_step_beside_others_is_what_it_is_by_itself(changes):
    kept, changed = KeptSteps(), JOB.replace(changes)
    run_step(JOB, kept=kept)
    beside, alone = run_step(changed, kept=kept), run_step(changed)
    assert (beside.step_time_s, beside.breakdown_s) == (alone.step_time_s, alone.breakdown_s)
    assert beside.peak_device_bytes == alone.peak_device_bytes


@pytest.mark.parametrize("engine", ["des", "replay"])
def test_a_step_that_is_not_shorter_than_asked_is_given_up(engine):
    step_s = run_step(JOB, engine).step_time_s
    with pytest.raises(LimitError):
        run_step(JOB, engine, below_s=step_s)
    assert run_step(JOB, engine, below_s=step_s * 1.0001).step_time_s == step_s


def test_programs_whose_works_repeat_themselves_otherwise_are_not_timed_alike():
    """Equal works that are one object tell an engine what repeats itself."""
    one, other = build_program(JOB), build_program(JOB)
    [(work, _)] = Counter(id(each.work) for each in other.operations).most_common(1)
    index = next(n for n, each in enumerate(other.operations) if id(each.work) == work)
    changed = other.operations[index]
    other.operations[index] = replace(changed, work=replace(changed.work))
    assert not is_timed_alike(one, other)


@pytest.mark.parametrize(
    ("changes", "alike"), [(UNFELT, True), (FELT, False), ({"plan.tp": 4}, False), ({}, True)]
)
def test_programs_are_timed_alike_if_nothing_that_an_engine_reads_differs(changes, alike):
    assert is_timed_alike(build_program(JOB.replace(changes)), build_program(JOB)) is alike
