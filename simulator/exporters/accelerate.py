"""Which configuration of accelerate, and which TrainingArguments, train a job with Hugging Face?

accelerate's YAML says on how many GPUs, how states are sharded and in which format. The batch, the
optimizer and recomputation are arguments of the Trainer. A job of stack ``trl`` is wrapped by DDP
or FSDP, with the facts that accelerate's plugin changes
(``simulator/facts/importers/accelerate.yaml``), one of stack ``deepspeed`` by DeepSpeed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_blocks import FSDP_OFFLOAD, Offload
from simulator.described.plan.shipped_stacks import STACKS
from simulator.exporters.plans import Refusals, changed_facts, nodes_and_ranks, spelled_out
from simulator.exporters.trainer_plans import (
    OPTIMIZERS,
    STOPS_EARLY,
    differing_facts,
    refuse_torch_sharding,
    refuse_untold,
    says,
    split_of,
)
from simulator.importers.finetuning.accelerate import KINDS, PRECISIONS
from simulator.importers.finetuning.sharding import STACK_OF
from simulator.importers.settings import option_table

_KIND_NAMES = {ours: theirs for theirs, ours in reversed(list(KINDS.items()))}
_FORMATS = {ours: str(theirs) for theirs, ours in PRECISIONS.items() if isinstance(theirs, str)}
_FORMATS |= {"fp32": "no", "tf32": "no"}
_CP_WAYS = {"all_gather": "allgather", "ring": "alltoall"}
_SUMS = "sums_unsharded"
"""The fact of a stack that ``sync_each_batch`` changes with FSDP1."""


def accelerate_config(job: Job) -> str:
    """A YAML for ``accelerate launch --config_file``; what the Trainer is told stands beside it.

    Raises:
        UnsupportedError: With everything that accelerate and the Trainer cannot be told.
    """
    plan, kind = spelled_out(job), _kind(job)
    _refuse(job, plan, kind)
    nodes, _ = nodes_and_ranks(job)
    is_alone = kind == "ddp" and job.cluster.gpus == 1
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO" if is_alone else _KIND_NAMES[kind],
        "mixed_precision": _FORMATS[plan.precision],
        "num_machines": nodes,
        "num_processes": job.cluster.gpus,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
    }
    if kind == "fsdp":
        config["fsdp_config"] = _fsdp(job, plan)
    if kind == "deepspeed":
        config["deepspeed_config"] = _deepspeed(job, plan)
    if degrees := _degrees(job, plan, kind):
        prefixed = {f"parallelism_config_{name}": value for name, value in degrees.items()}
        config["parallelism_config"] = prefixed
    if plan.compile:
        config["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    return yaml.safe_dump(config, sort_keys=False)


def training_arguments(job: Job) -> dict[str, Any]:
    """The TrainingArguments of a job that :func:`accelerate_config` can say."""
    plan = job.plan
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": job.batch.micro_batch,
        "gradient_accumulation_steps": job.microbatches,
        "max_grad_norm": 1.0 if plan.clip_gradients else 0.0,
    }
    if plan.optimizer != "adam":  # the Trainer's default
        arguments["optim"] = OPTIMIZERS[plan.optimizer]
    if plan.precision == "tf32":
        arguments["tf32"] = True
    if plan.recompute == "full" and not _plugin_recomputes(job):
        arguments["gradient_checkpointing"] = True
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": not says(job, STOPS_EARLY)}
    if _reduces_every_batch(job):
        each = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
        arguments["accelerator_config"] = each
    return arguments


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """TrainingArguments as options of a script."""
    words = []
    for name, value in arguments.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        text = shlex.quote(json.dumps(value)) if isinstance(value, dict) else text
        words.append(f"--{name} {text}")
    return " ".join(words)


def _kind(job: Job) -> str:
    """``deepspeed``, ``fsdp`` or ``ddp``: what wraps the model."""
    if job.stack_name.startswith(STACK_OF["deepspeed"]):
        return "deepspeed"
    return "fsdp" if split_of(job).stage else "ddp"


def _version(job: Job) -> int:
    """The version of FSDP that wraps a job, the one its stack is most like; 0 where none does."""
    if _kind(job) != "fsdp":
        return 0
    return min((1, 2), key=lambda version: len(_differences(job, version)))


def _wrapped(job: Job, version: int) -> tuple[str, dict[str, Any]]:
    """The stack that accelerate runs a job as, and its facts that a version of FSDP changes."""
    base, facts = STACK_OF[_kind(job)], option_table("accelerate", "fsdp_facts")
    if not version:
        return base, {}
    stated = {**facts["always"], **(facts["version_2"] if version > 1 else {})}
    return base, changed_facts(STACKS[base].model_copy(update=stated), base)


def _differences(job: Job, version: int) -> set[str]:
    """Facts of a job's stack that are not those of the one that accelerate runs it as."""
    return differing_facts(job, *_wrapped(job, version))


def _plugin_recomputes(job: Job) -> bool:
    """Whether FSDP's plugin wraps layers to compute them again; its checkpoints stop early."""
    return _kind(job) == "fsdp" and says(job, STOPS_EARLY)


def _reduces_every_batch(job: Job) -> bool:
    return _version(job) == 1 and not says(job, _SUMS)


def _fsdp(job: Job, plan: Plan) -> dict[str, Any]:
    version = _version(job)
    if version > 1:
        sharding: dict[str, Any] = {"fsdp_reshard_after_forward": bool(plan.reshard_after_forward)}
    else:
        whole = "FULL_SHARD" if plan.reshard_after_forward else "SHARD_GRAD_OP"
        inside = "HYBRID_SHARD" if plan.reshard_after_forward else "HYBRID_SHARD_ZERO2"
        sharding = {"fsdp_sharding_strategy": inside if plan.zero_group else whole}
    again = plan.recompute == "full" and _plugin_recomputes(job)
    return {
        "fsdp_version": version,
        **sharding,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": again,
        "fsdp_offload_params": plan.offload == FSDP_OFFLOAD,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _deepspeed(job: Job, plan: Plan) -> dict[str, Any]:
    stage = split_of(job).stage
    return {
        "zero_stage": stage,
        "offload_optimizer_device": plan.offload.optimizer or "none",
        "offload_param_device": plan.offload.parameters or "none",
        "gradient_accumulation_steps": job.microbatches,
        "gradient_clipping": 1.0 if plan.clip_gradients else 0.0,
        "zero3_init_flag": stage == 3,
    }


def _degrees(job: Job, plan: Plan, kind: str) -> dict[str, Any]:
    """Of ``ParallelismConfig``, whose product is all ranks; empty where all ranks do the same."""
    if kind == "deepspeed":
        ulysses = {"dp_shard_size": job.dp, "sp_size": plan.cp, "sp_backend": "deepspeed"}
        return ulysses if plan.cp > 1 else {}
    split, is_hybrid = split_of(job), plan.zero_group and _version(job) > 1
    if split.tp == plan.cp == 1 and not is_hybrid:
        return {}
    found: dict[str, Any] = {
        "dp_replicate_size": split.replicas,
        "dp_shard_size": split.shard,
        "tp_size": split.tp,
        "cp_size": plan.cp,
    }
    return found | ({"cp_comm_strategy": _CP_WAYS[plan.cp_method]} if plan.cp > 1 else {})


def _refuse(job: Job, plan: Plan, kind: str) -> None:
    refusals = Refusals("files of accelerate", plan)
    refuse_untold(job, plan, refusals)
    refusals.unless_plan(plan.precision in _FORMATS, "precision")
    _refuse_stack(job, refusals)
    if kind == "deepspeed":
        _refuse_for_deepspeed(job, plan, refusals)
    else:
        refuse_torch_sharding(job, plan, refusals, _version(job))
        refusals.unless_plan(plan.cp == 1 or plan.cp_method in _CP_WAYS, "cp_method")
    refusals.raise_if_any()


def _refuse_for_deepspeed(job: Job, plan: Plan, refusals: Refusals) -> None:
    split = split_of(job)
    refusals.unless_plan(split.tp == 1, "tp", "export with --set plan.tp=1")
    ulysses = "DeepSpeed exchanges heads: plan.cp_method: all_to_all"
    refusals.unless_plan(plan.cp == 1 or plan.cp_method == "all_to_all", "cp_method", ulysses)
    refusals.unless_plan(not plan.zero_group, "zero_group", "a ds_config.json can say it")
    refusals.unless_plan(
        bool(plan.reshard_after_forward) == (split.stage == 3), "reshard_after_forward"
    )
    places = Offload(optimizer=plan.offload.optimizer, parameters=plan.offload.parameters)
    refusals.unless(
        plan.offload == places,
        "plan.offload",
        plan.offload.model_dump(exclude_defaults=True),
        "accelerate says where optimizer and parameters are, and no more",
    )


def _refuse_stack(job: Job, refusals: Refusals) -> None:
    """Note a stack that is not the one that accelerate runs such a job as, with that one."""
    version = _version(job)
    sayable = {STOPS_EARLY, _SUMS} if version == 1 else {STOPS_EARLY}
    base, facts = _wrapped(job, version)
    block = ", ".join(f"{key}: {_yaml(value)}" for key, value in {"base": base, **facts}.items())
    wanted = f"'plan.stack={{{block}}}'" if facts else f"plan.stack={base}"
    hint = f"export with --set {wanted}" + (f", FSDP{version} of accelerate" if version else "")
    refusals.unless(_differences(job, version) <= sayable, "plan.stack", job.stack_name, hint)


def _yaml(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
