"""Small deployments for tests of serving: times are given, so only rules decide."""

from __future__ import annotations

from simulator.described.load import load_model, load_profile
from simulator.serving.block_cache import BlockCache
from simulator.serving.described import Deployment
from simulator.serving.engine import Replica
from simulator.serving.requests import Request
from simulator.serving.schedulers.by_name import SCHEDULERS
from simulator.serving.schedulers.scheduler import Batch, Limits, Scheduler
from simulator.serving.step_time import StepSeconds

ONE_SECOND = StepSeconds(1.0, 0.0)


def deployment_of(gpus: int = 1, **fields: object) -> Deployment:
    """Llama 3.1 8B on some H100."""
    model, profile = load_model("llama3.1-8b"), load_profile("h100-sxm-80gb")
    return Deployment(model=model, profile=profile, gpus=gpus, **fields)  # type: ignore[arg-type]


def scheduler_of(
    name: str,
    *,
    blocks: int = 64,
    block_tokens: int = 16,
    keeps_prefixes: bool = False,
    max_requests: int = 8,
    max_tokens: int = 64,
    max_model_tokens: int = 120,
    **limits: object,
) -> Scheduler:
    """A scheduler by name with a small cache."""
    cache = BlockCache(blocks, block_tokens, keeps_prefixes=keeps_prefixes)
    return SCHEDULERS[name](Limits(max_requests, max_tokens, max_model_tokens, **limits), cache)  # type: ignore[arg-type]


def run_all(
    scheduler: Scheduler, requests: list[Request], most_steps: int = 100_000
) -> list[Batch]:
    """Batches until all requests are done, everybody there from the beginning."""
    batches = []
    for request in requests:
        scheduler.arrive(request)
    for step in range(most_steps):
        batch = scheduler.schedule()
        if batch is None:
            break
        scheduler.complete(batch, step + 1.0)
        batches.append(batch)
    return batches


def replica_of(scheduler: Scheduler, *, plans_ahead: bool = False) -> Replica:
    """A replica whose steps take one second each."""
    return Replica(scheduler, lambda _batch: ONE_SECOND, plans_ahead=plans_ahead)
