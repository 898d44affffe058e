"""Do prompts get from one pool to the other whole, at the speed of the links, and one at a time?"""

from __future__ import annotations

import pytest

from simulator.described.load import load_model, load_profile
from simulator.serving.answers import answers_of
from simulator.serving.cluster import serve
from simulator.serving.described import Arrivals, Deployment, Lengths, PrefillPool, Workload
from simulator.serving.request import Request
from simulator.serving.shapes import cache_bytes_per_token
from simulator.serving.step_time import StepSeconds


def deployment_of(engine="vllm", *, gpus=1, prompts=1, **settings):
    return Deployment(
        model=load_model("llama3.1-8b"),
        profile=load_profile("h100-sxm-80gb"),
        gpus=gpus,
        engine=engine,
        prefill=PrefillPool(gpus=prompts),
        has_front_end=False,
        **settings,
    )


def second_per_step(_batch):
    return StepSeconds(1.0, 0.0)


def served(deployment, requests, step_time=None):
    workload = Workload(requests=len(requests), arrivals=Arrivals(kind="trace"))
    return serve(deployment, workload, requests=requests, step_time=step_time)


def test_one_request_takes_a_step_for_its_prompt_the_handover_and_a_step_for_each_further_token():
    deployment = deployment_of(gpus=8, prompts=8, plans_ahead=False)
    request = Request(0, 0.0, 10_000, 5)
    served(deployment, [request], second_per_step)
    # 16 GPUs are two nodes: each rank pulls over its share of the NICs.
    network = deployment.profile.network
    moved_s = 10_000 * cache_bytes_per_token(deployment) / network.fabric_bytes_per_s
    moved_s += network.fabric.bulk_latency_s
    prompt_s = -(-10_000 // 8192)
    assert request.first_token_s == pytest.approx(prompt_s)
    assert request.last_token_s == pytest.approx(prompt_s + moved_s + 4)


def test_two_handovers_that_leave_one_replica_together_take_twice_as_long():
    deployment = deployment_of(gpus=15, prompts=1, plans_ahead=False)
    alone, *both = (Request(n, 0.0, 4000, 2) for n in range(3))
    served(deployment, [alone], second_per_step)
    served(deployment, both, second_per_step)
    network = deployment.profile.network
    moved_s = 4000 * cache_bytes_per_token(deployment) / network.fabric_bytes_per_s
    gap_s = both[0].last_token_s - alone.last_token_s
    assert gap_s == pytest.approx(moved_s, rel=0.01)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("blocks", [0, 4096])
def test_every_token_is_made_and_every_block_comes_back(engine, blocks):
    # 4,096 tokens hold few of the requests: they wait for room, and some are preempted.
    kv = {"kv_blocks": blocks, "block_tokens": 1} if blocks else {}
    deployment = deployment_of(engine, gpus=2, prompts=2, prefix_caching=False, **kv)
    workload = Workload(
        requests=120,
        arrivals=Arrivals(kind="poisson", rate=50.0),
        prompt=Lengths(mean=400, variation=0.8, longest=1500),
        answer=Lengths(mean=100, variation=0.8, longest=900),
        seed=3,
    )
    result = serve(deployment, workload)
    for request in result.requests:
        assert request.arrival_s < request.first_token_s <= request.last_token_s
        assert request.generated == request.output_tokens
    for replica in result.replicas:
        assert replica.load == 0
        assert replica.scheduler.used_share == pytest.approx(0.0)


def test_answers_do_not_wait_for_the_prompts_of_others():
    """DistServe (arXiv 2401.09670), figure 2: prompts slow the decodes beside them."""
    workload = Workload(
        requests=200,
        arrivals=Arrivals(kind="poisson", rate=6.0),
        prompt=Lengths(mean=4000),
        answer=Lengths(mean=100),
    )
    apart = deployment_of(gpus=1, prompts=1)
    together = apart.model_copy(update={"gpus": 2, "prefill": None})
    tpot = [answers_of(serve(d, workload), d, workload).tpot_s["p99"] for d in (apart, together)]
    assert tpot[0] < 0.75 * tpot[1]
