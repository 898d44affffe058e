"""How do replicas behind a router serve a workload?"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from simulator.errors import InputError
from simulator.processor import without_collection
from simulator.serving.block_cache import BlockCache
from simulator.serving.cache_memory import MemoryPlan, memory_plan
from simulator.serving.defaults import (
    engine_defaults,
    keeps_prefixes,
    limits_of,
    scheduler_name,
)
from simulator.serving.described import Deployment
from simulator.serving.engine import Replica, Step
from simulator.serving.handovers import Handovers
from simulator.serving.requests import Request, requests_of
from simulator.serving.schedulers.by_name import SCHEDULERS
from simulator.serving.schedulers.scheduler import Batch
from simulator.serving.step_time import StepSeconds, StepTime
from simulator.serving.workload import Workload
from simulator.units import format_bytes, percent

_SWAPPED_SHARE = 0.7
"""Of a host's memory at most (vLLM 0.6.0, ``CacheConfig.verify_with_parallel_config``)."""
_LONG_BEFORE_S = -1e6
"""When shared beginnings are computed, so that all is done before the first request."""
_SCHEDULERS_WITH = MappingProxyType(
    {
        "adapters": ("vllm-v1", "sglang"),
        "long_prefill_tokens": ("vllm-v1",),
        "prompt_wait_steps": ("trtllm", "trtllm-max-utilisation"),
        "receive_steps": ("sglang",),
    }
)
"""Schedulers that heed a setting of a deployment, by its field."""
_MOST_BLOCKS = 2**25
"""Of all replicas; so many take a gigabyte here."""


@dataclass
class Served:
    """A workload as it was served.

    Attributes:
        requests: All requests with their times.
        replicas: Who served them; those for prompts only come last.
        memory: The plan of a rank's memory, of those that make tokens.
        steps: Steps of each replica, if they were recorded.
    """

    requests: Sequence[Request]
    replicas: Sequence[Replica]
    memory: MemoryPlan
    steps: Sequence[Sequence[Step]]


@without_collection()
def serve(
    deployment: Deployment,
    workload: Workload,
    *,
    requests: Sequence[Request] | None = None,
    record: bool = False,
    step_time: Callable[[Batch], StepSeconds] | None = None,
    on_ended: Callable[[int, int], None] | None = None,
    without: str = "",
) -> Served:
    """Serve a workload to its last token.

    Args:
        deployment: What runs where.
        workload: The traffic.
        requests: The requests themselves, where the caller has them.
        record: Whether to keep the steps of all replicas.
        step_time: Seconds of a batch; by default from the deployment's kernels.
        on_ended: Told how many more requests ended where answers are made, and the number of all.
        without: Source of measured runs that tell ``step_time``'s default nothing.

    Raises:
        InputError: A request is longer than the cache, or there are too many blocks to simulate.
        DoesNotFitError: The model leaves no room for a cache.
    """
    if workload.adapters.share and not deployment.adapters:
        hint = "for example {rank: 16, loaded: 4}"
        raise InputError.single("deployment.adapters", "is not given", hint=hint)
    if workload.shared_prefix.cached and not keeps_prefixes(deployment):
        rule = "needs an engine that finds beginnings of prompts again"
        hint = "add deployment.prefix_caching: true"
        raise InputError.single("workload.shared_prefix.cached", rule, True, hint)
    requests = requests_of(workload) if requests is None else requests
    # Who arrives as soon as somebody is done, or as soon as blocks are free.
    waits_for_ends = bool(workload.arrivals.users or deployment.prefill)
    lengths = [r.prompt_tokens + r.output_tokens for r in requests]
    time_of = step_time or StepTime(deployment, without=without)
    replicas, memory = _pool(deployment, lengths, time_of, waits_for_ends=waits_for_ends)
    between = None
    if deployment.prefill:
        pool = deployment.prefill_deployment
        time_of = step_time or StepTime(pool, without=without)
        prompts, _ = _pool(pool, lengths, time_of, waits_for_ends=waits_for_ends)
        between = Handovers(deployment, prompts, replicas, requests)
        replicas = [*replicas, *prompts]
    if workload.shared_prefix.cached:
        _fill_caches(replicas, requests)
    if on_ended is not None:
        for replica in between.answers if between else replicas:
            replica.on_ended = lambda more: on_ended(more, len(requests))
    if record:
        for replica in replicas:
            replica.steps_taken = []
    front_s = engine_defaults(deployment).host.front_s if deployment.has_front_end else 0.0
    _run(replicas, between, requests, workload.arrivals.users, deployment.routing, front_s)
    _check_all_are_served(requests)
    return Served(requests, replicas, memory, [r.steps_taken or () for r in replicas])


def _reached(memory: MemoryPlan, deployment: Deployment, lengths: Sequence[int]) -> MemoryPlan:
    """A cache that is too large to simulate, cut to twice what all requests together would fill.

    The blocks beyond that are free or unread for the whole run.
    """
    if deployment.replicas * memory.blocks <= _MOST_BLOCKS:
        return memory
    filled = sum(-(-each // memory.block_tokens) + 1 for each in lengths)
    return memory._replace(blocks=min(memory.blocks, 2 * filled))


def _pool(
    deployment: Deployment,
    lengths: Sequence[int],
    step_time: Callable[[Batch], StepSeconds],
    *,
    waits_for_ends: bool,
) -> tuple[list[Replica], MemoryPlan]:
    """All replicas of a deployment, idle, and the memory of one of their ranks.

    Args:
        deployment: What runs where.
        lengths: Tokens of each request, prompt and answer.
        step_time: Seconds of a batch.
        waits_for_ends: Whether somebody arrives as soon as somebody is done.
    """
    longest, most = max(lengths, default=1), deployment.max_model_tokens
    if most and longest > most:
        rule = f"is less than the longest request, {longest:,} tokens, which the engine refuses"
        hint = "raise it, or cut lengths with workload.prompt.longest and workload.answer.longest"
        raise InputError.single("deployment.max_model_tokens", rule, most, hint)
    limits = limits_of(deployment, longest)
    memory = _reached(memory_plan(deployment, limits), deployment, lengths)
    if longest > memory.blocks * memory.block_tokens:
        rule = f"a request of {longest} tokens does not fit in the cache"
        tokens = memory.blocks * memory.block_tokens
        raise InputError.single("workload", rule, hint=f"it holds {tokens} tokens")
    if (blocks := deployment.replicas * memory.blocks) > _MOST_BLOCKS:
        rule = f"has caches of {blocks:,} blocks in all, of at most {_MOST_BLOCKS:,}"
        hint = "each is simulated; use fewer GPUs, or blocks of more tokens"
        raise InputError.single("deployment", rule, hint=hint)
    keeps = keeps_prefixes(deployment)
    name = scheduler_name(deployment)
    make = SCHEDULERS[name]
    _check_settings(deployment, name)
    _check_swap(deployment, name)
    caches = (
        BlockCache(
            memory.blocks,
            memory.block_tokens,
            keeps_prefixes=keeps,
            host_blocks=memory.host_blocks,
        )
        for _ in range(deployment.replicas)
    )
    replicas = [
        Replica(
            make(limits, cache),
            step_time,
            plans_ahead=limits.plans_ahead,
            waits_for_ends=waits_for_ends,
        )
        for cache in caches
    ]
    return replicas, memory


def _fill_caches(replicas: Sequence[Replica], requests: Sequence[Request]) -> None:
    """Each replica computes all beginnings that prompts share, long before the first request."""
    prefixes = dict.fromkeys(request.prefix[:1] for request in requests if request.prefix)
    for replica in replicas:
        for number, prefix in enumerate(prefixes):
            replica.arrive(Request(number, _LONG_BEFORE_S, prefix[0][1], 1, prefix))
        replica.wake(_LONG_BEFORE_S)
        while (now_s := replica.end_s) < math.inf:
            replica.finish_step()
            replica.wake(now_s)
        replica.steps, replica.busy_s, replica.preemptions = 0, 0.0, 0


def _check_all_are_served(requests: Sequence[Request]) -> None:
    """Refuses settings with which some prompt never fits into a step."""
    if stuck := next((each for each in requests if each.last_token_s < 0), None):
        rule = f"is too small for a prompt of {stuck.known_tokens:,} tokens that is not cut"
        hint = "raise it, or set deployment.chunked_prefill: true"
        raise InputError.single("deployment.max_tokens", rule, hint=hint)


def _check_settings(deployment: Deployment, scheduler: str) -> None:
    """Refuses settings that the scheduler would not heed."""
    for field, names in _SCHEDULERS_WITH.items():
        if (value := getattr(deployment, field)) and scheduler not in names:
            rule = f"is not modelled for {scheduler}"
            hint = f"remove it, or choose deployment.scheduler: {' or '.join(names)}"
            shown = value if isinstance(value, int) else None
            raise InputError.single(f"deployment.{field}", rule, shown, hint)


def _check_swap(deployment: Deployment, scheduler: str) -> None:
    """Refuses host memory that the scheduler does not use, or that the host does not have."""
    if deployment.swap_bytes and scheduler != "vllm-v0":
        hint = "only vllm-v0 moves preempted requests to the host"
        raise InputError.single("deployment.swap", f"is not modelled for {scheduler}", hint=hint)
    host, in_node = deployment.profile.host, deployment.profile.network.gpus_per_node
    taken_bytes = deployment.swap_bytes * min(deployment.gpus, in_node)
    if taken_bytes > _SWAPPED_SHARE * host.memory_bytes:
        given = format_bytes(taken_bytes)
        hint = f"give at most {percent(_SWAPPED_SHARE, 0)} of {format_bytes(host.memory_bytes)}"
        raise InputError.single("deployment.swap", "is too much for a host", given, hint)


def _run(
    replicas: Sequence[Replica],
    between: Handovers | None,
    requests: Sequence[Request],
    users: int,
    routing: str,
    front_s: float,
) -> None:
    """One event per step: arrivals, ends of steps and of handovers in order of time.

    With ``users``, a request arrives when one before it is done.
    """
    entry = len(between.answers) if between else 0
    route = _ROUTES[routing](replicas[entry:])
    ends: list[tuple[float, int]] = []
    coming = iter(requests)
    first = itertools.islice(coming, users) if users else coming
    pending = [(request.arrival_s + front_s, request.number, request) for request in first]
    heapq.heapify(pending)
    moved_s = math.inf
    # Whether nothing that one replica does is felt by another before somebody arrives.
    is_open = between is None and (not users or len(replicas) == 1)
    while pending or ends or moved_s < math.inf:
        step_end_s = ends[0][0] if ends else math.inf
        now_s = min(step_end_s, pending[0][0] if pending else math.inf, moved_s)
        woken = []
        # Who arrives as a step ends is there for the next one.
        while pending and pending[0][0] <= now_s:
            request = heapq.heappop(pending)[2]
            index = entry + route(request)
            replicas[index].arrive(between.prompt_of(request) if between else request)
            woken.append(index)
        if between:
            for source, target in between.arrivals(now_s):
                woken += [entry + source, target]
        while ends and ends[0][0] <= now_s:
            index = heapq.heappop(ends)[1]
            done = replicas[index].finish_step()
            woken.append(index)
            is_prompt = between is not None and index >= entry
            ended = between.take(done, index - entry) if between and is_prompt else len(done)
            for request in itertools.islice(coming, ended if users else 0):
                request.arrival_s = max(now_s, request.arrival_s)
                heapq.heappush(pending, (request.arrival_s + front_s, request.number, request))
        if between:
            between.start(now_s)
            moved_s = between.next_end_s
        quiet_until_s = _next_arrival_s(replicas, pending, users)
        # Prompts first: what they begin now may be handed over next.
        for index in sorted(set(woken), reverse=True):
            if between and index < entry:
                prompts_s = min(replica.end_s for replica in between.prompts)
                quiet_until_s = min(quiet_until_s, moved_s, prompts_s)
            replica = replicas[index]
            before = replica.end_s
            replica.wake(now_s, quiet_until_s)
            if is_open and before == math.inf:
                replica.run_on(quiet_until_s)
            if replica.end_s != before:
                heapq.heappush(ends, (replica.end_s, index))
                if between and index >= entry:
                    between.send_layers(now_s, index - entry)
                    moved_s = between.next_end_s


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
