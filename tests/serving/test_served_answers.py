"""Rates, latencies and money of requests whose times are given; and who is routed where."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.load import load_model
from simulator.errors import InputError
from simulator.serving.answers import answers_of, is_good
from simulator.serving.cluster import serve
from simulator.serving.described import Deployment, PrefillPool, Speculation
from simulator.serving.requests import Request
from simulator.serving.step_time import StepSeconds
from simulator.serving.workload import AdapterTraffic, Arrivals, Lengths, Objective, Workload
from tests.serving.workloads import deployment_of

MEMORY = SimpleNamespace(blocks=10, block_tokens=16)


def answered(number: int, arrival_s: float, ttft_s: float, tokens: int, tpot_s: float) -> Request:
    """A request of 100 tokens that was answered at a steady pace."""
    first_s = arrival_s + ttft_s
    last_s = first_s + (tokens - 1) * tpot_s
    return Request(number, arrival_s, 100, tokens, first_token_s=first_s, last_token_s=last_s)


def run_of(*requests: Request) -> SimpleNamespace:
    replicas = [SimpleNamespace(preemptions=2, steps=30), SimpleNamespace(preemptions=1, steps=40)]
    return SimpleNamespace(requests=list(requests), replicas=replicas, memory=MEMORY)


FOUR = run_of(
    answered(0, 10.0, 1.0, 11, 0.1),
    answered(1, 11.0, 2.0, 11, 0.2),
    answered(2, 12.0, 3.0, 11, 0.3),
    answered(3, 13.0, 4.0, 11, 0.4),
)
"""From the first arrival at 10 s to the last token at 13 + 4 + 10 x 0.4 = 21 s."""


def test_rates_are_counted_from_the_first_arrival_to_the_last_token():
    found = answers_of(FOUR, deployment_of(), Workload(requests=4))
    assert found.requests_per_s == pytest.approx(4 / 11)
    assert found.output_tokens_per_s == pytest.approx(44 / 11)
    assert found.total_tokens_per_s == pytest.approx((44 + 400) / 11)
    assert (found.preemptions, found.steps, found.cache_tokens) == (3, 70, 160)


def test_latencies_have_their_mean_percentiles_and_largest():
    found = answers_of(FOUR, deployment_of(), Workload(requests=4))
    assert found.ttft_s == pytest.approx(
        {"mean": 2.5, "p50": 2.5, "p90": 3.7, "p95": 3.85, "p99": 3.97, "max": 4.0}
    )
    assert found.tpot_s["mean"] == pytest.approx(0.25)
    assert found.end_to_end_s["max"] == pytest.approx(8.0)


def test_the_first_requests_warm_up_and_count_for_rates_alone():
    found = answers_of(FOUR, deployment_of(), Workload(requests=4, warm_up_share=0.5))
    assert found.ttft_s["mean"] == pytest.approx(3.5)
    assert found.requests_per_s == pytest.approx(4 / 11)


@pytest.mark.parametrize(
    ("objective", "good"),
    [
        (Objective(), 4),
        (Objective(ttft="2 s"), 2),
        (Objective(tpot="300.001 ms"), 3),
        (Objective(end_to_end="4.001 s"), 2),
        (Objective(ttft="3 s", tpot="100.001 ms"), 1),
    ],
)
def test_goodput_counts_requests_that_keep_to_every_limit(objective, good):
    found = answers_of(FOUR, deployment_of(), Workload(requests=4, objective=objective))
    assert found.good_share == good / 4
    assert found.goodput_requests_per_s == pytest.approx(good / 11)
    assert found.keeps_objective is (good == 4)
    assert sum(is_good(request, objective) for request in FOUR.requests) == good


@pytest.mark.parametrize(("share", "keeps"), [(0.5, True), (0.51, False)])
def test_an_objective_is_kept_where_its_share_of_requests_keeps_it(share, keeps):
    objective = Objective(ttft="2 s", share=share)
    found = answers_of(FOUR, deployment_of(), Workload(requests=4, objective=objective))
    assert found.keeps_objective is keeps


def test_money_is_what_all_gpus_cost_in_the_time_over_millions_of_tokens():
    """Three GPUs at 2 USD an hour for 11 s, 44 tokens."""
    deployment = deployment_of(2, prefill=PrefillPool(gpus=1), usd_per_gpu_hour=2.0)
    found = answers_of(FOUR, deployment, Workload(requests=4))
    assert found.usd_per_million_tokens == pytest.approx(3 * 2 / 3600 * 11 / 44 * 1e6)
    assert answers_of(FOUR, deployment_of(), Workload()).usd_per_million_tokens is None


def test_an_answer_of_one_token_has_no_time_of_further_ones():
    alone = run_of(answered(0, 0.0, 1.0, 1, 0.0))
    assert answers_of(alone, deployment_of(), Workload(requests=1)).tpot_s == {}


def test_the_cached_share_is_of_all_prompt_tokens_and_nobody_finds_less_than_none():
    requests = [Request(n, 0.0, 100, 1, first_token_s=1.0, last_token_s=1.0) for n in range(4)]
    for request, found in zip(requests, (60, 0, -1, 20), strict=True):
        request.cached_tokens = found
    found = answers_of(run_of(*requests), deployment_of(), Workload(requests=4))
    assert found.cached_share == pytest.approx(80 / 400)
    assert found.to_dict()["ttft_s"] == found.ttft_s


def served_by(routing: str, prefixes: str, gpus: int = 2) -> list[int]:
    """Which replica serves each of some requests that come a second apart, a tenth each."""
    requests = [
        Request(number, float(number), 64, 1, ((name, 32),) if name != "-" else ())
        for number, name in enumerate(prefixes)
    ]
    deployment = deployment_of(gpus, routing=routing, has_front_end=False, prefix_caching=True)
    served = serve(
        deployment, Workload(requests=len(requests)), requests=requests, record=True,
        step_time=lambda _: StepSeconds(0.1, 0.0),
    )  # fmt: skip
    ends = [{step.end_s for step in steps} for steps in served.steps]
    return [
        next(place for place, times in enumerate(ends) if request.last_token_s in times)
        for request in requests
    ]


def test_in_turn_every_replica_gets_the_next_request():
    assert served_by("round-robin", "aaaaaa", gpus=3) == [0, 1, 2, 0, 1, 2]


def test_the_least_loaded_replica_is_the_first_where_all_are_idle():
    assert served_by("least-loaded", "----") == [0, 0, 0, 0]


def test_requests_that_begin_alike_go_where_the_first_of_them_went():
    requests = [Request(n, 0.0, 64, 4, ((name, 32),)) for n, name in enumerate("abab")]
    deployment = deployment_of(2, routing="prefix-aware", prefix_caching=True)
    served = serve(
        deployment, Workload(requests=4), requests=requests,
        step_time=lambda batch: StepSeconds(0.1 + batch.tokens * 1e-6, 0.0),
    )  # fmt: skip
    assert [replica.steps > 0 for replica in served.replicas] == [True, True]
    assert served_by("prefix-aware", "aaaa") == [0, 0, 0, 0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 6))
def test_a_step_with_drafts_makes_the_sum_of_the_chances_that_all_so_far_are_right(rates, drafts):
    """Leviathan et al. (arXiv 2211.17192), equation 1, for one rate: (1 - a^(n+1)) / (1 - a)."""
    speculation = Speculation(draft_tokens=drafts, acceptance=tuple(rates))
    found = speculation.tokens_per_step
    assert 1 <= found <= drafts + 1
    if len(rates) == 1 and rates[0] < 0.999:
        (a,) = rates
        assert found == pytest.approx((1 - a ** (drafts + 1)) / (1 - a))
    if rates[0] == 0:
        assert found == 1


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (Speculation, {"draft_tokens": 2, "acceptance": ()}, "at least one probability"),
        (PrefillPool, {"gpus": 6, "tp": 4}, "must divide the 6 GPUs"),
        (PrefillPool, {"gpus": 4, "tp": 2, "pp": 4}, "must divide the 4 GPUs"),
        (Arrivals, {"kind": "closed-loop"}, "need users"),
        (Arrivals, {"kind": "poisson"}, "need a rate"),
        (Arrivals, {"kind": "gamma"}, "need a rate"),
    ],
)
def test_a_description_that_lacks_what_it_needs_is_refused_with_an_example(kind, fields, said):
    with pytest.raises(ValueError, match=said):
        kind(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus": 6, "tp": 4}, "must divide the 6 GPUs"),
        ({"gpus": 8, "tp": 8, "ep": 2}, "needs a model with experts; remove it"),
    ],
)
def test_gpus_that_fill_no_replica_or_experts_that_fit_no_rank_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        deployment_of(**fields)


def test_experts_lie_on_as_many_ranks_as_divide_a_stage():
    deployment = deployment_of(gpus=8, tp=8).model_dump(exclude_unset=True)
    with pytest.raises(ValueError, match="must divide tp x attention_dp = 8"):
        Deployment(**{**deployment, "model": load_model("qwen3-30b-a3b"), "ep": 3})


def test_traffic_for_adapters_that_nobody_loaded_says_how_to_load_them():
    workload = Workload(requests=1, adapters=AdapterTraffic(share=1.0), prompt=Lengths(mean=10))
    with pytest.raises(InputError, match=r"deployment\.adapters"):
        serve(deployment_of(), workload)
