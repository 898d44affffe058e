"""Which optimizers run with which sharding?

An optimizer that looks at more than one element at a time cannot work on a shard that was cut
out of a flat buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.errors import Fault

_LOOKS_AT = {
    "lamb": "the norm of every whole tensor",
    "adafactor": "the rows and columns of every matrix",
}


def optimizer_faults(job: Job) -> Iterator[Fault]:
    """Every way in which the optimizer does not go with the plan."""
    yield from _matrices_stay_whole(job)
    yield from _validation_has_a_norm(job)


def _matrices_stay_whole(job: Job) -> Iterator[Fault]:
    plan = job.plan
    shards = plan.zero_group or job.dp * plan.cp
    if not job.choices.reduces_to_shards or shards <= 1:
        return
    hint = "take plan.zero: 0, or plan.optimizer: adam"
    if plan.optimizer in _LOOKS_AT and not plan.stack.shards_matrices:
        rule = (
            f"needs {_LOOKS_AT[plan.optimizer]}, but the plan's stack shards a flat buffer; "
            f"ZeRO {plan.zero} of DeepSpeed, Megatron and FSDP1 runs element-wise optimizers only"
        )
        yield Fault("plan.optimizer", rule, plan.optimizer, hint)
    if plan.optimizer == "muon" and plan.zero > 1:
        rule = (
            f"needs whole matrices, but ZeRO {plan.zero} shards their gradients; only momenta "
            "that ZeRO 1 shards are gathered (Distributed Muon, arXiv 2502.16982)"
        )
        yield Fault("plan.optimizer", rule, plan.optimizer, f"take plan.zero: 1; {hint}")


def _validation_has_a_norm(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.post_validation and not plan.clip_gradients:
        rule = "checks the gradient norm, which plan.clip_gradients: false leaves out"
        yield Fault("plan.post_validation", rule, True, "leave one of them out")
