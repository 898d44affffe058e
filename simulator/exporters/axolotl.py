"""Which YAML of axolotl trains a job?

Data, learning rate and where the model lies are not the job's to say. DeepSpeed is configured by a
JSON beside the YAML, which ``clustersim export deepspeed`` writes: jobs here are wrapped by DDP or
FSDP2.
"""

from __future__ import annotations

from typing import Any

import yaml

from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_blocks import ALL_MATRICES, FSDP_OFFLOAD, Lora
from simulator.exporters.plans import Refusals, spelled_out
from simulator.exporters.trainer_plans import (
    OPTIMIZERS,
    STOPS_EARLY,
    differing_facts,
    refuse_torch_sharding,
    refuse_untold,
    says,
    split_of,
)
from simulator.importers.settings import option_table

_STACK = "axolotl"
_FSDP = 2
_TOLD = ("lora", "cross_entropy", "optimizer_kernels")
_FORMATS = ("bf16", "fp16")
_LOSSES = {
    "cut": "cut_cross_entropy",
    "linear-fused": "liger_fused_linear_cross_entropy",
    "chunked": "chunked_cross_entropy",
}
_UPDATES = {ours: name for name, ours in option_table("trainer", "optimizer_kernels").items()}
_MATRICES = {
    ours: name
    for name, ours in reversed(list(option_table("trainer", "matrices").items()))
    if isinstance(ours, str)
}
"""The first name that PEFT has for each of our matrices."""
_KINDS = {"lora": {}, "rslora": {"peft_use_rslora": True}, "dora": {"peft_use_dora": True}}
_BASES: dict[str | None, dict[str, Any]] = {
    None: {"adapter": "lora"},
    "int8": {"adapter": "lora", "load_in_8bit": True},
    "nf4": {"adapter": "qlora", "load_in_4bit": True},
}


def axolotl_config(job: Job) -> str:
    """A YAML of axolotl for a job; ``base_model`` is the simulator's name of the model.

    Raises:
        UnsupportedError: With everything that the YAML cannot say.
    """
    plan = spelled_out(job)
    _refuse(job, plan)
    config: dict[str, Any] = {
        "base_model": job.model.name,
        "sequence_len": job.batch.seq_len,
        "micro_batch_size": job.batch.micro_batch,
        "gradient_accumulation_steps": job.microbatches,
        plan.precision: True,
        "flash_attention": True,
        "gradient_checkpointing": plan.recompute == "full",
        "max_grad_norm": 1.0 if plan.clip_gradients else 0.0,
        **_optimizer(plan),
    }
    if plan.recompute == "full":
        config["gradient_checkpointing_kwargs"] = {"use_reentrant": not says(job, STOPS_EARLY)}
    if plan.cross_entropy:
        config[_LOSSES[plan.cross_entropy]] = True
    if plan.compile:
        config["torch_compile"] = True
    if plan.lora:
        config |= _adapter(plan.lora)
    return yaml.safe_dump(config | _sharding(job, plan), sort_keys=False)


def _optimizer(plan: Plan) -> dict[str, str]:
    if plan.optimizer_kernels:
        return {"optimizer": _UPDATES[plan.optimizer_kernels]}
    return {} if plan.optimizer == "adam" else {"optimizer": OPTIMIZERS[plan.optimizer]}


def _adapter(lora: Lora) -> dict[str, Any]:
    is_all = lora.targets == (ALL_MATRICES,)
    where: dict[str, Any] = {"lora_target_linear": True}
    if not is_all:
        where = {"lora_target_modules": [_MATRICES[name] for name in lora.targets]}
    constants: dict[str, Any] = {}
    if lora.base_precision == "nf4" and not lora.double_quantisation:
        constants = {"bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}}
    return {
        **_BASES[lora.base_precision], "lora_r": lora.rank, "lora_dropout": lora.dropout,
        **where, **_KINDS[lora.kind], **constants,
    }  # fmt: skip


def _sharding(job: Job, plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {}
    split = split_of(job)
    if split.stage:
        found["fsdp_version"] = _FSDP
        found["fsdp_config"] = {
            "reshard_after_forward": bool(plan.reshard_after_forward),
            "offload_params": plan.offload == FSDP_OFFLOAD,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "SHARDED_STATE_DICT",
        }
    if split.tp * plan.cp > 1 or plan.zero_group:
        found |= {
            "dp_replicate_size": split.replicas, "dp_shard_size": split.shard,
            "tensor_parallel_size": split.tp, "context_parallel_size": plan.cp,
        }  # fmt: skip
    return found


def _refuse(job: Job, plan: Plan) -> None:
    refusals = Refusals("axolotl's YAML", plan)
    hint = f"export with --set plan.stack={_STACK}"
    if job.stack_name.startswith("deepspeed"):
        hint += "; clustersim export deepspeed writes the JSON that the YAML names"
    is_ours = differing_facts(job, _STACK, {}) <= {STOPS_EARLY}
    refusals.unless(is_ours, "plan.stack", job.stack_name, hint)
    refuse_untold(job, plan, refusals, told=_TOLD)
    refuse_torch_sharding(job, plan, refusals, _FSDP if split_of(job).stage else 0)
    refusals.unless_plan(plan.precision in _FORMATS, "precision")
    refusals.unless_plan(plan.cp == 1 or plan.cp_method == "ring", "cp_method")
    refusals.unless_plan(plan.cross_entropy in (None, *_LOSSES), "cross_entropy")
    refusals.unless_plan(plan.optimizer_kernels in (None, *_UPDATES), "optimizer_kernels")
    if plan.lora:
        _refuse_adapters(plan.lora, refusals)
    refusals.raise_if_any()


def _refuse_adapters(lora: Lora, refusals: Refusals) -> None:
    for name, is_told in (
        ("kind", lora.kind in _KINDS),
        ("base_precision", lora.base_precision in _BASES),
        ("targets", {*lora.targets} <= {*_MATRICES, ALL_MATRICES}),
    ):
        refusals.unless(is_told, f"plan.lora.{name}", getattr(lora, name))
