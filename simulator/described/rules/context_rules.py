"""Which rules hold where ranks share a sequence?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.errors import Fault


def context_faults(job: Job) -> Iterator[Fault]:
    """Every rule of context parallelism that the job breaks."""
    for rule in (_heads_divide_over_ranks, _scores_stay_in_a_kernel, _layers_see_all_tokens):
        yield from rule(job)


def _heads_divide_over_ranks(job: Job) -> Iterator[Fault]:
    plan, heads = job.plan, job.model.heads
    combines = plan.cp_method == "all_to_all+ring"
    if not combines and plan.cp_heads > 1:
        rule = f"has no meaning with plan.cp_method: {plan.cp_method}"
        yield Fault("plan.cp_heads", rule, plan.cp_heads, "take all_to_all+ring, or leave it out")
    if combines and plan.cp % plan.cp_heads:
        yield Fault("plan.cp_heads", f"must divide plan.cp = {plan.cp}", plan.cp_heads)
    name, traders = ("cp_heads", plan.cp_heads) if combines else ("cp", plan.cp)
    if plan.cp > 1 and plan.cp_method.startswith("all_to_all") and heads % (plan.tp * traders):
        yield Fault(
            f"plan.{name}",
            f"tp x {name} = {plan.tp * traders} must divide the {heads} heads that ranks trade",
            traders,
            f"take plan.cp_method: ring, or a smaller plan.{name}",
        )


def _scores_stay_in_a_kernel(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.cp > 1 and plan.attention_kernel != "flash":
        yield Fault(
            "plan.cp",
            "context parallelism needs one fused attention kernel, and plan.attention is "
            f"{plan.attention_kernel}",
            plan.cp,
            "take plan.attention: flash, or plan.cp: 1",
        )


def _layers_see_all_tokens(job: Job) -> Iterator[Fault]:
    if job.plan.cp == 1:
        return
    window = max(map(job.model.window, range(job.model.layers)))
    if 0 < window < job.batch.seq_len:
        yield Fault(
            "plan.cp",
            f"context parallelism is not simulated for attention windows ({window} tokens)",
            job.plan.cp,
            "take plan.cp: 1",
        )
