"""How do replicas behind a router serve a workload?"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.serving.arrivals import requests_of
from simulator.serving.blocks import BlockCache
from simulator.serving.defaults import engine_defaults, limits_of, scheduler_name
from simulator.serving.described import Deployment, Workload
from simulator.serving.engine import Replica, Step
from simulator.serving.memory import MemoryPlan, memory_plan
from simulator.serving.request import Request
from simulator.serving.schedulers.base import Batch
from simulator.serving.schedulers.registry import SCHEDULERS
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
    _run(replicas, requests, workload.arrivals.users, deployment.routing)
    return Served(requests, replicas, memory, steps)


def _run(
    replicas: Sequence[Replica], requests: Sequence[Request], users: int, routing: str
) -> None:
    """One event per step: arrivals and ends of steps in order of time.

    With ``users``, a request arrives when one before it is done.
    """
    route = _ROUTES[routing](replicas)
    ends: list[tuple[float, int]] = []
    coming = iter(requests)
    first = [next(coming) for _ in range(min(users, len(requests)))] if users else requests
    pending = list(reversed(first))
    while pending or ends:
        step_end_s = ends[0][0] if ends else float("inf")
        woken = []
        now_s = min(step_end_s, pending[-1].arrival_s if pending else float("inf"))
        # Who arrives as a step ends is there for the next one.
        while pending and pending[-1].arrival_s <= now_s:
            request = pending.pop()
            index = route(request)
            replicas[index].arrive(request, now_s)
            woken.append(index)
        while ends and ends[0][0] <= now_s:
            _end_s, index = heapq.heappop(ends)
            done = replicas[index].finish_step()
            woken.append(index)
            if users:
                for _ in done:
                    request = next(coming, None)  # type: ignore[assignment]
                    if request is not None:
                        request.arrival_s = now_s
                        target = route(request)
                        replicas[target].arrive(request, now_s)
                        woken.append(target)
        alone = len(replicas) == 1 or not users
        quiet_until_s = pending[-1].arrival_s if pending else float("inf") if alone else now_s
        for index in dict.fromkeys(woken):
            replica = replicas[index]
            before = replica.end_s
            replica.wake(now_s, quiet_until_s)
            if replica.end_s != before:
                heapq.heappush(ends, (replica.end_s, index))


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
