"""Which plans does nobody run, although no rule forbids them?"""

from __future__ import annotations

from simulator.described.job import Job

MIN_TOKENS_PER_CONTEXT_RANK = 2048
"""Shorter pieces of a sequence are not worth dividing. Assumption."""

_WITHOUT_MODEL_PARALLELISM = frozenset({"torch", "torch-fsdp", "deepspeed"})
"""Stacks that have nothing but data parallelism."""
_SHARDING_UNDER_A_PIPELINE = frozenset({"torchtitan", "jax"})
"""Stacks that run ZeRO 2 and 3 with a pipeline. Megatron-Core's distributed optimizer is
ZeRO 1, and DeepSpeed's pipeline engine refuses gradient sharding."""


def is_data_parallel_only(job: Job) -> bool:
    """Whether the stack has no model parallelism."""
    return stack_name(job) in _WITHOUT_MODEL_PARALLELISM


def can_shard(job: Job) -> bool:
    """Whether the stack runs the plan's ZeRO stage with its pipeline."""
    plan = job.plan
    return plan.pp == 1 or plan.zero <= 1 or stack_name(job) in _SHARDING_UNDER_A_PIPELINE


def still_shards(changed: Job, job: Job) -> bool:
    """Whether a changed job shards as its stack does, or no more than the job itself does."""
    asks_no_more = not can_shard(job) and changed.plan.zero <= job.plan.zero
    return can_shard(changed) or asks_no_more


def stack_name(job: Job) -> str:
    """The stack that the plan names or starts from."""
    default = "megatron-core"
    given = job.document.get("plan", {}).get("stack", default)
    return given if isinstance(given, str) else str(given.get("base", default))
