"""What of a plan do files around Hugging Face's Trainer say, and what is decided for them?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_blocks import FSDP_OFFLOAD, Offload
from simulator.described.plan.stack import Stack
from simulator.exporters.plans import ONE_STAGE, Refusals, nodes_and_ranks, spelled_out
from simulator.importers.settings import option_table

OPTIMIZERS = option_table("trainer", "optimizer_names")
"""Names of our optimizers in TrainingArguments, whose default is that of Adam."""
STOPS_EARLY = "recompute_stops_early"
"""The fact of a stack that ``use_reentrant`` changes."""
_DECIDED = ("overlap_grad_reduce", "overlap_param_gather", "grad_reduce_precision")
"""Fields that are as the wrapper has them."""
_WHOLE_LAYERS = {"partition_activations": False, "contiguous_checkpoints": False}


def says(job: Job, fact: str) -> bool:
    """Whether a job's stack has a fact."""
    return bool(getattr(job.plan.stack, fact))


def differing_facts(job: Job, base: str, facts: Mapping[str, Any]) -> set[str]:
    """Facts of a job's stack that are not those of a base with some facts changed."""
    document = {"stack": {"base": base, **facts}, "compile": job.plan.compile}
    expected, has = Plan.model_validate(document).stack, job.plan.stack
    names = set(Stack.model_fields) - {"description"}
    return {name for name in names if getattr(has, name) != getattr(expected, name)}


class Split(NamedTuple):
    """How the ranks of a job share its model.

    Attributes:
        stage: Of ZeRO.
        replicas: Of the model.
        shard: Data-parallel ranks that share one.
        tp: Ranks that share each layer.
    """

    stage: int
    replicas: int
    shard: int
    tp: int


def split_of(job: Job) -> Split:
    """How the ranks of a job share its model."""
    plan = spelled_out(job)
    shard = (plan.zero_group or job.dp * plan.cp) // plan.cp if plan.zero else 1
    return Split(plan.zero, job.dp // shard, shard, plan.tp)


def refuse_untold(job: Job, plan: Plan, refusals: Refusals, *, told: Collection[str] = ()) -> None:
    """Note what no file around the Trainer says, but for fields of the plan that this one does."""
    refusals.unless_default(plan, "plan", {**ONE_STAGE, **_WHOLE_LAYERS})
    refusals.all_but_pretraining(job, told)
    hint = "the training script decides it: export with --set reference=null"
    refusals.unless(job.reference is None, "reference", str(job.reference)[:40], hint)
    refusals.unusual_attention()
    refusals.unless_plan(plan.optimizer in OPTIMIZERS, "optimizer")
    again = "the Trainer computes all layers again, or none: export with --set plan.recompute=full"
    refusals.unless_plan(plan.recompute in ("full", "none"), "recompute", again)
    whole = "export with --set plan.sequence_parallel=false"
    refusals.unless_plan(not plan.sequence_parallel, "sequence_parallel", whole)
    _refuse_decided(job, plan, refusals)


def _refuse_decided(job: Job, plan: Plan, refusals: Refusals) -> None:
    plain = job.plan.model_copy(update=dict.fromkeys(_DECIDED, None))
    usual = job.model_copy(update={"plan": plain})
    spelled = spelled_out(usual)
    kept = job.choices.kept_gradients == usual.choices.kept_gradients
    for name in _DECIDED:
        same = getattr(plan, name) == getattr(spelled, name)
        hint = f"the wrapper decides it: export with --set plan.{name}=null"
        refusals.unless_plan(same and (kept or name != _DECIDED[-1]), name, hint)


def refuse_torch_sharding(job: Job, plan: Plan, refusals: Refusals, version: int) -> None:
    """Note what a version of FSDP does not do to a job, or DDP, which is version 0."""
    stages = "FSDP is plan.zero: 3, with or without plan.reshard_after_forward; ZeRO 1 and 2 are "
    stages += "DeepSpeed's: export with --set plan.stack=deepspeed"
    refusals.unless_plan(plan.zero in (0, 3), "zero", stages)
    refusals.unless(
        plan.offload in (Offload(), *([FSDP_OFFLOAD] if version else [])),
        "plan.offload",
        plan.offload.model_dump(exclude_defaults=True),
        "FSDP offloads either {optimizer: cpu, parameters: cpu} or nothing",
    )
    is_second = version == 2
    refusals.unless_plan(plan.cp == 1 or is_second, "cp", "sequences are shared under FSDP2")
    is_whole = plan.tp == 1 or is_second or job.dp == 1
    refusals.unless_plan(is_whole, "tp", "layers are split under FSDP2")
    group = plan.zero_group
    _, per_node = nodes_and_ranks(job)
    can_be_said = group > 1 and group % plan.cp == 0 if is_second else group == per_node
    inside = "FSDP1 shards inside a node or over all ranks"
    refusals.unless_plan(not group or can_be_said, "zero_group", inside)
