"""Do replicas that share nothing serve as each would alone, and leave the process as it was?"""

from __future__ import annotations

import gc

import pytest
from pydantic import ValidationError

from simulator.described.load import load_model, load_profile
from simulator.errors import InputError
from simulator.serving.cluster import serve
from simulator.serving.described import Deployment
from simulator.serving.requests import requests_of
from simulator.serving.workload import Arrivals, Lengths, SharedPrefix, Workload

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


def closed_loop(users, rate):
    arrivals = Arrivals(kind="closed-loop", users=users, rate=rate)
    return Workload(requests=40, arrivals=arrivals, answer=Lengths(mean=50))


def test_nobody_of_a_closed_loop_comes_before_their_own_time_or_while_all_users_wait():
    seldom, often = closed_loop(users=8, rate=0.5), closed_loop(users=2, rate=1e6)
    own = [request.arrival_s for request in requests_of(seldom)]
    assert [r.arrival_s for r in serve(deployment_of(1), seldom).requests] == own
    free = serve(deployment_of(1), often).requests
    assert all(
        later.arrival_s >= earlier.last_token_s
        for earlier, later in zip(free, free[3:], strict=False)
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_shared_beginning_that_is_cached_is_found_by_the_first_request_of_every_replica(engine):
    prompt, shared = Lengths(mean=600), {"tokens": 512, "distinct": 3}
    found = [
        serve(
            deployment_of(2, engine=engine, prefix_caching=True),
            Workload(requests=12, prompt=prompt, shared_prefix=shared | {"cached": cached}),
        ).requests
        for cached in (True, False)
    ]
    assert {request.cached_tokens for request in found[0]} == {512}
    assert found[1][0].cached_tokens == 0
    assert found[0][0].first_token_s < found[1][0].first_token_s


@pytest.mark.parametrize(
    ("settings", "cached", "path"),
    [
        ({"prompt_wait_steps": 60}, False, "deployment.prompt_wait_steps"),
        ({"receive_steps": 6}, False, "deployment.receive_steps"),
        ({"long_prefill_tokens": 6, "version": "0.6.0"}, False, "deployment.long_prefill_tokens"),
        ({"chunked_prefill": False, "max_tokens": 64}, False, "deployment.max_tokens"),
        ({"prefix_caching": False}, True, "workload.shared_prefix.cached"),
    ],
)
def test_what_an_engine_would_not_heed_is_refused(settings, cached, path):
    workload = Workload(requests=1, shared_prefix=SharedPrefix(tokens=512, cached=cached))
    with pytest.raises(InputError) as caught:
        serve(deployment_of(1, engine="vllm", **settings), workload)
    assert [fault.path for fault in caught.value.faults] == [path]


def test_experts_are_spread_only_where_there_are_any():
    with pytest.raises(ValidationError, match="needs a model with experts"):
        deployment_of(2, tp=2, ep=2)


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
