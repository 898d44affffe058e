"""What of a plan do torch's own strategies do, and how do they do it here?

Torch has DDP, FSDP2, tensor and sequence parallelism, pipeline schedules, context parallelism, and
collectives to build expert parallelism from. A plan that asks for more is refused with the way out;
facts of its stack that torch's eager modules do differently are replaced by what they do, and said,
so that the prediction is of the run that is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from simulator.described.base import file_name_of_field
from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_blocks import FSDP_OFFLOAD, Offload
from simulator.described.plan.shipped_stacks import STACKS
from simulator.errors import Fault, UnsupportedError
from simulator.facts import host_launches
from simulator.ranks.world import FP8_CAPABILITY, World
from simulator.schedule import SCHEDULES as SCHEDULE_INFOS

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {info.name: info.torch_name for info in SCHEDULE_INFOS.values() if info.torch_name}
)
"""Torch's name of every schedule that it has (``torch.distributed.pipelining.schedules``)."""

_SPLIT_BACKWARD = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8": torch.bfloat16,
    }
)
"""Format of activations of every precision that runs here; products of fp8 cast theirs."""

_KEPT_FACTS = frozenset(
    {
        "attention",
        "bucket_bytes",
        "buckets_gradients",
        "expandable_segments",
        "first_bucket_bytes",
        "flash_kernel",
        "host_work_per_launch",
        "keeps_master_weights",
        "overlap_p2p",
        "parallel_loss",
        "selective_policy",
        "sequence_parallel",
        "sharding_units",
        "shards_whole_parameters",
    }
)
"""Facts of a stack that the run takes from the job; all others are as plain torch does."""

Rule = Callable[[Job, World], Iterator[Fault]]

_PLAIN_FIELDS = (
    "data_parallel", "tp_method", "ep_dispatch", "recompute_layers", "recompute_modules",
    "partition_activations", "contiguous_checkpoints", "post_validation", "lora", "frozen",
    "prefix_tokens", "cross_entropy", "optimizer_kernels", "optimizer_in_backward",
)  # fmt: skip
"""Fields of a plan that the run has one way of."""

_OPTIMIZERS = ("adam", "sgd", "sgd-momentum")

_MULTIPLE = 16
"""What ``torch._scaled_mm`` takes multiples of: it reads 16 bytes at a time."""


@dataclass(frozen=True)
class AsRun:
    """A job as torch runs it on a world.

    Attributes:
        job: With the facts of the run in place of what its author said.
        notes: A sentence on every fact that was replaced.
    """

    job: Job
    notes: Sequence[str]


def check_strategies(job: Job, world: World) -> None:
    """Refuses what torch's own strategies do not do.

    Raises:
        UnsupportedError: Every such part of the plan, and what to take instead.
    """
    faults = [fault for rule in _RULES for fault in rule(job, world)]
    if faults:
        raise UnsupportedError(faults)


def as_torch_runs_it(job: Job, world: World) -> AsRun:
    """The job with its stack and overlaps as they are in torch on this world."""
    facts = _facts_of_run(job, world)
    given = job.plan.stack
    notes = [
        f"plan.stack.{name}: predicted as {value}, as torch runs it here (the job says "
        f"{getattr(given, name)})"
        for name, value in facts.items()
        if name != "description" and getattr(given, name) != value
    ]
    changed = {
        file_name_of_field(name): _written(name, value)
        for name, value in facts.items()
        if value != getattr(STACKS["torch"], name)
    }
    changes: dict[str, Any] = {"plan.stack": {"base": "torch", **changed}}
    if not world.is_gpu and job.plan.zero == 3:
        changes |= {"plan.overlap_grad_reduce": False, "plan.overlap_param_gather": False}
        notes.append("FSDP2 overlaps nothing on a CPU, which has no streams")
    if job.plan.offload.is_used:
        notes.append(
            f"each rank updates with {torch.get_num_threads()} of its host's threads "
            "(OMP_NUM_THREADS, which torchrun sets to 1); predicted with all cores of the profile"
        )
    if job.perturbations:
        notes.append("perturbations are in the prediction, but not in the real run")
    return AsRun(job.replace(changes), notes)


def _facts_of_run(job: Job, world: World) -> dict[str, Any]:
    given = job.plan.stack
    whole = DTYPES[job.plan.precision] == torch.float32
    has_fused_norm = world.is_gpu and hasattr(torch.ops.aten, "_fused_rms_norm")
    return {
        name: getattr(given if name in _KEPT_FACTS else STACKS["torch"], name)
        for name in type(given).model_fields
    } | {
        "fused_rmsnorm": has_fused_norm,
        "host_work_per_exchange": host_launches("dtensor_exchange") if job.plan.tp > 1 else None,
        "expert_waits": _expert_waits(job, world),
        "keeps_half_weights": given.keeps_half_weights if whole else not given.keeps_master_weights,
    }


def _expert_waits(job: Job, world: World) -> str:
    """Each expert of the reference model asks the device for its rows; an only one has all."""
    experts = job.model.experts
    if experts is None or not world.is_gpu:
        return "none"
    return "layer" if experts.count == job.plan.ep else "expert"


def _written(name: str, value: object) -> object:
    return f"{value!r} B" if name.endswith("_bytes") else value


def check_can_sleep(job: Job) -> None:
    """Refuses jobs whose layers do more than one pass each way.

    Raises:
        UnsupportedError: Layers are computed again, or have gradients of inputs and weights
            apart.
    """
    plan, rule = job.plan, "does not apply to layers that sleep"
    faults = []
    if plan.recompute != "none":
        faults.append(Fault("plan.recompute", rule, plan.recompute, "use none"))
    if plan.pp > 1 and SCHEDULES[job.choices.schedule.name] in _SPLIT_BACKWARD:
        whole = [ours for ours, theirs in SCHEDULES.items() if theirs not in _SPLIT_BACKWARD]
        faults.append(Fault("plan.schedule", rule, plan.schedule, f"use {', '.join(whole)}"))
    if faults:
        raise UnsupportedError(faults)


def _schedule_is_torchs(job: Job, _: World) -> Iterator[Fault]:
    name = job.plan.schedule
    if job.plan.pp > 1 and name is not None and name not in SCHEDULES:
        hint = f"use one of {', '.join(SCHEDULES)}"
        yield Fault("plan.schedule", "torch.distributed.pipelining does not have it", name, hint)


def _embedding_is_not_shared_between_ranks(job: Job, _: World) -> Iterator[Fault]:
    plan = job.plan
    if not job.model.tied_embeddings:
        return
    hint = "use model.tied_embeddings: false"
    if plan.pp > 1:
        rule = "torch.distributed.pipelining does not synchronise weights that stages share"
        yield Fault("model.tied_embeddings", rule, value=True, hint=f"{hint}, or plan.pp: 1")
    if plan.tp > 1:
        rule = "parallelize_module gives each module weights of its own"
        yield Fault("model.tied_embeddings", rule, value=True, hint=f"{hint}, or plan.tp: 1")


def _sharding_is_torchs(job: Job, _: World) -> Iterator[Fault]:
    plan = job.plan
    if job.dp * plan.cp == 1:
        return
    if plan.zero == 1 and not plan.stack.shards_whole_parameters:
        yield Fault(
            "plan.zero",
            "torch's ZeRO 1 (ZeroRedundancyOptimizer) assigns whole parameters to ranks, but this "
            "stack shards each of them",
            plan.zero,
            "use plan.stack: {base: torch, shards_whole_parameters: true}, or plan.zero: 0 or 3",
        )
    if plan.zero == 1 and (plan.tp > 1 or plan.pp > 1 or plan.ep > 1):
        rule = "torch's ZeroRedundancyOptimizer runs with data parallelism alone"
        yield Fault("plan.zero", rule, plan.zero, "use plan.zero: 3")
    if plan.zero_group and plan.cp > 1:
        rule = "torch shards over data- and context-parallel ranks together"
        yield Fault("plan.zero_group", rule, plan.zero_group, "remove it, or use plan.cp: 1")
    if plan.zero == 2:
        yield Fault(
            "plan.zero",
            "torch has no ZeRO 2 of its own",
            plan.zero,
            "use plan.zero: 3 with plan.reshard_after_forward: false, which is FSDP2's",
        )
    if plan.zero < 3 and plan.tp > 1:
        rule = "DDP does not take the DTensors of tensor parallelism"
        yield Fault("plan.zero", rule, plan.zero, "use plan.zero: 3, which is FSDP2")


def _overlaps_are_torchs(job: Job, world: World) -> Iterator[Fault]:
    plan = job.plan
    always = world.is_gpu or plan.zero < 3
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        off = getattr(plan, name) is False
        applies = name == "overlap_grad_reduce" or plan.zero == 3
        if off and applies and always and job.dp * plan.cp > 1:
            rule = "torch's DDP and FSDP2 always overlap"
            yield Fault(f"plan.{name}", rule, value=False, hint="remove it")
    for name in ("overlap_tp", "overlap_ep", "overlap_shared_expert"):
        if getattr(plan, name):
            rule = "torch's eager modules wait for the collective"
            yield Fault(f"plan.{name}", rule, value=True, hint="remove it")


def _layers_have_attention(job: Job, _: World) -> Iterator[Fault]:
    if job.model.ssm is not None:
        rule = "the reference model has no Mamba-2 layers"
        yield Fault("model.ssm", rule, hint="use a model with attention in all layers")


def _experts_are_spread_as_here(job: Job, _: World) -> Iterator[Fault]:
    plan = job.plan
    if job.model.experts is None:
        return
    if plan.tp > 1 or plan.expert_tp > 1:
        rule = "experts are distributed here by all_to_all only, without tensor parallelism"
        yield Fault("plan.tp", rule, plan.tp, "use plan.tp: 1 and leave out plan.etp")
    if plan.cp > 1 and plan.ep > 1:
        rule = "experts are distributed here over data-parallel ranks"
        yield Fault("plan.ep", rule, plan.ep, "use plan.cp: 1, or plan.ep: 1")
    elif plan.ep > 1 and plan.ep != job.dp:
        rule = f"experts are distributed here over all {job.dp} data-parallel ranks, without copies"
        yield Fault("plan.ep", rule, plan.ep, f"use plan.ep: {job.dp}, or plan.ep: 1")
    if plan.ep > 1 and plan.zero_group:
        rule = "cannot be combined with expert parallelism here"
        yield Fault("plan.zero_group", rule, plan.zero_group, "remove it")
    if plan.expert_load is not None:
        rule = "the real router decides how many tokens each expert receives"
        yield Fault("plan.expert_load", rule, hint="remove it")


def _sequences_are_shared_as_torch_does(job: Job, world: World) -> Iterator[Fault]:
    plan = job.plan
    if plan.cp > 1 and plan.cp_method != "ring":
        rule = "torch's context_parallel passes keys and values around a ring"
        yield Fault("plan.cp_method", rule, plan.cp_method, "use plan.cp_method: ring")
    if plan.cp > 1 and not world.is_gpu:
        rule = "torch's context_parallel has attention kernels for GPUs only"
        yield Fault("plan.cp", rule, plan.cp, "use plan.cp: 1, or run where there is a GPU")
    if plan.cuts_sequence and job.model.positions == "learned":
        rule = "learned positions are added before the sequence is divided"
        hint = "use plan.sequence_parallel: false"
        yield Fault("plan.sequence_parallel", rule, value=True, hint=hint)


def _format_is_torchs(job: Job, world: World) -> Iterator[Fault]:
    precision = job.plan.precision
    if precision not in DTYPES:
        rule = "steps run here in fp32, tf32, fp16, bf16 or fp8"
        yield Fault("plan.precision", rule, precision, "use plan.precision: bf16")
    elif precision in ("tf32", "fp16") and not world.is_gpu:
        rule = "torch's CPU kernels have no such format"
        yield Fault("plan.precision", rule, precision, "use plan.precision: fp32 or bf16")
    elif precision == "bf16" and world.is_gpu and not torch.cuda.is_bf16_supported():
        name = torch.cuda.get_device_name(world.device)
        yield Fault("plan.precision", f"{name} has no bf16", precision, "use fp16 or fp32")
    elif precision == "fp8":
        yield from float8_faults(job, world)


def _kernels_are_torchs(job: Job, _: World) -> Iterator[Fault]:
    plan = job.plan
    if plan.attention_kernel == "unfused" and not job.model.widens_scores:
        hint = "use plan.attention: flash"
        yield Fault("model.widens_scores", "torch's unfused attention widens", False, hint)
    if plan.attention_kernel == "fused-softmax":
        hint = "use plan.attention: flash or unfused"
        yield Fault("plan.attention", "torch has no such kernel", plan.attention_kernel, hint)
    if plan.recompute == "selective" and plan.stack.selective_policy != "core-attention":
        rule = "the reference model repeats core attention or whole layers"
        hint = "use plan.stack: {base: torch}"
        yield Fault("plan.recompute", rule, plan.recompute, hint)


def _rest_is_plain(job: Job, _: World) -> Iterator[Fault]:
    plan = job.plan
    for name in _PLAIN_FIELDS:
        value = getattr(plan, name)
        if value != Plan.model_fields[name].default:
            yield Fault(f"plan.{name}", "is not supported here", value, "remove it")
    for name in ("document_len", "lengths"):
        if (value := getattr(job.batch, name)) is not None:
            yield Fault(f"batch.{name}", "is not supported here", value, "remove it")
    if plan.optimizer not in _OPTIMIZERS:
        hint = f"use one of {', '.join(_OPTIMIZERS)}"
        yield Fault("plan.optimizer", "is not supported here", plan.optimizer, hint)


def _offload_is_fsdps(job: Job, world: World) -> Iterator[Fault]:
    """Torch's ``CPUOffloadPolicy`` moves all that FSDP2 shards to the host, and nothing else."""
    plan, path, away = job.plan, "plan.offload", "remove it"
    if not plan.offload.is_used:
        return
    for name in Offload.model_fields:
        value = getattr(plan.offload, name)
        if value != getattr(FSDP_OFFLOAD, name):
            rule = "FSDP2 keeps parameters, gradients and optimizer states together on the CPU"
            hint = "use plan.offload: {optimizer: cpu, parameters: cpu}, or remove it"
            yield Fault(f"{path}.{name}", rule, value, hint)
    given = plan.offload.model_dump(exclude_defaults=True)
    if job.dp * plan.cp == 1:
        rule = "FSDP2 offloads shards, but there is one data-parallel rank"
        yield Fault(path, rule, given, f"use more cluster.gpus, or {away}")
    if plan.ep > 1:
        rule = "distributed experts are not part of FSDP2 here, and stay on the GPU"
        yield Fault(path, rule, given, f"use plan.ep: 1, or {away}")
    if not world.is_gpu:
        rule = "there is nothing to offload: a CPU computes in host memory"
        yield Fault(path, rule, given, f"run where there is a GPU, or {away}")


_RULES: Sequence[Rule] = (
    _rest_is_plain,
    _offload_is_fsdps,
    _schedule_is_torchs,
    _embedding_is_not_shared_between_ranks,
    _sharding_is_torchs,
    _overlaps_are_torchs,
    _layers_have_attention,
    _experts_are_spread_as_here,
    _sequences_are_shared_as_torch_does,
    _format_is_torchs,
    _kernels_are_torchs,
)


def float8_faults(job: Job, world: World) -> Iterator[Fault]:
    """What the device, the plan or the sizes have against 8-bit products, and the way out."""
    yield from _of_device(world)
    plan, rule = job.plan, "has no 8-bit matrix products here"
    hint = "use plan.precision: bf16"
    if plan.tp > 1:
        yield Fault("plan.tp", rule, plan.tp, f"use plan.tp: 1, or {hint}")
    if job.model.experts is not None:
        yield Fault("model.experts", rule, hint=hint)
    if plan.pp > 1 and job.choices.schedule.splits_backward:
        rule = "8-bit products give both gradients at once here"
        yield Fault("plan.schedule", rule, plan.schedule, "use plan.schedule: 1f1b")
    yield from _of_sizes(job)


def _of_device(world: World) -> Iterator[Fault]:
    if not world.is_gpu:
        return
    capability = torch.cuda.get_device_capability(world.device)
    if capability < FP8_CAPABILITY:
        name, needed = torch.cuda.get_device_name(world.device), _dotted(FP8_CAPABILITY)
        rule = f"{name} has compute capability {_dotted(capability)}, 8-bit products need {needed}"
        yield Fault("plan.precision", rule, "fp8", "use plan.precision: bf16 or fp16, or a GPU "
                    "from Ada or Hopper on")  # fmt: skip


def _of_sizes(job: Job) -> Iterator[Fault]:
    model = job.model
    sizes = {
        "model.hidden": model.hidden,
        "model.heads": model.heads * model.head_dim,
        "model.kv_heads": model.kv_heads * model.head_dim,
        "model.ffn_hidden": model.ffn_hidden,
        "batch.seq_len": job.batch.micro_batch * job.batch.seq_len // job.plan.cp,
    }
    rule = f"makes an 8-bit matrix product with a dimension that is not a multiple of {_MULTIPLE}"
    for path, size in sizes.items():
        if size % _MULTIPLE:
            yield Fault(path, rule, size, "change it, or use plan.precision: bf16")


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
