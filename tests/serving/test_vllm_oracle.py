"""Does the replica of vLLM's scheduler make the batches that vLLM's own makes, step for step?"""

from __future__ import annotations

import gzip
import json
from collections import deque
from pathlib import Path

import pytest

from simulator.serving.block_cache import BlockCache
from simulator.serving.requests import Request
from simulator.serving.schedulers.scheduler import Limits
from simulator.serving.schedulers.vllm import VllmV1

ORACLES = sorted((Path(__file__).parent / "oracles").glob("*.json.gz"))


def replica_of(settings):
    cache = BlockCache(
        settings["blocks"], settings["block_tokens"], keeps_prefixes=settings["keeps_prefixes"]
    )
    limits = Limits(
        settings["max_requests"],
        settings["max_tokens"],
        long_prefill_tokens=settings.get("long_prefill_tokens", 0),
        plans_ahead=settings["plans_ahead"],
    )
    return VllmV1(limits, cache)


def arrivals_of(rows):
    requests = (
        (step, Request(number, 0.0, prompt, answer, ((name, tokens),) if tokens else ()))
        for number, (step, prompt, answer, name, tokens) in enumerate(rows)
    )
    return deque(sorted(requests, key=lambda each: each[0]))


def steps_of(settings, rows):
    """Steps as the recordings have them."""
    scheduler, coming = replica_of(settings), arrivals_of(rows)
    depth = 2 if settings["plans_ahead"] else 1
    flying, steps, now = deque(), [], 0
    while coming or scheduler.load or flying:
        while coming and coming[0][0] <= now:
            scheduler.arrive(coming.popleft()[1])
        batch = scheduler.schedule()
        if batch is not None:
            cut = sorted([c.request.number, c.tokens] for c in batch.chunks if c.tokens > 1)
            lost = sorted(request.number for request in batch.preempted)
            steps.append([now, batch.tokens, cut, scheduler.cache.free_blocks, lost])
        flying.append(batch)
        while flying and (len(flying) >= depth or not scheduler.load):
            done = flying.popleft()
            if done is not None:
                scheduler.complete(done, float(now))
        now += 1
    return steps


@pytest.mark.parametrize("path", ORACLES, ids=lambda path: path.name.split(".")[0])
def test_batches_blocks_and_preemptions_are_those_of_vllm_in_every_step(path):
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    steps = steps_of(recorded["settings"], recorded["requests"])
    wanted = [[*step[:2], sorted(step[2]), *step[3:]] for step in recorded["steps"]]
    assert len(wanted) >= 1000
    assert steps == wanted


def test_at_least_ten_workloads_are_recorded_and_some_preempt():
    recordings = [json.loads(gzip.decompress(path.read_bytes())) for path in ORACLES]
    assert len(recordings) >= 10
    assert sum(any(step[4] for step in recorded["steps"]) for recorded in recordings) >= 5
