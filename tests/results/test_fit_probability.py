"""Is the probability that a run has enough memory right, and does it know its limits?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.load import job_from_document, load_job
from simulator.errors import InputError
from simulator.results.fit_probability import (
    Fit,
    MemorySpread,
    allowed_device_bytes,
    fit_of,
    fit_text,
    job_spread,
    memory_spread,
    misfit_text,
    out_of_memory_probability,
)
from simulator.results.simulation import run_step

GIB = 2.0**30
QWEN_32B = {
    "hidden": 5120, "ffn_hidden": 27648, "heads": 40, "kv_heads": 8, "vocab": 152064,
    "gated_mlp": True,
}  # fmt: skip


def job_of_32b(layers: int):
    return job_from_document(
        {
            "model": {**QWEN_32B, "layers": layers},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
            "batch": {"global": 8, "micro": 1, "seq_len": 4096},
            "plan": {"tp": 8, "recompute": "none"},
        }
    )


def test_what_is_predicted_to_fill_the_device_is_as_likely_to_fit_as_not():
    assert MemorySpread(0.1, 2).probability(80 * GIB, 80 * GIB) == 0.5


def test_where_half_of_all_runs_hold_more_than_is_predicted_so_does_a_run_of_even_odds():
    spread = MemorySpread(0.1, 3, centre=math.log(1.25))
    assert spread.probability(64 * GIB, 80 * GIB) == pytest.approx(0.5)
    assert spread.allowed_bytes(80 * GIB, 0.5) == pytest.approx(64 * GIB)


@given(
    spread=st.builds(MemorySpread, st.floats(0.01, 0.5), st.integers(1, 9), st.floats(-0.1, 0.2)),
    probability=st.floats(0.01, 0.999),
)
def test_what_is_allowed_has_at_least_the_probability_that_is_asked(spread, probability):
    allowed = spread.allowed_bytes(80 * GIB, probability)
    assert spread.probability(allowed, 80 * GIB) == pytest.approx(probability, abs=1e-9)
    assert spread.probability(0.99 * allowed, 80 * GIB) > probability


def test_a_framework_or_a_device_that_nobody_measured_makes_it_less_sure():
    known = memory_spread("megatron-core", ["h100-sxm-80gb"])
    for unknown in (
        memory_spread("internevo", ["h100-sxm-80gb"]),
        memory_spread("megatron-core", ["h100-sxm-80gb", "my-cluster"]),
    ):
        assert unknown.scale > known.scale
        assert unknown.probability(60 * GIB, 80 * GIB) < known.probability(60 * GIB, 80 * GIB)
        assert unknown.probability(99 * GIB, 80 * GIB) > known.probability(99 * GIB, 80 * GIB)


@pytest.mark.parametrize(
    ("probability", "fit"),
    [
        (0.95, Fit.FITS),
        (0.94, Fit.TIGHT),
        (0.50, Fit.TIGHT),
        (0.49, Fit.UNLIKELY),
        (0.06, Fit.UNLIKELY),
        (0.05, Fit.DOES_NOT_FIT),
    ],
)
def test_between_running_and_running_out_for_sure_the_verdict_is_the_likelier_one(probability, fit):
    assert fit_of(probability) is fit


def test_what_a_run_lacks_is_said_under_the_same_verdict():
    assert fit_text(0.61) == "tight (61 % likely to fit)"
    assert fit_text(0.9964) == "fits (over 99 % likely to fit)"
    assert fit_text(0.19) == "probably does not fit (19 % likely to fit)"
    assert misfit_text(0.19) == "Probably does not fit (19 % likely to fit)"
    assert misfit_text(0.01) == "Does not fit"


def test_reserved_memory_grows_past_the_end_of_the_device():
    """A clamp would say that 62, 63 and 64 layers need as much as there is."""
    steps = [run_step(job_of_32b(layers), "replay") for layers in (62, 63, 64)]
    needs = [step.peak_device_bytes for step in steps]
    assert needs == sorted(set(needs))
    assert needs[-1] > steps[-1].capacity_bytes
    assert [step.fits for step in steps][1:] == [False, False]
    probabilities = [step.fits_probability for step in steps]
    assert probabilities == sorted(set(probabilities), reverse=True)
    assert all(step.fit is not Fit.FITS for step in steps)


def test_what_an_allocator_can_return_is_told_beside_what_it_would_hold():
    step = run_step(job_of_32b(64), "replay")
    fullest = step.fullest
    outside = sum(fullest.outside.values())
    assert fullest.peak_allocated_bytes + outside <= fullest.least_device_bytes
    assert fullest.least_device_bytes < fullest.peak_device_bytes


def test_the_shares_of_a_device_sum_to_what_it_holds_to_the_byte():
    job = job_of_32b(40).replace({"cluster.gpus": 32, "plan.pp": 2, "plan.tp": 4})
    for memory in run_step(job, "replay").memory:
        names = set(memory.device_shares)
        assert {"context", "unused by the allocator", "communicator: tensor"} <= names
        assert math.fsum(memory.device_shares.values()) == memory.peak_device_bytes


def test_the_spread_of_a_job_is_that_of_its_stack():
    job = job_of_32b(2)
    assert job_spread(job) == memory_spread("megatron-core", ["h100-sxm-80gb"])
    other = job.replace({"plan": {"stack": {"base": "jax", "dropout": True}}})
    assert job_spread(other) == memory_spread("jax", ["h100-sxm-80gb"])


@pytest.mark.parametrize("risk", [-1.0, 0.0, 1.0, 2.0])
def test_a_risk_that_no_prediction_can_have_is_refused(risk):
    with pytest.raises(InputError, match=r"risk = .*must be above 0 and below 1"):
        allowed_device_bytes(load_job("llama3-8b-8xh100"), risk)


SURE = MemorySpread(1e-9, 4)


@pytest.mark.parametrize(("steps", "expected"), [(1, 0.25), (2, 1 - 0.75**2), (100, 1.0)])
def test_steps_run_out_one_by_one_where_predictions_are_right(steps, expected):
    found = out_of_memory_probability([1.0, 1.0, 1.0, 3.0], 2.0, SURE, steps)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("steps", [1, 1000])
def test_more_steps_run_out_no_more_often_where_they_are_all_alike(steps):
    spread = MemorySpread(0.1, 4)
    found = out_of_memory_probability([1.0] * 8, 1.1, spread, steps)
    assert found == pytest.approx(1 - spread.probability(1.0, 1.1), abs=1e-9)


def test_the_more_steps_the_likelier_one_runs_out():
    """Also where even the smallest peak is far above what there is."""
    spread = MemorySpread(0.1, 4)
    for peaks in ([1.0, 1.05, 1.2], [6.5, 6.5, 6.6]):
        found = [out_of_memory_probability(peaks, 1.1, spread, n) for n in (1, 2, 100, 10_000)]
        assert found == sorted(found)
        each = [1 - spread.probability(peak, 1.1) for peak in peaks]
        assert found[0] == pytest.approx(sum(each) / 3)
