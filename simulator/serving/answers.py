"""What does a served workload amount to: rates, latencies, goodput, money?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.serving.cluster import Served
from simulator.serving.described import Deployment
from simulator.serving.requests import Request
from simulator.serving.workload import Objective, Workload

_PERCENTILES = (50, 90, 95, 99)
_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6


@dataclass(frozen=True)
class Answers:
    """Of one run.

    Attributes:
        requests: How many came.
        requests_per_s: Requests that ended, per second from the first arrival to the last token.
        output_tokens_per_s: Tokens of answers per second; likewise:
        total_tokens_per_s: Tokens of prompts and answers.
        goodput_requests_per_s: Requests that kept to the objective.
        good_share: Their share of all.
        keeps_objective: Whether that is the share that the objective asks for.
        ttft_s: Mean and percentiles of the time to the first token [s]; likewise:
        tpot_s: Mean time of further tokens.
        end_to_end_s: Time to the last token.
        mean_parts_s: Parts of the mean end-to-end time, which they sum to [s]: ``wait`` until its
            first step, ``prompt`` until the first token, ``answer`` until the last.
        preemptions: How often a request lost its blocks.
        steps: Engine steps of all replicas.
        cached_share: Share of prompt tokens that were found in the cache.
        cache_tokens: Tokens that the cache of a replica holds.
        usd_per_million_tokens: Price of a million tokens of answers; None without a price.
    """

    requests: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_requests_per_s: float
    good_share: float
    keeps_objective: bool
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    end_to_end_s: Mapping[str, float]
    mean_parts_s: Mapping[str, float]
    preemptions: int
    steps: int
    cached_share: float
    cache_tokens: int
    usd_per_million_tokens: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it."""
        return {name: _plain(value) for name, value in vars(self).items()}


def answers_of(served: Served, deployment: Deployment, workload: Workload) -> Answers:
    """Rates over the whole run, latencies of its requests but the first ``warm_up_share``."""
    requests = sorted(served.requests, key=lambda request: request.arrival_s)
    begin_s = requests[0].arrival_s
    span_s = max(request.last_token_s for request in requests) - begin_s
    output = sum(request.output_tokens for request in requests)
    prompts = sum(request.prompt_tokens for request in requests)
    counted = requests[int(workload.warm_up_share * len(requests)) :]
    good = sum(1 for request in counted if is_good(request, workload.objective)) / len(counted)
    price = deployment.usd_per_gpu_hour
    usd_per_s = None if price is None else price * deployment.all_gpus / _SECONDS_PER_HOUR
    return Answers(
        requests=len(requests),
        requests_per_s=len(requests) / span_s,
        output_tokens_per_s=output / span_s,
        total_tokens_per_s=(output + prompts) / span_s,
        goodput_requests_per_s=good * len(requests) / span_s,
        good_share=good,
        keeps_objective=good >= workload.objective.share,
        ttft_s=_spread([request.ttft_s for request in counted]),
        tpot_s=_spread([request.tpot_s for request in counted if request.output_tokens > 1]),
        end_to_end_s=_spread([request.end_to_end_s for request in counted]),
        mean_parts_s=_mean_parts_s(counted),
        preemptions=sum(replica.preemptions for replica in served.replicas),
        steps=sum(replica.steps for replica in served.replicas),
        cached_share=sum(max(0, request.cached_tokens) for request in requests) / prompts,
        cache_tokens=served.memory.blocks * served.memory.block_tokens,
        usd_per_million_tokens=None
        if usd_per_s is None
        else usd_per_s * span_s / output * _MILLION,
    )


def is_good(request: Request, objective: Objective) -> bool:
    """Whether a request kept to every limit of the objective."""
    limits = (
        (request.ttft_s, objective.ttft_s),
        (request.tpot_s, objective.tpot_s),
        (request.end_to_end_s, objective.end_to_end_s),
    )
    return all(limit is None or value <= limit for value, limit in limits)


def _mean_parts_s(requests: Sequence[Request]) -> dict[str, float]:
    """What a request spends its time on, in the mean [s]."""
    parts = {
        "wait": [request.scheduled_s - request.arrival_s for request in requests],
        "prompt": [request.first_token_s - request.scheduled_s for request in requests],
        "answer": [request.last_token_s - request.first_token_s for request in requests],
    }
    return {name: float(np.mean(times)) for name, times in parts.items()}


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    cuts = np.percentile(values, _PERCENTILES)
    found = {f"p{p}": float(cut) for p, cut in zip(_PERCENTILES, cuts, strict=True)}
    return {"mean": float(np.mean(values)), **found, "max": float(max(values))}


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value
