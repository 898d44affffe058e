"""Which rules hold between data parallelism, the optimizer, and the rest of a job?

An optimizer that looks at more than one element at a time cannot work on a shard that was cut out
of a flat buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.described.plan.optimizers import UPDATE_RULES
from simulator.described.plan.plan import Plan
from simulator.errors import Fault


def data_parallel_faults(job: Job) -> Iterator[Fault]:
    """Every rule about who updates the model that the job breaks."""
    for rule in _RULES:
        yield from rule(job)


def _gradients_are_reduced_early_where_they_are_whole(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.no_sync or (job.choices.data_parallelism.divides_model and not plan.zero):
        return
    ways = f"plan.zero: {plan.zero}" if plan.zero else f"plan.data_parallel: {plan.data_parallel}"
    rule = f"does not apply with {ways}, which determines when gradients are reduced"
    yield Fault("plan.no_sync", rule, plan.no_sync, "remove it, or use ddp and plan.zero: 0")


def _one_place_updates_the_model(job: Job) -> Iterator[Fault]:
    """Where GPU 0 or servers update the weights, nothing else divides the model."""
    plan, kind, way = job.plan, job.plan.data_parallel, job.choices.data_parallelism
    if plan.parameter_servers and not way.has_servers:
        rule = f"does not apply with plan.data_parallel: {kind}, which has no servers"
        hint = "remove it, or use plan.data_parallel: parameter-server"
        yield Fault("plan.parameter_servers", rule, plan.parameter_servers, hint)
    if way.divides_model:
        return
    if plan.zero:
        rule = (
            f"must be 0 with plan.data_parallel: {kind}: {way.holder} all states, none are sharded"
        )
        yield Fault("plan.zero", rule, plan.zero, "use plan.zero: 0")
    if plan.contiguous_checkpoints:
        rule = f"belongs to ZeRO-R, which does not run with plan.data_parallel: {kind}"
        yield Fault("plan.contiguous_checkpoints", rule, True, "remove it, or use ddp")
    if plan.overlap_grad_reduce and not way.reduces_during_backward:
        rule = (
            f"is not possible with plan.data_parallel: {kind}, which reduces gradients after "
            "the backward"
        )
        yield Fault("plan.overlap_grad_reduce", rule, True, "remove it, or use ddp")
    if way.has_servers and plan.optimizer == "muon":
        rule = "multiplies matrices in its update, which is not modelled on servers without GPUs"
        yield Fault("plan.optimizer", rule, plan.optimizer, "use adam, or ddp")
    if plan.offload.is_used:
        rule = (
            f"does not apply with plan.data_parallel: {kind}: no framework combines it with "
            "offloading"
        )
        given = plan.offload.model_dump(exclude_defaults=True)
        yield Fault("plan.offload", rule, given, "remove it, or use ddp")
    for name in ("tp", "pp", "cp", "ep"):
        degree = getattr(plan, name)
        if degree > 1:
            rule = f"must be 1 with plan.data_parallel: {kind}, which copies whole models"
            yield Fault(f"plan.{name}", rule, degree, f"use plan.{name}: 1, or ddp")
    if plan.schedule not in (None, "1f1b"):
        rule = f"does not apply with plan.data_parallel: {kind}, which has no pipeline"
        yield Fault("plan.schedule", rule, plan.schedule, "remove it, or use ddp")


def _one_process_stays_in_its_node(job: Job) -> Iterator[Fault]:
    network, gpus = job.cluster.profile.network, job.cluster.gpus
    if not job.choices.data_parallelism.is_one_process or gpus <= network.gpus_per_node:
        return
    rule = (
        "is one process, which can use the GPUs of one node only: "
        f"{gpus} GPUs are {job.cluster.nodes} nodes"
    )
    hint = f"use ddp, or cluster.gpus: {network.gpus_per_node}"
    yield Fault("plan.data_parallel", rule, job.plan.data_parallel, hint)


def _servers_are_reached_over_the_fabric(job: Job) -> Iterator[Fault]:
    plan, fabric = job.plan, job.cluster.profile.network.fabric
    if job.choices.data_parallelism.has_servers and not fabric.nics_per_node:
        rule = "needs network cards to reach its servers, but the profile's nodes have none"
        hint = "use ddp, or set cluster.network.fabric.nics_per_node and nic"
        yield Fault("plan.data_parallel", rule, plan.data_parallel, hint)


_RULES = (
    _gradients_are_reduced_early_where_they_are_whole,
    _one_place_updates_the_model,
    _one_process_stays_in_its_node,
    _servers_are_reached_over_the_fabric,
)


_LOOKS_AT = {
    "lamb": "the norm of every whole tensor",
    "adafactor": "the rows and columns of every matrix",
}
_NEEDS_WHOLE_GRADIENTS = {
    "galore": ("projects", "2403.03507, algorithm 2"),
    "soap": ("rotates", "2409.11321, algorithm 3"),
}


def optimizer_faults(job: Job) -> Iterator[Fault]:
    """Every way in which the optimizer does not go with the plan."""
    yield from _matrices_stay_whole(job)
    yield from _validation_has_a_norm(job)
    yield from _updates_in_backward(job)
    if job.plan.updates_in_a_loop and not UPDATE_RULES[job.plan.optimizer].eager_kernels:
        rule = f"is modelled for adam alone; operators of {job.plan.optimizer} are not counted"
        yield Fault("plan.optimizer_kernels", rule, "for-loop", "remove it, or use adam")
    if job.plan.moment_precision and UPDATE_RULES[job.plan.optimizer].has_fixed_format:
        rule = f"does not apply to {job.plan.optimizer}, whose states have a format of their own"
        yield Fault("plan.moment_precision", rule, job.plan.moment_precision, "remove it")
    rank = job.plan.optimizer_rank
    if rank != Plan.model_fields["optimizer_rank"].default and job.plan.optimizer != "galore":
        rule = f"is that of projected gradients, which {job.plan.optimizer} does not have"
        yield Fault("plan.optimizer_rank", rule, rank, "remove it, or use plan.optimizer: galore")


def _matrices_stay_whole(job: Job) -> Iterator[Fault]:
    plan = job.plan
    shards = plan.zero_group or job.dp * plan.cp
    if not job.choices.reduces_to_shards or shards <= 1:
        return
    hint = "use plan.zero: 0, or plan.optimizer: adam"
    if plan.optimizer in _LOOKS_AT and not job.choices.shards_matrices:
        rule = (
            f"needs {_LOOKS_AT[plan.optimizer]}, but the plan's stack shards a flat buffer; "
            f"ZeRO {plan.zero} of DeepSpeed, Megatron and FSDP1 runs element-wise optimizers only"
        )
        yield Fault("plan.optimizer", rule, plan.optimizer, hint)
    if plan.optimizer in _NEEDS_WHOLE_GRADIENTS:
        does, paper = _NEEDS_WHOLE_GRADIENTS[plan.optimizer]
        rule = f"{does} whole gradients, which the plan shards (arXiv {paper})"
        yield Fault("plan.optimizer", rule, plan.optimizer, hint)
    if plan.optimizer == "muon" and plan.zero > 1:
        rule = (
            f"needs whole matrices, but ZeRO {plan.zero} shards their gradients; only momenta "
            "that ZeRO 1 shards are gathered (Distributed Muon, arXiv 2502.16982)"
        )
        yield Fault(
            "plan.optimizer", rule, plan.optimizer, "use plan.zero: 0 or 1, or plan.optimizer: adam"
        )


def _validation_has_a_norm(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.post_validation and not plan.clip_gradients:
        rule = "checks the gradient norm, which plan.clip_gradients: false leaves out"
        yield Fault("plan.post_validation", rule, True, "remove one of them")


def _updates_in_backward(job: Job) -> Iterator[Fault]:
    """Nothing may have to wait for a gradient but the update of its weight."""
    plan = job.plan
    if not plan.optimizer_in_backward:
        return
    path = "plan.optimizer_in_backward"
    if job.microbatches > 1:
        rule = f"updates after every backward, but a step has {job.microbatches} microbatches"
        yield Fault(path, rule, True, "use a smaller batch.global, or a larger batch.micro")
    if plan.clip_gradients:
        rule = "frees gradients before the norm of all is known, which plan.clip_gradients needs"
        yield Fault(path, rule, True, "set plan.clip_gradients: false")
    if plan.pp > 1 or plan.zero in (1, 2) or plan.offload.optimizer:
        rule = "is not modelled with pipelines, plan.zero 1 and 2, and offloaded optimizers"
        yield Fault(path, rule, True, "use plan.pp: 1 and plan.zero: 0 or 3")
