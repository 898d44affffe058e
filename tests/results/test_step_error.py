"""Bands of predicted steps: closed forms of the model, and what must widen them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import simulator as sim
from simulator.described.load import load_profile, profile_names
from simulator.program.ir import Category
from simulator.results.step_error import (
    ASPECTS,
    EAGER,
    EXPERTS,
    REGIMES,
    FrameworkError,
    StepError,
    alike_covariance,
    exposure,
    framework_of,
    job_error,
    shipped_errors,
    traits_of,
)

JOB = {
    "model": "llama3-8b",
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
    "batch": {"global": 16, "micro": 1, "seq_len": 4096},
    "plan": {"tp": 2},
}
COMPUTING = np.array((1.0, 0.0, 0.0, 0.0))


def half_width(job: sim.Job) -> float:
    """Logarithm of the slow end of a job's band over its step."""
    result = sim.simulate(job, engine="replay")
    low, high = result.step_time_band_s
    assert low * high >= result.step_time_s**2 * (1 - 1e-9)
    return math.log(high / result.step_time_s)


def test_no_interval_begins_before_the_computation_at_its_quickest():
    """Half of the step computes and is off by little; the rest may be far off."""
    error = StepError(np.diag([0.01, 0.0, 0.0, 4.0]), np.zeros(4), 1e6)
    half_exposed = np.array([1.0, 0.0, 0.0, 0.5])
    free, slowest = error.band(half_exposed)
    least, same = error.band(half_exposed, computed=0.5)
    assert free < least
    assert least == pytest.approx(0.5 * math.exp(-1.2816 * 0.1), rel=1e-3)
    assert slowest == same
    assert error.band(np.array([1.0, 0.0, 0.0, 0.0]), 0.9) == error.band(np.array([1.0, 0, 0, 0]))


def test_a_band_reaches_the_quantile_times_the_standard_deviation():
    """3 % and 4 % of a whole step are 5 %, and the normal distribution reaches 1.28 of them."""
    error = StepError(np.diag((0.03**2, 1.0, 1.0, 1.0)), np.full(4, 0.04**2), freedom=1e9)
    assert math.log(error.band(COMPUTING)[1]) == pytest.approx(1.2816 * 0.05, rel=1e-3)


def test_a_regime_weighs_with_its_share_of_the_step():
    error = StepError(np.diag((0.0, 0.0, 0.3**2, 0.0)), np.zeros(4), freedom=1e9)
    quarter = np.array((1.0, 0.0, 0.25, 0.0))
    assert error.variance(quarter) == pytest.approx((0.25 * 0.3) ** 2)


def test_exposure_is_the_share_of_what_is_waited_for():
    breakdown = {
        Category.FORWARD: 4.0, Category.TENSOR_PARALLEL: 2.0, Category.EXPERT_PARALLEL: 1.0,
        Category.DATA_PARALLEL: 2.0, Category.HOST: 1.0,
    }  # fmt: skip
    assert exposure(10.0, breakdown, layer_passes=0) == pytest.approx((1.0, 0.1, 0.3, 0.2))


def test_no_regime_weighs_more_than_the_whole_step():
    error = StepError(np.diag((0.0, 0.3**2, 0.0, 0.0)), np.zeros(4), freedom=1e9)
    assert error.variance(np.array((1.0, 5.0, 0.0, 0.0))) == pytest.approx(0.3**2)


def test_every_regime_has_its_sizes():
    model = shipped_errors()
    assert tuple(model.spread) == tuple(model.noise) == (*REGIMES, EXPERTS)
    assert tuple(model.numbers) == REGIMES


def test_what_experts_add_is_of_the_whole_step():
    model = replace(
        shipped_errors(),
        spread=dict.fromkeys(REGIMES, 0.03) | {EXPERTS: 0.04},
        noise=dict.fromkeys(REGIMES, 0.0) | {EXPERTS: 0.12},
        alike=dict.fromkeys(ASPECTS, 0.0),
    )
    dense, mixed = (model.error_of((), "unknown", has_experts=has) for has in (False, True))
    assert dense.scale(COMPUTING) == pytest.approx(0.03)
    assert mixed.scale(COMPUTING) == pytest.approx(0.13)


def test_a_model_with_experts_has_a_wider_band_than_a_dense_one():
    experts = {"count": 8, "top_k": 2, "ffn_hidden": 14336}
    dense = sim.load_job(JOB)
    mixed = dense.replace(**{"model.experts": experts})
    assert job_error(mixed).scale(COMPUTING) > job_error(dense).scale(COMPUTING)


def test_every_number_that_steps_follow_stands_in_a_profile():
    provenance = load_profile("h100-sxm-80gb").provenance
    paths = [n.path for n in shipped_errors().open_numbers(load_profile("h100-sxm-80gb"), "bf16")]
    assert [path for path in paths if path not in provenance] == []


def test_what_alike_runs_share_is_open_for_a_run_that_none_is_like():
    """3 % of a source, 4 % of a run, 12 % of its network are 13 %."""
    alike = np.array((0.12**2, 0.0, 0.0, 0.0, 0.0))
    error = StepError(np.diag((0.03**2, 0, 0, 0)), np.full(4, 0.04**2) * COMPUTING, 5.0, alike)
    assert error.scale(COMPUTING) == pytest.approx(0.13)


def test_alike_runs_share_what_they_are_alike_in():
    alike = np.array((1.0, 2.0, 4.0, 8.0, 16.0))
    traits = [("7B", 8, "tp2", "bf16", 1), ("7B", 16, "tp2", "fp8", 1), ()]
    shared = alike_covariance(traits, alike)
    assert shared.tolist() == [[31.0, 21.0, 0.0], [21.0, 31.0, 0.0], [0.0, 0.0, 31.0]]


def test_jobs_of_one_network_and_batch_on_more_gpus_are_alike_but_for_these():
    job = sim.load_job(JOB)
    more = traits_of(job.replace(**{"cluster.gpus": 16}))
    assert [one == other for one, other in zip(traits_of(job), more, strict=True)] == [
        aspect != "gpus" for aspect in ASPECTS
    ]


def test_an_unknown_framework_has_a_wider_band_than_one_that_was_near():
    profile = load_profile("h100-sxm-80gb")
    model = replace(shipped_errors(), frameworks={"near": FrameworkError(sources=5, variance=0.5)})
    near, unknown = (model.step_error(profile, "bf16", name) for name in ("near", "none"))
    assert unknown.band(COMPUTING)[1] > near.band(COMPUTING)[1]


def test_overriding_a_number_by_a_guess_widens_the_band():
    job = sim.load_job(JOB)
    clock = job.cluster.profile.kernels.sustained_clock
    guessed = job.replace(**{"cluster.kernels.sustained_clock": clock})
    assert sim.simulate(guessed).step_time_s == sim.simulate(job).step_time_s
    assert half_width(guessed) > 1.03 * half_width(job)


def test_a_system_whose_clock_and_products_are_assumed_has_a_band_of_a_quarter_at_least():
    model = shipped_errors()
    for profile in map(load_profile, profile_names()):
        precision = "fp16" if profile.device.peak.bf16_flop_per_s is None else "bf16"
        kinds = {n.path: n.kind for n in model.open_numbers(profile, precision)}
        decisive = ("kernels.sustained_clock", f"kernels.gemm.{precision}.efficiency")
        if all(kinds[path] == "assumed" for path in decisive):
            for framework in ("megatron-core", "torch-fsdp", "unknown"):
                error = model.step_error(profile, precision, framework)
                assert error.band(COMPUTING)[1] >= 1.25, profile.name


def test_a_model_of_eager_kernels_is_a_framework_of_its_own():
    job = sim.load_job(JOB)
    assert framework_of(job) == "megatron-core"
    stack = {"base": "torch-fsdp", "fused_rmsnorm": False}
    assert framework_of(job.replace(**{"plan.stack": stack, "plan.tp": 1})) == EAGER


def test_clusters_of_several_kinds_have_no_band():
    pools = [{"profile": name, "gpus": 8} for name in ("a100-sxm-80gb", "h100-sxm-80gb")]
    job = sim.load_job({**JOB, "cluster": {"pools": pools}})
    assert sim.simulate(job, engine="replay").step_time_band_s is None
