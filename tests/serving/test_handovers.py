"""Do prompts get from one pool to the other whole, at the speed of the links, and one at a time?"""

from __future__ import annotations

import pytest

from simulator.described.load import load_model, load_profile
from simulator.serving.answers import answers_of
from simulator.serving.cluster import serve
from simulator.serving.described import Deployment, PrefillPool
from simulator.serving.requests import Request
from simulator.serving.shapes import cache_bytes_per_token
from simulator.serving.step_time import StepSeconds
from simulator.serving.workload import Arrivals, Lengths, Workload


def deployment_of(engine="vllm", *, gpus=1, prompts=1, layer_wise=False, **settings):
    return Deployment(
        model=load_model("llama3.1-8b"),
        profile=load_profile("h100-sxm-80gb"),
        gpus=gpus,
        engine=engine,
        prefill=PrefillPool(gpus=prompts, layer_wise=layer_wise),
        has_front_end=False,
        **settings,
    )


def second_per_step(_batch):
    return StepSeconds(1.0, 0.0)


def served(deployment, requests, step_time=None):
    workload = Workload(requests=len(requests), arrivals=Arrivals(kind="all-at-once"))
    return serve(deployment, workload, requests=requests, step_time=step_time)


def test_one_request_takes_a_step_for_its_prompt_the_handover_and_a_step_for_each_further_token():
    deployment = deployment_of(gpus=8, prompts=8, plans_ahead=False)
    request = Request(0, 0.0, 20_000, 5)
    served(deployment, [request], second_per_step)
    # 16 GPUs are two nodes: each rank pulls over its share of the NICs.
    network = deployment.profile.network
    moved_s = 20_000 * cache_bytes_per_token(deployment) / network.fabric_bytes_per_s
    moved_s += network.fabric.bulk_latency_s
    prompt_s = -(-20_000 // 16384)
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


@pytest.mark.parametrize("step_s", [1.0, 1e-3])
def test_layer_by_layer_the_slower_of_step_and_links_sets_the_pace_of_all_layers_but_one(step_s):
    deployment = deployment_of(gpus=8, prompts=8, layer_wise=True, plans_ahead=False)
    request = Request(0, 0.0, 8000, 2)
    served(deployment, [request], lambda _batch: StepSeconds(step_s, 0.0))
    network, layers = deployment.profile.network, deployment.model.layers
    sent_s = 8000 * cache_bytes_per_token(deployment) / network.fabric_bytes_per_s
    assert 1e-3 < sent_s < 1.0
    # A pipeline of two stages: one is busy throughout, the other with the first or last layer.
    through_s = max(step_s + sent_s / layers, step_s / layers + sent_s)
    assert request.first_token_s == pytest.approx(step_s)
    wanted_s = through_s + network.fabric.bulk_latency_s + step_s
    assert request.last_token_s == pytest.approx(wanted_s)


def test_prompts_whose_blocks_are_not_free_as_their_step_begins_cross_after_it():
    # 20 blocks of 16 hold one of the two while it makes its tokens.
    settings = {"kv_blocks": 20, "block_tokens": 16, "prefix_caching": False}
    deployment = deployment_of(layer_wise=True, plans_ahead=False, **settings)
    requests = [Request(n, 0.0, 250, 40) for n in range(2)]
    served(deployment, requests, second_per_step)
    early, late = sorted(requests, key=lambda request: request.last_token_s)
    assert late.last_token_s > early.last_token_s + 38


@pytest.mark.parametrize("layer_wise", [False, True])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("blocks", [0, 4096])
def test_every_token_is_made_and_every_block_comes_back(engine, blocks, layer_wise):
    # 4,096 tokens hold few of the requests: they wait for room, and some are preempted.
    kv = {"kv_blocks": blocks, "block_tokens": 1} if blocks else {}
    pools = {"gpus": 2, "prompts": 2, "layer_wise": layer_wise}
    deployment = deployment_of(engine, **pools, prefix_caching=False, **kv)
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


def test_a_pool_for_prompts_may_share_experts_between_groups_that_attend_apart():
    pools = {"gpus": 8, "tp": 2, "attention_dp": 2, "ep": 4}
    model = load_model("mixtral-8x7b")
    pool = PrefillPool(**pools)
    alone = deployment_of(gpus=1).model_copy(update={"model": model, "prefill": pool})
    prompts = alone.prefill_deployment
    assert {name: getattr(prompts, name) for name in pools} == pools
    assert (prompts.replicas, alone.replicas) == (2, 1)
    for wrong in ({"attention_dp": 3}, {"ep": 3}):
        with pytest.raises(ValueError, match="must divide"):
            PrefillPool(**{**pools, **wrong})


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
