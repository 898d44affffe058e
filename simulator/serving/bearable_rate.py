"""Which rate does a deployment bear, how many GPUs does a rate take, and which split is best?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from simulator.errors import ClustersimError, InputError
from simulator.serving.answers import Answers, answers_of
from simulator.serving.cluster import serve
from simulator.serving.described import Deployment, ServingJob
from simulator.serving.requests import Request, trace_at_rate
from simulator.serving.workload import Arrivals, Workload

_FIRST_RATE = 1.0
_RATE_STEP, _PRECISION = 2.0, 0.03
_MOST_RATE = 1e6
_LEAST_SECONDS = 60.0
_MOST_REQUESTS = 20_000
_DEGREES = (1, 2, 4, 8, 16)


class Bearable(NamedTuple):
    """The largest rate that keeps to the objective [1/s], and how the run at it went."""

    rate: float
    answers: Answers | None


class Choice(NamedTuple):
    """One way to split a deployment's GPUs, with what came of it; or why it cannot run."""

    settings: Mapping[str, int]
    rate: float
    answers: Answers | None
    reason: str = ""


def at_rate(deployment: Deployment, workload: Workload, rate: float) -> Answers:
    """Serve the workload's requests at a mean rate, for at least a minute of traffic.

    A trace is played faster or slower, gamma arrivals stay bursty, all others are Poisson.
    """
    came = workload.arrivals
    if came.kind != "gamma":
        came = Arrivals(kind="poisson", rate=rate)
    count = min(_MOST_REQUESTS, max(workload.requests, int(rate * _LEAST_SECONDS)))
    changed = workload.model_copy(
        update={
            "arrivals": came.model_copy(update={"rate": rate}),
            "requests": count,
            "warm_up_share": max(workload.warm_up_share, 0.2),
        }
    )
    requests: list[Request] | None = None
    if workload.trace:
        requests = trace_at_rate(workload, rate, count)
    return answers_of(serve(deployment, changed, requests=requests), deployment, changed)


def largest_rate(
    deployment: Deployment, workload: Workload, on_trial: Callable[[], None] | None = None
) -> Bearable:
    """The largest rate at which enough requests keep to the objective, within 3 %.

    Doubles until it breaks, then halves the gap. Replicas behind a router are alike, so one of
    them is asked and its rate multiplied, unless a pool for prompts feeds them all.

    Args:
        deployment: What runs where.
        workload: The traffic, at another rate each time.
        on_trial: Called after each rate that is tried.

    Raises:
        InputError: The objective sets no limit, or every rate keeps to it.
    """
    need_a_limit(workload)
    one = deployment.unit

    def tried(rate: float) -> Answers:
        found = at_rate(one, workload, rate)
        if on_trial is not None:
            on_trial()
        return found

    good, answers, rate = 0.0, None, _FIRST_RATE
    bad = None
    while bad is None:
        if rate > _MOST_RATE:
            hint = "lower a limit, or let more requests come"
            raise InputError.single("workload.objective", "is met at every rate", hint=hint)
        found = tried(rate)
        if found.keeps_objective:
            good, answers, rate = rate, found, rate * _RATE_STEP
        else:
            bad = rate
    low, high = good or _FIRST_RATE / 256, bad
    while high / low > 1.0 + _PRECISION:
        rate = (low * high) ** 0.5
        found = tried(rate)
        if found.keeps_objective:
            low, good, answers = rate, rate, found
        else:
            high = rate
    return Bearable(good * (deployment.all_gpus // one.all_gpus), answers)


def ranked_splits(job: ServingJob, on_split: Callable[[int], None] | None = None) -> list[Choice]:
    """Every split of the GPUs into tp, pp and replicas, the largest rate first.

    All are simulated, none is pruned, so the first is the best of them.

    Args:
        job: The job to split.
        on_split: Told, after each split, how many there are.
    """
    splits = list(_splits(job.deployment))
    choices = []
    for settings in splits:
        choices.append(_tried(job, settings))
        if on_split is not None:
            on_split(len(splits))
    return sorted(choices, key=lambda choice: -choice.rate)


def _splits(deployment: Deployment) -> Iterator[dict[str, int]]:
    per_node = deployment.profile.network.gpus_per_node
    for tp in _DEGREES:
        for pp in _DEGREES:
            if tp <= per_node and tp * pp <= deployment.gpus and deployment.gpus % (tp * pp) == 0:
                yield {"tp": tp, "pp": pp}


def _tried(job: ServingJob, settings: Mapping[str, int]) -> Choice:
    ep = 1 if settings["tp"] % job.deployment.ep else job.deployment.ep
    update: dict[str, Any] = {**settings, "attention_dp": 1, "ep": ep}
    try:
        bearable = largest_rate(job.deployment.model_copy(update=update), job.workload)
    except ClustersimError as error:
        return Choice(settings, 0.0, None, " ".join(str(error).split()))
    reason = "" if bearable.rate else "misses the objective at any rate"
    return Choice(settings, bearable.rate, bearable.answers, reason)


def need_a_limit(workload: Workload) -> None:
    """Refuse a workload without an objective, which every rate would meet.

    Raises:
        InputError: Its objective sets no limit.
    """
    if not workload.objective.is_asked:
        hint = "for example {ttft: 1 s, tpot: 50 ms}"
        raise InputError.single("workload.objective", "sets no limit", hint=hint)
