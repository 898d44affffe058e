"""What do settings of LLaMA-Factory's version 1 say, in the words of its settings before?

Version 1 has sections for sharding, adapters, kernels and quantisation in place of
TrainingArguments, and other defaults: bf16, one sequence at a time, a global batch of one
microbatch per rank, DDP where no section shards.

Simplified: Liger's kernels for norms, rotations and gates are those of the stack; version 1 has
all logits in fp32 at once in any case.

Source: LLaMA-Factory 0.9.5, ``v1/config``, ``v1/core/base_trainer.py`` and ``v1/plugins``, as
facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.importers.settings import option_table

_SECTIONS = ("dist_config", "peft_config", "kernel_config", "quant_config", "optim_config")
_MARKS = ("model_class", "train_dataset", "enable_activation_checkpointing", "batching_strategy")
_SHARDING: Mapping[object, Mapping[str, object]] = {
    "fsdp2": {"fsdp": "full_shard", "fsdp_version": 2},
    "deepspeed": {},
}
_DROPOUT = 0.05
"""Of its adapters."""


def is_version_1(values: Mapping[str, Any]) -> bool:
    """Whether settings are those of version 1."""
    heads = {key.partition(".")[0] for key in values}
    return "model" in heads and bool(heads & {*_SECTIONS, *_MARKS})


def earlier_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under the names of before; what has none keeps its own.

    Args:
        values: Settings of version 1, sections flat.
    """
    names: Mapping[str, str] = option_table("llamafactory", "version_1")
    found = {names.get(key, key): value for key, value in values.items()}
    found["do_train"] = "train_dataset" in values
    found.setdefault("bf16", True)
    sharding = found.get("dist_config.name")
    if sharding in _SHARDING:
        del found["dist_config.name"]
        found |= _SHARDING[sharding]
    if found.get("finetuning_type") == "lora":
        found.setdefault("lora_dropout", _DROPOUT)
    return found
