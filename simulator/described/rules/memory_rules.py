"""Which rules hold for what leaves the GPU, and for what backward computes again?

Whether the plan's framework runs the offloading, and whether the profile knows the host.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.errors import Fault

_ON_THE_CPU = ("adam", "sgd", "sgd-momentum")
"""Optimizers whose step runs on a CPU in some framework."""


def offload_faults(job: Job) -> Iterator[Fault]:
    """Every rule that the offloading of a job breaks."""
    if not job.plan.offload.is_used:
        yield from _options_have_a_meaning(job)
        return
    for rule in _RULES:
        yield from rule(job)


def _options_have_a_meaning(job: Job) -> Iterator[Fault]:
    offload = job.plan.offload
    if offload.activation_layers and not offload.activations:
        rule = "counts layers with offloaded activations, but there are none"
        hint = "add activations: cpu"
        yield Fault("plan.offload.activation_layers", rule, offload.activation_layers, hint)
    if offload.optimizer:
        return
    if offload.share < 1:
        rule = "is the offloaded share of the optimizer, which is not offloaded"
        hint = "add optimizer: cpu"
        yield Fault("plan.offload.share", rule, offload.share, hint)
    if not offload.overlap:
        rule, hint = "applies to updates on the CPU, but there are none", "add optimizer: cpu"
        yield Fault("plan.offload.overlap", rule, False, hint)
    if offload.delayed_update:
        rule, hint = "delays updates on the CPU, but there are none", "add optimizer: cpu"
        yield Fault("plan.offload.delayed_update", rule, True, hint)


def _stack_offloads(job: Job) -> Iterator[Fault]:
    offload, kind = job.plan.offload, job.choices.offloads
    given = offload.model_dump(exclude_defaults=True)
    if kind == "nothing":
        hint = "use plan.stack: deepspeed, torchtitan or megatron-core"
        yield Fault("plan.offload", "the plan's stack offloads nothing", given, hint)
    if kind == "optimizer":
        if offload.parameters:
            rule = "the plan's stack keeps its weights on the GPU (Megatron-Core does)"
            hint = "use plan.stack: deepspeed, or remove it"
            yield Fault("plan.offload.parameters", rule, offload.parameters, hint)
        if offload.optimizer == "nvme":
            rule, hint = "only DeepSpeed keeps states on NVMe", "use cpu, or plan.stack: deepspeed"
            yield Fault("plan.offload.optimizer", rule, "nvme", hint)
    if kind == "shards" and (offload.optimizer or offload.parameters):
        if (offload.optimizer, offload.parameters) != ("cpu", "cpu"):
            rule = "FSDP offloads parameters, gradients and optimizer together, and to the CPU"
            hint = "use {optimizer: cpu, parameters: cpu}, or plan.stack: deepspeed"
            yield Fault("plan.offload", rule, given, hint)
        if offload.share < 1:
            rule, hint = "FSDP offloads all or nothing", "remove it, or plan.stack: deepspeed"
            yield Fault("plan.offload.share", rule, offload.share, hint)
    splits_update = offload.optimizer is not None and offload.share < 1
    if kind == "infinity" and splits_update and not job.choices.shards_weights:
        rule = "DeepSpeed splits the update between CPU and GPU with ZeRO 3 only (its ratio)"
        yield Fault("plan.offload.share", rule, offload.share, "use plan.zero: 3, or remove it")
    if kind != "optimizer" and not offload.overlap:
        rule, hint = "is an option of Megatron-Core only", "remove it"
        yield Fault("plan.offload.overlap", rule, False, hint)
    if kind != "infinity" and offload.delayed_update:
        rule, hint = "only ZeRO-Offload delays updates", "use plan.stack: deepspeed"
        yield Fault("plan.offload.delayed_update", rule, True, hint)


def _sharding_allows_it(job: Job) -> Iterator[Fault]:
    offload, choices = job.plan.offload, job.choices
    if offload.optimizer and not choices.shards_states:
        rule = "is part of sharded optimizers in every framework"
        yield Fault("plan.offload.optimizer", rule, offload.optimizer, "use plan.zero: 1 or more")
    if offload.parameters and not choices.shards_weights:
        rule = "needs plan.zero: 3: below that every GPU holds all weights"
        yield Fault("plan.offload.parameters", rule, offload.parameters, "use plan.zero: 3")
    if offload.optimizer == "nvme" and not choices.shards_weights:
        rule = "DeepSpeed keeps states on NVMe with ZeRO 3 only"
        yield Fault("plan.offload.optimizer", rule, "nvme", "use plan.zero: 3, or cpu")
    if offload.parameters and not offload.optimizer:
        rule = "needs the optimizer on the CPU as well, whose fp32 weights are on the host"
        hint = "add plan.offload.optimizer: cpu"
        yield Fault("plan.offload.parameters", rule, offload.parameters, hint)
    if offload.optimizer and choices.updates_whole_parameters:
        rule = "optimizers that assign whole parameters to ranks do not update on the CPU"
        yield Fault("plan.offload.optimizer", rule, offload.optimizer, "remove it")


def _update_can_run_on_the_cpu(job: Job) -> Iterator[Fault]:
    plan, offload = job.plan, job.plan.offload
    if offload.optimizer and plan.optimizer not in _ON_THE_CPU:
        rule = f"cannot update on a CPU; these can: {', '.join(_ON_THE_CPU)}"
        yield Fault("plan.optimizer", rule, plan.optimizer, "use adam")
    if offload.delayed_update and (plan.pp > 1 or offload.parameters or offload.share < 1):
        rule = (
            "is published for ZeRO-Offload: all of the optimizer on the CPU, parameters on the "
            "GPU, no pipeline"
        )
        yield Fault("plan.offload.delayed_update", rule, True, "remove it")


def _pipelines_allow_it(job: Job) -> Iterator[Fault]:
    plan, offload = job.plan, job.plan.offload
    if plan.pp == 1:
        return
    for name, reason in (
        ("parameters", "is not modelled in a pipeline, where DeepSpeed refuses ZeRO 3"),
        ("activations", "Megatron-Core and DeepSpeed refuse it inside a pipeline"),
    ):
        if getattr(offload, name):
            yield Fault(f"plan.offload.{name}", reason, getattr(offload, name), "use plan.pp: 1")
    if offload.optimizer and (not job.choices.schedule.offloads or plan.post_validation):
        rule = (
            f"no framework updates on the CPU under {plan.schedule or 'post-validation'}: "
            "the runtime of such schedules fuses the update into the pipeline on the GPU"
        )
        yield Fault("plan.offload.optimizer", rule, offload.optimizer, "use plan.schedule: 1f1b")


def _checkpoints_or_activations(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if not plan.offload.activations:
        return
    path, kind = "plan.offload.activations", job.choices.offloads
    count, most = plan.offload.activation_layers, job.model.layers - 1
    if count is not None and count > most:
        rule = f"must be below the {job.model.layers} layers of the model: the last one stays"
        yield Fault("plan.offload.activation_layers", rule, count, f"use {most} or remove it")
    if count is not None and kind != "optimizer":
        rule, hint = "is an option of Megatron-Core only", "remove it"
        yield Fault("plan.offload.activation_layers", rule, count, hint)
    if kind == "optimizer" and plan.recompute != "none":
        rule = f"Megatron-Core refuses it with plan.recompute: {plan.recompute}"
        yield Fault(path, rule, "cpu", "use plan.recompute: none")
    if kind == "infinity" and not _repeats_every_layer(plan):
        rule = "DeepSpeed offloads checkpoints of layers (cpu_checkpointing), and nothing else"
        hint = "use plan.recompute: full, without plan.recompute_layers"
        yield Fault(path, rule, "cpu", hint)


def _repeats_every_layer(plan: Plan) -> bool:
    return plan.recompute == "full" and plan.recompute_layers is None


def partition_faults(job: Job) -> Iterator[Fault]:
    """Checkpoints are divided only where ranks would hold copies of them."""
    plan, path = job.plan, "plan.partition_activations"
    if not plan.partition_activations:
        return
    if plan.recompute != "full":
        rule = "divides the inputs of recomputed layers, but there are none"
        yield Fault(path, rule, True, "use plan.recompute: full")
    if plan.tp == 1:
        rule = "divides checkpoints over tensor-parallel ranks, but plan.tp is 1"
        yield Fault(path, rule, True, "remove it")
    if plan.cuts_boundary:
        rule = (
            "has nothing to divide: with sequence parallelism, or on a grid of tensor-parallel "
            "ranks, each rank already keeps a part"
        )
        yield Fault(path, rule, True, "remove it, or use plan.sequence_parallel: false")


def contiguity_faults(job: Job) -> Iterator[Fault]:
    """A buffer of fixed size holds checkpoints, and nothing that comes in other sizes."""
    plan, path = job.plan, "plan.contiguous_checkpoints"
    if plan.contiguous_checkpoints and not _repeats_every_layer(plan):
        rule = "is for the inputs of layers if all layers are recomputed"
        yield Fault(path, rule, True, "use plan.recompute: full, without plan.recompute_layers")
    if plan.contiguous_checkpoints and plan.offload.activations:
        rule = "keeps on the GPU what plan.offload.activations offloads"
        yield Fault(path, rule, True, "remove one of them")


def _host_is_described(job: Job) -> Iterator[Fault]:
    host, offload = job.cluster.profile.host, job.plan.offload
    if offload.optimizer and not host.memory_bandwidth_bytes_per_s:
        yield Fault(
            "cluster.host.memory_bandwidth",
            f"is needed for an update on the CPU, but {job.cluster.profile.name} does not state it",
            hint='give the bandwidth of all sockets of a node together, for example "400 GB/s"',
        )
    if not host.pcie_bytes_per_s:
        yield Fault("cluster.host.pcie", "must be above 0: copies to the host use it", 0)
    if "nvme" in (offload.optimizer, offload.parameters) and host.nvme is None:
        yield Fault(
            "cluster.host.nvme",
            f"is needed for offloading to NVMe, but {job.cluster.profile.name} does not state it",
            hint='for example {size: "15 TB", read: "25 GB/s", write: "20 GB/s"} of a node',
        )


_RULES = (
    _options_have_a_meaning,
    _stack_offloads,
    _sharding_allows_it,
    _update_can_run_on_the_cpu,
    _pipelines_allow_it,
    _checkpoints_or_activations,
    _host_is_described,
)


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
        yield Fault(path, rule, value, "set plan.recompute: full, or remove it")
    if not job.choices.schedule.recomputes_blocks:
        rule = f"is Megatron's block method, which does not run with {plan.schedule}"
        yield Fault(path, rule, value, "remove it, or use plan.schedule: 1f1b")


def _modules_are_what_selective_repeats(job: Job) -> Iterator[Fault]:
    plan = job.plan
    path, value = "plan.recompute_modules", list(plan.recompute_modules)
    if plan.recompute != "selective":
        rule = f"names parts of layers, but plan.recompute is {plan.recompute}"
        yield Fault(path, rule, value, "set plan.recompute: selective, or remove it")
    policy = job.choices.selective_policy
    if policy != "core-attention":
        rule = f"belongs to Megatron-Core, but selective means {policy} in the plan's stack"
        yield Fault(path, rule, value, "remove it, or use plan.stack: megatron-core")


def _modules_are_in_the_model(job: Job) -> Iterator[Fault]:
    """Megatron-Core refuses the first two itself; the rest would repeat nothing there."""
    model, experts = job.model, job.model.experts
    has_norms = model.norms_per_layer > 1 and not model.parallel_block and model.ffn_hidden > 0
    shares = experts is not None and experts.shared_ffn_hidden > 0
    needs = {
        "mla_up_proj": (model.latent_attention is not None, "latent attention"),
        "moe_act": (experts is not None, "experts"),
        "moe": (experts is not None, "experts"),
        "shared_experts": (shares, "shared experts"),
        "mlp": (has_norms, "a norm between attention and the MLP"),
    }
    for module in dict.fromkeys(job.plan.recompute_modules):
        is_there, what = needs.get(module, (True, ""))
        if not is_there:
            yield Fault("plan.recompute_modules", f"needs a model with {what}", module,
                        "remove it")  # fmt: skip
