"""What own runs tell: closed forms of one regime, and what several runs tell apart."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import simulator as sim
from simulator.described.load import load_profile
from simulator.program.ir import Category
from simulator.results.fit_probability import MemorySpread
from simulator.results.own_memory import MemoryLesson
from simulator.results.own_runs import CONTRADICTS, OwnRun, lesson
from simulator.results.step_error import (
    ASPECTS,
    StepError,
    job_teaching_exposure,
    teaching_exposure,
)
from tests.jobs import small_job

PRIOR = StepError(np.diag((0.1**2, 0.4**2, 0.3**2, 0.5**2)), np.full(4, 0.02**2), freedom=3.0)
COMPUTING = (1.0, 0.0, 0.0, 0.0)
EXCHANGING = (1.0, 0.0, 0.5, 0.0)


def run_of(ratio: float, exposed=COMPUTING, name: str = "run") -> OwnRun:
    return OwnRun(name, ratio, 1.0, np.array(exposed))


def test_one_run_moves_the_whole_step_as_far_as_prior_and_noise_say():
    told = lesson([run_of(1.1)], PRIOR)
    assert told.common == pytest.approx(math.log(1.1) * 0.1**2 / (0.1**2 + 0.02**2))
    assert (told.launches, told.exchanges, told.fabric) == (0.0, 0.0, 0.0)


def test_a_run_that_is_far_off_is_believed_no_more_than_one_that_is_near():
    """Published sources whose first run was twice as slow as predicted were not so throughout."""
    near, far = (lesson([run_of(ratio)], PRIOR) for ratio in (1.1, 3.0))
    believed = [told.common / math.log(ratio) for told, ratio in ((near, 1.1), (far, 3.0))]
    assert believed == pytest.approx([0.1**2 / (0.1**2 + 0.02**2)] * 2)


def test_runs_that_are_alike_in_everything_tell_of_other_jobs_as_one_does():
    """What they share, a twentieth, may be all of it, however many of them there are."""
    shared = np.full(len(ASPECTS), 0.05**2 / len(ASPECTS))
    prior = replace(PRIOR, noise=np.full(4, 1e-12), alike=shared)
    twins = [replace(run_of(1.1), traits=("7B", 8, "tp2", "bf16", 1))] * 3
    others = [replace(run, traits=(number,) * len(ASPECTS)) for number, run in enumerate(twins)]
    alone = math.log(1.1) * 0.1**2 / (0.1**2 + 0.05**2)
    assert lesson(twins[:1], prior).common == pytest.approx(alone, rel=1e-6)
    assert lesson(twins, prior).common == pytest.approx(alone, rel=1e-6)
    assert lesson(others, prior).common > alone


def test_more_runs_of_one_kind_narrow_the_band_and_move_it_further():
    one, ten = (lesson([run_of(1.1)] * n, PRIOR) for n in (1, 10))
    assert abs(ten.common - math.log(1.1)) < abs(one.common - math.log(1.1))
    widths = [error.band(np.array(COMPUTING))[1] for error in (PRIOR, one.error, ten.error)]
    assert widths == sorted(widths, reverse=True)


def test_runs_of_several_regimes_tell_exchanges_from_computing():
    runs = [run_of(1.0), run_of(1.15, EXCHANGING)] * 5
    told = lesson(runs, PRIOR)
    assert told.common == pytest.approx(0.0, abs=0.01)
    assert told.exchanges == pytest.approx(0.3, abs=0.03)
    assert told.log_slowness(np.array(EXCHANGING)) == pytest.approx(math.log(1.15), abs=0.01)


def test_a_run_that_contradicts_the_others_counts_little_and_stands_out():
    runs = [run_of(1.02), run_of(1.03), run_of(1.025), run_of(1.8, name="shared node")]
    told = lesson(runs, PRIOR)
    assert told.common == pytest.approx(math.log(1.025), abs=0.02)
    assert [abs(misfit) > CONTRADICTS for misfit in told.misfits] == [False] * 3 + [True]


@pytest.mark.parametrize("order", [(900.0, 1.02, 1.03), (1.02, 900.0, 1.03), (1.02, 1.03, 900.0)])
@pytest.mark.parametrize("other", [EXCHANGING, (1.0, 0.4, 0.08, 0.0)])
def test_a_run_a_thousand_times_off_does_not_move_what_the_others_agree_on(order, other):
    runs = [run_of(order[0]), run_of(order[1], other), run_of(order[2])]
    told = lesson(runs, PRIOR)
    assert told.log_slowness(np.array(COMPUTING)) == pytest.approx(math.log(1.025), abs=0.02)


@pytest.mark.parametrize(("ratio", "is_plausible"), [(7.9, True), (1 / 7.9, True), (8.1, False)])
def test_a_run_is_plausible_up_to_eight_times_its_prediction_either_way(ratio, is_plausible):
    assert run_of(ratio).is_plausible is is_plausible


def test_runs_count_in_full_until_one_contradicts_the_others():
    """Noise of a seventh: a third more is what runs of other layouts may be off by."""
    prior = StepError(PRIOR.covariance, np.full(4, 0.15**2), PRIOR.freedom)
    told = lesson([run_of(1.0)] * 2 + [run_of(1.3)], prior)
    of_their_mean = math.log(1.3) / 3 * 0.1**2 / (0.1**2 + 0.15**2 / 3)
    assert told.common == pytest.approx(of_their_mean)


def test_runs_that_disagree_leave_more_open_than_runs_that_agree():
    agree, differ = (
        lesson([run_of(1.1 / spread), run_of(1.1), run_of(1.1 * spread)], PRIOR)
        for spread in (1.0, 1.3)
    )
    exposed = np.array(COMPUTING)
    assert differ.error.band(exposed)[1] > agree.error.band(exposed)[1]


def test_no_host_waits_less_than_nothing():
    told = lesson([run_of(1.0), run_of(0.8, (1.0, 1.0, 0.0, 0.0))], PRIOR)
    assert told.launches == 0.0


def test_a_fabric_that_weighs_little_in_known_runs_is_not_said_to_be_several_times_as_slow():
    """Two runs that it hardly weighs in differ by a twelfth; what is common takes the rest."""
    wide = StepError(np.diag((0.1**2, 0.4**2, 0.3**2, 1.8**2)), PRIOR.noise, PRIOR.freedom)
    told = lesson([run_of(1.05), run_of(1.14, (1.0, 0.0, 0.0, 0.03))], wide)
    assert told.fabric == 0.25
    assert told.common > lesson([run_of(1.05)], wide).common


def test_the_covariance_that_is_left_is_one():
    exposed = np.random.default_rng(3).random((6, 4))
    exposed[:, 0] = 1.0
    runs = [run_of(0.9 + 0.05 * number, weights) for number, weights in enumerate(exposed)]
    left = lesson(runs, PRIOR).error.covariance
    assert np.allclose(left, left.T)
    assert np.linalg.eigvalsh(left).min() > 0


LARGE = {
    "model": "llama3-8b",
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
    "batch": {"global": 8, "micro": 1, "seq_len": 8192},
    "plan": {"tp": 8},
}


def test_slowness_multiplies_kernels_and_exchanges():
    job = sim.load_job(LARGE)
    before = sim.simulate(job).breakdown_s
    slower = {"cluster.kernels.slowness": 2.0, "cluster.network.scale_up.slowness": 3.0}
    after = sim.simulate(job.replace(slower)).breakdown_s
    assert after[Category.FORWARD] == pytest.approx(2 * before[Category.FORWARD], rel=1e-3)
    assert after[Category.TENSOR_PARALLEL] > 2.5 * before[Category.TENSOR_PARALLEL]


def test_waits_are_added_layer_by_layer_where_a_host_twice_as_slow_is_not_hidden():
    """Of 3 ms per layer, the share by which the layer is shorter than 2 x 3.6 ms."""
    job = sim.load_job(LARGE)
    before = sim.simulate(job).breakdown_s
    waiting = sim.simulate(job.replace({"cluster.host.layer_wait": "3 ms"})).breakdown_s
    passes = job.microbatches * job.model.layers
    device = (Category.FORWARD, Category.BACKWARD, Category.RECOMPUTE, Category.TENSOR_PARALLEL)
    layer_s = sum(before.get(kind, 0.0) for kind in device) / passes
    assert layer_s < 2 * 3.6e-3
    added_s = waiting[Category.HOST] - before.get(Category.HOST, 0.0)
    assert added_s == pytest.approx(passes * 3e-3 * (1 - layer_s / (2 * 3.6e-3)), rel=0.05)


def test_a_step_whose_layers_hide_a_slow_host_tells_only_how_fast_the_rest_is():
    """Layers of 10 ms: a host would have to be three times as slow as usual to be waited for."""
    long = teaching_exposure(3.2, {Category.FORWARD: 1.0, Category.BACKWARD: 2.2}, 320)
    told = lesson([run_of(1.2, long)], PRIOR)
    assert long[1] == told.launches == 0.0
    short = teaching_exposure(0.64, {Category.FORWARD: 0.2, Category.BACKWARD: 0.44}, 320)
    assert short[1] == pytest.approx((320 * 3.6e-3 - 0.64 / 2) / 0.64)
    assert lesson([run_of(1.2, short)], PRIOR).launches > 0.0


def test_exchanges_inside_layers_hide_the_host_as_computing_does():
    computing = teaching_exposure(0.64, {Category.FORWARD: 0.64}, 320)
    exchanging = {Category.FORWARD: 0.44, Category.TENSOR_PARALLEL: 0.2}
    assert teaching_exposure(0.64, exchanging, 320)[1] == pytest.approx(computing[1])
    assert computing[1] > 0


def test_no_gpu_is_said_to_hold_less_than_nothing_beside_its_tensors():
    profile = load_profile("h100-sxm-80gb")
    memory = MemoryLesson(-2 * profile.device.context_bytes, MemorySpread(0.1, 3), runs=1)
    less = replace(lesson([run_of(1.0)], PRIOR), memory=memory)
    assert less.fields(profile, "torch", 1)["device.context"] == "0 MiB"


def test_runs_on_one_node_tell_nothing_of_the_fabric() -> None:
    breakdown = {Category.FORWARD: 6.0, Category.TENSOR_PARALLEL: 1.0, Category.DATA_PARALLEL: 3.0}
    one, two = (
        job_teaching_exposure(small_job(gpus=gpus, global_batch=gpus, zero=3), 10.0, breakdown)
        for gpus in (4, 8)
    )
    assert (one[2], one[3]) == pytest.approx((0.4, 0.0))
    assert (two[2], two[3]) == pytest.approx((0.1, 0.3))
