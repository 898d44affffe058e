"""Which DeepSpeed configuration shards the states of a job as its plan says?

DeepSpeed's JSON knows sharding, formats and batch. Everything that the model's own code
decides (attention, tensor and pipeline parallelism) is an error where it differs from what
the JSON leaves as it is; that every layer is computed again is to be said beside the JSON.
"""

from __future__ import annotations

import json
from typing import Any

from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_blocks import Offload
from simulator.described.plan.shipped_stacks import STACKS
from simulator.described.plan.stack import Stack
from simulator.exporters.plans import ONE_STAGE, Refusals, changed_facts, spelled_out

_STACK = "deepspeed"
"""Stack of the JSON; those of other generations begin with it."""
_THRESHOLDS = {
    "whole_below_numel": "stage3_param_persistence_threshold",
    "live_numel": "stage3_max_live_parameters",
    "reuse_numel": "stage3_max_reuse_distance",
}
"""Facts of ZeRO 3 that gathers each parameter on its own, by the settings that change them."""

_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"type": "AdamW", "params": {}},
    "sgd": {"type": "SGD", "params": {}},
    "sgd-momentum": {"type": "SGD", "params": {"momentum": 0.9}},
    "lamb": {"type": "Lamb", "params": {}},
}


def deepspeed_config(job: Job) -> str:
    """A ``ds_config.json`` for a job; learning rate and logging are not the job's to say.

    Raises:
        UnsupportedError: With everything that DeepSpeed's JSON cannot say.
    """
    plan = spelled_out(job)
    _refuse(job, plan)
    zero: dict[str, Any] = {"stage": plan.zero, "overlap_comm": plan.overlap_grad_reduce}
    if plan.zero_group:
        zero["mics_shard_size"] = plan.zero_group
    zero |= _offload(plan.offload) | _sizes(plan)
    changed = changed_facts(plan.stack, _generation(plan.stack))
    if "all_reduces_shards" in changed and plan.zero in (1, 2):
        zero["use_multi_rank_bucket_allreduce"] = changed["all_reduces_shards"]
    if "products_keep_gathered" in changed and plan.zero == 3:
        zero["memory_efficient_linear"] = not changed["products_keep_gathered"]
    config: dict[str, Any] = {
        "train_batch_size": job.batch.global_batch,
        "train_micro_batch_size_per_gpu": job.batch.micro_batch,
        "gradient_accumulation_steps": job.microbatches,
        "zero_optimization": zero,
        "optimizer": _OPTIMIZERS[plan.optimizer],
        "gradient_clipping": 1.0 if plan.clip_gradients else 0.0,
    }
    if plan.grad_reduce_precision != plan.precision:
        config["communication_data_type"] = plan.grad_reduce_precision
    if checkpoints := _checkpoints(job, plan):
        config["activation_checkpointing"] = checkpoints
    if plan.precision != "fp32":
        config[plan.precision] = {"enabled": True}
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.cp > 1:
        config["sequence_parallel_size"] = plan.cp
    kept = changed_facts(plan.stack, _generation(plan.stack)).get("main_grad_precision")
    if kept:
        config["data_types"] = {"grad_accum_dtype": kept}
    return json.dumps(config, indent=2) + "\n"


def switched_on_in_the_model(job: Job) -> str:
    """What of a job's plan the model's code has to do beside the JSON; empty if nothing.

    DeepSpeed's JSON says where the inputs of layers that are computed again are kept, not that
    they are (its configuration reference, activation_checkpointing).
    """
    if job.plan.recompute != "full":
        return ""
    return (
        "switch gradient checkpointing on in the model, which the JSON cannot "
        "(plan.recompute: full): model.gradient_checkpointing_enable() of transformers, or "
        "deepspeed.checkpointing.checkpoint around each layer"
    )


def _generation(stack: Stack) -> str:
    """The stack of DeepSpeed that one is most like: files name no release."""
    names = [name for name in STACKS if name.startswith(_STACK)]
    return min(names, key=lambda name: len(changed_facts(stack, name)))


def _sizes(plan: Plan) -> dict[str, Any]:
    """Buckets and thresholds that differ from those of the stack [elements]."""
    changed = changed_facts(plan.stack, _generation(plan.stack))
    sizes = {name: changed[fact] for fact, name in _THRESHOLDS.items() if fact in changed}
    if "bucket_bytes" in changed:
        sizes["reduce_bucket_size"] = _bucket_numel(plan)
    return {name: int(numel) if numel == int(numel) else numel for name, numel in sizes.items()}


def _bucket_numel(plan: Plan) -> float:
    """Elements of a bucket, each of the format that gradients are reduced in."""
    return plan.stack.bucket_bytes / (4 if plan.reduced_gradients == "fp32" else 2)


def _sayable_facts(plan: Plan) -> set[str]:
    """Facts of the stack that the JSON can change, or that are those of another release."""
    facts = {
        "main_grad_precision", "all_reduces_shards", "bucket_copy_bytes", "holds_bucket_of_whole",
        "products_keep_gathered",
    }  # fmt: skip
    numel = _bucket_numel(plan)
    if numel >= 1 and numel == int(numel):
        facts.add("bucket_bytes")
    if plan.zero == 3 and plan.stack.sharding_units == "parameters":
        facts |= {name for name in _THRESHOLDS if getattr(plan.stack, name) is not None}
    return facts


def _offload(offload: Offload) -> dict[str, Any]:
    blocks: dict[str, Any] = {}
    if offload.optimizer:
        ratio = {"ratio": offload.share} if offload.share < 1 else {}
        blocks["offload_optimizer"] = {"device": offload.optimizer, "pin_memory": True, **ratio}
    if offload.parameters:
        blocks["offload_param"] = {"device": offload.parameters, "pin_memory": True}
    return blocks


def _checkpoints(job: Job, plan: Plan) -> dict[str, Any]:
    if plan.contiguous_checkpoints:
        # DeepSpeed wants both stated; a single rank has nothing to divide.
        return {
            "partition_activations": True, "contiguous_memory_optimization": True,
            "number_checkpoints": job.model.layers,
        }  # fmt: skip
    return {
        **({"partition_activations": True} if plan.partition_activations else {}),
        **({"cpu_checkpointing": True} if plan.offload.activations else {}),
    }


def _refuse(job: Job, plan: Plan) -> None:
    refusals = Refusals("DeepSpeed's JSON", plan)
    refusals.unless_default(plan, "plan", {**ONE_STAGE, "compile": None})
    refusals.all_but_pretraining(job)
    refusals.stack(plan.stack, _generation(plan.stack), _sayable_facts(plan))
    refusals.unusual_attention()
    refusals.unless_plan(plan.precision in ("bf16", "fp16", "fp32"), "precision")
    refusals.unless_plan(plan.optimizer in _OPTIMIZERS, "optimizer")
    _refuse_checkpoints(job, plan, refusals)
    _refuse_inner_degrees(job, plan, refusals)
    _refuse_sharding(job, plan, refusals)
    refusals.raise_if_any()


def _refuse_checkpoints(job: Job, plan: Plan, refusals: Refusals) -> None:
    said = ("full",) if _checkpoints(job, plan) else ("full", "none")
    refusals.unless_plan(
        plan.recompute in said,
        "recompute",
        f"the model's code decides it: export with --set plan.recompute={said[-1]}",
    )
    refusals.unless_plan(
        not plan.contiguous_checkpoints or plan.partition_activations == (plan.tp > 1),
        "contiguous_checkpoints",
        "DeepSpeed divides such checkpoints: add plan.partition_activations: true",
    )


def _refuse_inner_degrees(job: Job, plan: Plan, refusals: Refusals) -> None:
    sequence = plan.tp > 1 and plan.stack.sequence_parallel
    refusals.unless_plan(plan.sequence_parallel == sequence, "sequence_parallel")
    refusals.unless_plan(
        plan.cp == 1 or plan.cp_method == "all_to_all",
        "cp_method",
        "DeepSpeed exchanges heads: plan.cp_method: all_to_all",
    )
    refusals.unless_plan(job.model.experts is None or plan.etp == 1, "etp")


def _refuse_sharding(job: Job, plan: Plan, refusals: Refusals) -> None:
    refusals.unless_default(
        plan.offload, "plan.offload", {"overlap": True, "delayed_update": False}
    )
    refusals.unless_plan(
        plan.zero == 3 or not plan.zero_group,
        "zero_group",
        "DeepSpeed shards over some of the ranks with plan.zero: 3 only",
    )
    prefetches = plan.zero == 3
    stated = job.plan.overlap_param_gather
    refusals.unless_plan(
        stated in (None, prefetches, _prefetches_by_itself(job)),
        "overlap_param_gather",
        "DeepSpeed prefetches with plan.zero: 3 only; export with "
        f"--set plan.overlap_param_gather={str(prefetches).lower()}",
    )
    refusals.unless_plan(
        bool(plan.reshard_after_forward) == (plan.zero == 3), "reshard_after_forward"
    )


def _prefetches_by_itself(job: Job) -> bool:
    """Whether the release of DeepSpeed that a job is most like gathers weights ahead."""
    stack = STACKS[_generation(job.plan.stack)]
    plan = job.plan.model_copy(update={"stack": stack, "overlap_param_gather": None})
    return job.model_copy(update={"plan": plan}).choices.overlaps_gather
