"""How large may microbatch, sequence and model become?"""

from __future__ import annotations

import pytest

from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning.limits import limits
from simulator.results.fit_probability import EVEN
from simulator.results.simulation import run_step

SMALL = {"layers": 8, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 32000}


def small_job(memory: str = "6 GiB", *, micro: int = 2, layers: int = 8, **plan):
    return job_from_document(
        {
            "model": {**SMALL, "layers": layers},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 4, "device": {"memory": memory}},
            "batch": {"global": 64, "micro": micro, "seq_len": 1024},
            "plan": plan,
        }
    )


def fits(job) -> bool:
    return run_step(job, "replay").fits_probability >= EVEN


def changed(job, field: str, value: int):
    changes = {field: value}
    if field == "batch.micro":
        changes["batch.global"] = value * job.dp * job.microbatches
    return job.replace(changes)


_PLANS = [
    {},
    {"pp": 2},
    {"tp": 2},
    {"zero": 3, "stack": "torchtitan"},
    {"tp": 4, "tp_method": "2d"},
]


@pytest.mark.parametrize("plan", _PLANS)
def test_the_largest_value_fits_and_one_step_more_does_not(plan):
    job = small_job(**plan)
    found = limits(job, risk=EVEN)
    assert [limit.field for limit in found] == ["batch.micro", "batch.seq_len", "model.layers"]
    for limit in found:
        assert limit.largest >= limit.now > 0
        assert fits(changed(job, limit.field, limit.largest))
        assert not fits(changed(job, limit.field, limit.largest + limit.step))


def test_a_job_that_does_not_fit_learns_what_would():
    job = small_job("3 GiB", micro=16)
    assert not fits(job)
    micro, _, _ = limits(job, risk=EVEN)
    assert 0 < micro.largest < 16
    assert fits(changed(job, "batch.micro", micro.largest))


def test_a_device_too_small_for_the_weights_allows_nothing():
    assert next(limit.largest for limit in limits(small_job("1 GiB"), risk=EVEN)) == 0


def test_layers_change_in_steps_that_keep_the_stages_alike():
    assert limits(small_job(pp=4))[2].step == 4


def test_what_cannot_be_changed_says_why():
    job = small_job(layers=7, pp=2, layout=[3, 4])
    layers = limits(job)[2]
    assert "layout" in layers.obstacle
    assert layers.largest == 0


def test_a_job_that_cannot_run_is_refused():
    with pytest.raises(InputError):
        limits(small_job(pp=2, schedule="pipedream"))
