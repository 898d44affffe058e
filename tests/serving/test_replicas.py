"""Do replicas that share nothing serve as each would alone, and leave the process as it was?"""

from __future__ import annotations

import gc

import pytest

from simulator.described.load import load_model, load_profile
from simulator.errors import InputError
from simulator.serving.cluster import serve
from simulator.serving.described import Arrivals, Deployment, Lengths, Workload
from simulator.serving.requests import requests_of

WORKLOAD = Workload(
    requests=60,
    arrivals=Arrivals(kind="poisson", rate=12.0),
    prompt=Lengths(mean=500, variation=0.8),
    answer=Lengths(mean=80, variation=0.8),
)


def deployment_of(gpus, **settings):
    model, profile = load_model("llama3.1-8b"), load_profile("h100-sxm-80gb")
    return Deployment(model=model, profile=profile, gpus=gpus, **settings)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_replicas_in_turn_end_every_request_when_each_would_with_its_own_requests_alone(engine):
    together = serve(deployment_of(3, engine=engine), WORKLOAD).requests
    for first in range(3):
        # Others' arrivals end the steps that are taken at once, so means differ in last digits.
        alone = serve(
            deployment_of(1, engine=engine), WORKLOAD, requests=requests_of(WORKLOAD)[first::3]
        ).requests
        times = [request.last_token_s for request in together[first::3]]
        assert times == pytest.approx([request.last_token_s for request in alone], rel=1e-4)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_after_serving_as_it_was_before_even_where_it_fails(is_enabled):
    was_enabled = gc.isenabled()
    try:
        gc.enable() if is_enabled else gc.disable()
        with pytest.raises(InputError):
            serve(deployment_of(1, kv_blocks=1), WORKLOAD)
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable() if was_enabled else gc.disable()
