"""Do adapters cost what Punica measured, and do steps hold no more of them than are loaded?"""

from __future__ import annotations

import pytest

from simulator.described.load import load_model, load_profile
from simulator.errors import InputError
from simulator.serving.cache_memory import memory_plan
from simulator.serving.cluster import serve
from simulator.serving.defaults import limits_of
from simulator.serving.described import Adapters, Deployment
from simulator.serving.requests import Request
from simulator.serving.schedulers.scheduler import Batch
from simulator.serving.step_time import StepTime
from simulator.serving.workload import AdapterTraffic, Lengths, Workload
from tests.serving.workloads import scheduler_of


def deployment_of(**settings):
    return Deployment(
        model=load_model("llama2-7b"),
        profile=load_profile("a100-sxm-80gb"),
        gpus=1,
        **{"adapters": Adapters(rank=16, loaded=32), **settings},
    )


def test_32_adapters_add_one_to_three_milliseconds_to_a_token():
    """Punica (arXiv 2310.18547), abstract: 2 ms per token."""
    time = StepTime(deployment_of())
    plain, adapted = Batch(32, 32 * 500.0), Batch(32, 32 * 500.0, adapters=32, adapted_share=1.0)
    assert 1e-3 < time(adapted).device_s - time(plain).device_s < 3e-3


def test_adapters_take_the_place_of_cached_tokens():
    # Four products of 4096 x 4096 and three of 4096 x 11008 in each of 32 layers, in 16 bits.
    widths = 4 * (4096 + 4096) + 3 * (4096 + 11008)
    with_, without = deployment_of(), deployment_of(adapters=None)
    lost = [memory_plan(d, limits_of(d, 2048)).weights_bytes for d in (with_, without)]
    assert lost[0] - lost[1] == pytest.approx(32 * 32 * 16 * widths * 2)


@pytest.mark.parametrize("name", ["vllm-v1", "sglang"])
def test_a_request_whose_adapter_has_no_room_is_passed_over_until_one_is_free(name):
    scheduler = scheduler_of(name, max_adapters=1)
    first, second, plain = (
        Request(n, 0.0, 8, 3, adapter=adapter) for n, adapter in enumerate((0, 1, -1))
    )
    for request in (first, second, plain):
        scheduler.arrive(request)
    admitted = []
    for step in range(20):
        batch = scheduler.schedule()
        if batch is None:
            break
        assert batch.adapters <= 1
        admitted += [chunk.request.number for chunk in batch.chunks]
        scheduler.complete(batch, float(step))
    assert admitted == [0, 2, 1]


def test_a_share_of_the_traffic_wants_adapters_and_each_token_is_made():
    traffic = AdapterTraffic(share=0.5, distinct=8)
    workload = Workload(
        requests=200, prompt=Lengths(mean=64), answer=Lengths(mean=16), adapters=traffic
    )
    requests = serve(deployment_of(adapters=Adapters(rank=16, loaded=2)), workload).requests
    wanting = [request for request in requests if request.adapter >= 0]
    assert 70 < len(wanting) < 130
    assert all(request.generated == 16 for request in requests)


def test_traffic_for_adapters_without_any_is_refused():
    workload = Workload(requests=2, adapters=AdapterTraffic(share=1.0))
    with pytest.raises(InputError, match="adapters"):
        serve(deployment_of(adapters=None), workload)
    with pytest.raises(InputError, match="not modelled for trtllm"):
        serve(deployment_of(engine="tensorrt-llm"), workload)
