"""How do replicas behind a router serve a workload?"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.serving.arrivals import requests_of
from simulator.serving.block_cache import BlockCache
from simulator.serving.cache_memory import MemoryPlan, memory_plan
from simulator.serving.defaults import engine_defaults, limits_of, scheduler_name
from simulator.serving.described import Deployment, Workload
from simulator.serving.engine import Replica, Step
from simulator.serving.request import Request
from simulator.serving.schedulers.by_name import SCHEDULERS
from simulator.serving.schedulers.scheduler import Batch
from simulator.serving.step_time import StepSeconds, StepTime


@dataclass
class Served:
    """A workload as it was served.

    Attributes:
        requests: All requests with their times.
        replicas: Who served them.
        memory: The plan of a rank's memory.
        steps: Steps of the first replica, if they were recorded.
    """

    requests: Sequence[Request]
    replicas: Sequence[Replica]
    memory: MemoryPlan
    steps: Sequence[Step]


def serve(
    deployment: Deployment,
    workload: Workload,
    *,
    requests: Sequence[Request] | None = None,
    record: bool = False,
    step_time: Callable[[Batch], StepSeconds] | None = None,
) -> Served:
    """Serve a workload to its last token.

    Args:
        deployment: What runs where.
        workload: The traffic.
        requests: The requests themselves, where the caller has them.
        record: Whether to keep the steps of the first replica.
        step_time: Seconds of a batch; by default from the deployment's kernels.

    Raises:
        InputError: A request is longer than the cache.
        DoesNotFitError: The model leaves no room for a cache.
    """
    requests = requests_of(workload) if requests is None else requests
    longest = max((r.prompt_tokens + r.output_tokens for r in requests), default=1)
    limits = limits_of(deployment, longest)
    memory = memory_plan(deployment, limits)
    if longest > memory.blocks * memory.block_tokens:
        rule = f"a request of {longest} tokens does not fit in the cache"
        tokens = memory.blocks * memory.block_tokens
        raise InputError.single("workload", rule, hint=f"it holds {tokens} tokens")
    known = engine_defaults(deployment)
    keeps = known.prefix_caching if deployment.prefix_caching is None else deployment.prefix_caching
    step_time = step_time or StepTime(deployment)
    steps: list[Step] = []
    replicas = []
    for index in range(deployment.replicas):
        cache = BlockCache(memory.blocks, memory.block_tokens, keeps_prefixes=keeps)
        replicas.append(
            Replica(
                SCHEDULERS[scheduler_name(deployment)](limits, cache),
                step_time,
                plans_ahead=limits.plans_ahead,
                is_closed_loop=bool(workload.arrivals.users),
                record=steps.append if record and index == 0 else None,
            )
        )
    _run(
        replicas,
        requests,
        users=workload.arrivals.users,
        routing=deployment.routing,
        front_s=known.host.front_s if deployment.has_front_end else 0.0,
    )
    return Served(requests, replicas, memory, steps)


def _run(
    replicas: Sequence[Replica],
    requests: Sequence[Request],
    *,
    users: int,
    routing: str,
    front_s: float,
) -> None:
    """One event per step: arrivals and ends of steps in order of time.

    With ``users``, a request arrives when one before it is done.
    """
    route = _ROUTES[routing](replicas)
    ends: list[tuple[float, int]] = []
    coming = iter(requests)
    first = itertools.islice(coming, users) if users else coming
    pending = [(request.arrival_s + front_s, request.number, request) for request in first]
    heapq.heapify(pending)
    while pending or ends:
        step_end_s = ends[0][0] if ends else math.inf
        now_s = min(step_end_s, pending[0][0] if pending else math.inf)
        woken = []
        # Who arrives as a step ends is there for the next one.
        while pending and pending[0][0] <= now_s:
            request = heapq.heappop(pending)[2]
            index = route(request)
            replicas[index].arrive(request)
            woken.append(index)
        while ends and ends[0][0] <= now_s:
            index = heapq.heappop(ends)[1]
            done = replicas[index].finish_step()
            woken.append(index)
            for request in itertools.islice(coming, len(done) if users else 0):
                request.arrival_s = now_s
                heapq.heappush(pending, (now_s + front_s, request.number, request))
        quiet_until_s = _next_arrival_s(replicas, pending, users)
        for index in dict.fromkeys(woken):
            replica = replicas[index]
            before = replica.end_s
            replica.wake(now_s, quiet_until_s)
            if replica.end_s != before:
                heapq.heappush(ends, (replica.end_s, index))


def _next_arrival_s(
    replicas: Sequence[Replica], pending: Sequence[tuple[float, int, Request]], users: int
) -> float:
    """Nobody arrives before this, as far as is known [s]."""
    if pending:
        return pending[0][0]
    return math.inf if len(replicas) == 1 or not users else 0.0


def _round_robin(replicas: Sequence[Replica]) -> Callable[[Request], int]:
    turn = -1

    def route(request: Request) -> int:
        nonlocal turn
        turn = (turn + 1) % len(replicas)
        return turn

    return route


def _least_loaded(replicas: Sequence[Replica]) -> Callable[[Request], int]:
    def route(request: Request) -> int:
        return min(range(len(replicas)), key=lambda index: replicas[index].load)

    return route


def _prefix_aware(replicas: Sequence[Replica]) -> Callable[[Request], int]:
    """Requests that begin alike go to the same replica, others to the least loaded."""
    home: dict[object, int] = {}
    least = _least_loaded(replicas)

    def route(request: Request) -> int:
        if not request.prefix:
            return least(request)
        key = request.prefix[0][0]
        if key not in home:
            home[key] = least(request)
        return home[key]

    return route


_ROUTES: dict[str, Callable[[Sequence[Replica]], Callable[[Request], int]]] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "prefix-aware": _prefix_aware,
}
