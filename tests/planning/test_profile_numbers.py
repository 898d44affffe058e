"""Which number of the profile matters most?"""

from __future__ import annotations

from contextlib import suppress

import pytest

from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning.changes.profile_numbers import _read_numbers, sensitivities
from simulator.planning.changes.single_changes import number_change, profile_numbers
from simulator.results.simulation import StepTimes, run_step
from tests.jobs import FAST_HOST

JOB = {
    "model": {"layers": 2, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 32000},
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
    "batch": {"global": 16, "seq_len": 2048},
    "plan": {"tp": 2, "stack": FAST_HOST},
}


@pytest.fixture(scope="module")
def found():
    return sensitivities(job_from_document(JOB), engine="replay")


def test_each_change_is_that_of_the_edited_profile(found):
    job = job_from_document(JOB)
    base_s = run_step(job, "replay").step_time_s
    by_field = {each.field: each for each in found}
    bandwidth = by_field["device.memory_bandwidth"]
    edited = job.replace({"cluster.device.memory_bandwidth": "3015 GB/s"})
    change = run_step(edited, "replay").step_time_s / base_s - 1
    assert bandwidth.lower == pytest.approx(change, rel=1e-9)
    assert bandwidth.lower > 0 > bandwidth.higher


def test_the_largest_effect_comes_first_and_what_is_not_used_has_none(found):
    effects = [each.effect for each in found]
    assert effects == sorted(effects, reverse=True)
    by_field = {each.field: each for each in found}
    assert by_field["kernels.gemm.fp8.efficiency"].effect == 0
    assert by_field["device.power"].effect == 0
    assert by_field["kernels.gemm.bf16.efficiency"].effect > 0.003


@pytest.mark.parametrize("engine", ["replay", "des"])
def test_numbers_that_no_step_reads_change_nothing(engine):
    job = job_from_document(JOB)
    steps, numbers = StepTimes(job, engine), profile_numbers(job.cluster.profile)
    read = _read_numbers(job, engine)
    assert "kernels.gemm.bf16.efficiency" in read
    assert "kernels.gemm.fp8.efficiency" not in read
    never_read = [field for field in numbers if field not in read]
    assert len(never_read) > 40
    for field in never_read:
        with suppress(InputError):  # some profiles must not have
            changed = job.replace(number_change(field, numbers[field], 0.9).fields)
            assert steps.of(changed) == steps.step_time_s


def test_factors_that_only_own_runs_set_are_no_numbers_to_calibrate(found):
    assert not [each.field for each in found if each.field.endswith("slowness")]


def test_every_number_says_where_it_is_from_and_shares_stay_shares(found):
    by_field = {each.field: each for each in found}
    assert by_field["kernels.gemm.bf16.efficiency"].source == "fitted"
    assert by_field["device.memory_bandwidth"].source == "datasheet"
    for field in ("network.fabric.efficiency", "network.scale_up.low_latency_share"):
        assert (by_field[field].higher is None) == (1.1 * by_field[field].value > 1)
