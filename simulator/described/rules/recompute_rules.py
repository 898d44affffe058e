"""Which rules hold for what backward computes again?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.errors import Fault


def recompute_faults(job: Job) -> Iterator[Fault]:
    """Every rule about recomputation that the job breaks."""
    yield from _only_whole_layers_can_be_counted(job)
    if job.plan.recompute_modules:
        yield from _modules_are_what_selective_repeats(job)
        yield from _modules_are_in_the_model(job)


def _only_whole_layers_can_be_counted(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.recompute_layers is None:
        return
    path, value = "plan.recompute_layers", plan.recompute_layers
    if plan.recompute != "full":
        rule = f"counts whole layers, but plan.recompute is {plan.recompute}"
        yield Fault(path, rule, value, "set plan.recompute: full, or leave it out")
    if not job.choices.schedule.recomputes_blocks:
        rule = f"is Megatron's block method, which does not run under {plan.schedule}"
        yield Fault(path, rule, value, "leave it out, or take plan.schedule: 1f1b")


def _modules_are_what_selective_repeats(job: Job) -> Iterator[Fault]:
    plan = job.plan
    path, value = "plan.recompute_modules", list(plan.recompute_modules)
    if plan.recompute != "selective":
        rule = f"names parts of layers, but plan.recompute is {plan.recompute}"
        yield Fault(path, rule, value, "set plan.recompute: selective, or leave it out")
    policy = job.choices.selective_policy
    if policy != "core-attention":
        rule = f"is Megatron-Core's, but selective means {policy} in the plan's stack"
        yield Fault(path, rule, value, "leave it out, or take plan.stack: megatron-core")


def _modules_are_in_the_model(job: Job) -> Iterator[Fault]:
    """Megatron-Core refuses the first two itself; the rest would repeat nothing there."""
    model, experts = job.model, job.model.experts
    has_norms = model.norms_per_layer > 1 and not model.parallel_block
    shares = experts is not None and experts.shared_ffn_hidden > 0
    needs = {
        "mla_up_proj": (model.latent_attention is not None, "latent attention"),
        "moe_act": (experts is not None, "experts"),
        "moe": (experts is not None, "experts"),
        "shared_experts": (shares, "shared experts"),
        "mlp": (has_norms, "a norm before the MLP, behind attention"),
    }
    for module in dict.fromkeys(job.plan.recompute_modules):
        is_there, what = needs.get(module, (True, ""))
        if not is_there:
            yield Fault("plan.recompute_modules", f"needs a model with {what}", module,
                        "leave it out")  # fmt: skip
