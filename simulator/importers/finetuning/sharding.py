"""What do data-parallel ranks shard around Hugging Face's Trainer: DDP, FSDP or DeepSpeed?

FSDP is configured by ``fsdp`` and ``fsdp_config`` of TrainingArguments or by accelerate; DeepSpeed
by a file that the settings name. One that is not beside them is known if the framework ships it
(``simulator/facts/importers/deepspeed_files.yaml``).

Source: accelerate 1.x and transformers 4.x, as facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.described.load import load_model
from simulator.described.plan.plan_blocks import FSDP_OFFLOAD
from simulator.described.plan.shipped_stacks import STACKS
from simulator.errors import InputError
from simulator.facts import shipped_facts
from simulator.files import is_there
from simulator.importers.assembly import Draft, Given, read_flat
from simulator.importers.deepspeed import (
    add_inner_faults,
    assumed_attention,
    completed,
    deepspeed_facts,
    deepspeed_plan,
    with_open_settings,
)
from simulator.importers.settings import Settings, option_table

STRATEGIES: Mapping[Any, tuple[int, bool]] = {
    **dict.fromkeys(("FULL_SHARD", "1", 1, "HYBRID_SHARD", "4", 4, "true"), (3, False)),
    **dict.fromkeys(("SHARD_GRAD_OP", "2", 2, "HYBRID_SHARD_ZERO2", "5", 5, "false"), (3, True)),
    **dict.fromkeys(("NO_SHARD", "3", 3), (0, False)),
}
"""ZeRO stage of each FSDP sharding strategy, by name, by number or by FSDP2's flag, and
whether gathered weights are kept from forward to backward."""

_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5", 4, 5)

PLUGIN_CHECKPOINTS = (
    "fsdp_config.fsdp_activation_checkpointing", "fsdp_config.activation_checkpointing"
)  # fmt: skip
"""Settings by which FSDP's plugin computes layers again."""

_REENTRANT = ("gradient_checkpointing_kwargs.use_reentrant", "use_reentrant_gc")

STACK_OF: Mapping[str, str] = {"fsdp": "trl", "deepspeed": "deepspeed", "ddp": "trl"}
"""Stack for each way of data parallelism; accelerate wraps models of transformers."""

_DEEPSPEED = "deepspeed"
_FROM_DEEPSPEED = (
    "zero", "zero_group", "overlap_grad_reduce", "overlap_param_gather", "offload",
    "clip_gradients", "tp", "grad_reduce_precision",
)  # fmt: skip
_SAID_BY_THE_TRAINER = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "bf16.enabled", "fp16.enabled",
)  # fmt: skip


@dataclass
class Beside:
    """Files that lie beside the settings.

    Attributes:
        folder: Where the settings lie.
        files: What further files hold, by name; the user gave them.
        keys: Settings of such files that were accounted for.
    """

    folder: Path
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)


def files_beside(paths: Sequence[str | Path], wanted: str) -> Beside:
    """What lies beside the first of several files; the others are read.

    Raises:
        InputError: One of them is no configuration.
    """
    read = {str(path): read_flat(path, wanted) for path in paths[1:]}
    return Beside(Path(paths[0]).parent, read)


def kind_of_sharding(settings: Settings, beside: Beside) -> str:
    """``deepspeed``, ``fsdp`` or ``ddp``, as TrainingArguments set it."""
    if settings.get(_DEEPSPEED) or settings.section(_DEEPSPEED) or beside.files:
        return "deepspeed"
    # A configuration without a strategy is of no effect; axolotl's version 2 needs none.
    has_config = any(key.startswith("fsdp_config.") for key in settings.keys)
    has_config = has_config and settings.get("fsdp_version") is not None
    return "fsdp" if settings.get("fsdp") or has_config else "ddp"


def fsdp_sharding(settings: Settings, width: int, replicas: int) -> dict[str, Any]:
    """What FSDP shards over ``width`` = dp x cp ranks.

    Args:
        settings: What a file says.
        width: Ranks of data and context parallelism.
        replicas: Copies of the sharded model that a mesh holds.
    """
    key, value = settings.first(
        "fsdp_config.fsdp_sharding_strategy", "fsdp_config.sharding_strategy",
        "fsdp_config.fsdp_reshard_after_forward", "fsdp_config.reshard_after_forward",
    )  # fmt: skip
    value = trainer_strategy(settings) or value
    word = str(value).lower() if isinstance(value, bool) else value
    if word is not None and (not isinstance(word, str | int) or word not in STRATEGIES):
        settings.fault(key, f"is not modelled; known: {', '.join(map(str, STRATEGIES))}", value)
        word = None
    if word in _HYBRID:
        replicas = settings.whole("num_machines", default=replicas)
    group = width // replicas if replicas > 1 else 0
    zero, keeps = STRATEGIES.get(word, (3, False))
    return {
        "zero": zero,
        "reshard_after_forward": False if keeps else None,
        "zero_group": group if zero else 0,
    }


def fsdp_facts(settings: Settings) -> dict[str, Any]:
    """Facts of stack ``trl`` that accelerate's plugin for FSDP changes.

    Source: ``simulator/facts/importers/accelerate.yaml``.
    """
    facts = option_table("accelerate", "fsdp_facts")
    version = settings.whole("fsdp_config.fsdp_version", "fsdp_version", default=1, least=1)
    reduces_each = settings.switch(
        "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
    )
    return {
        **facts["always"],
        **(facts["sync_each_batch"] if reduces_each else {}),
        **(facts["version_2"] if version > 1 else {}),
    }


def checkpoint_facts(settings: Settings, stack: str, trainer: str) -> dict[str, bool]:
    """What a stack does otherwise where layers are computed again, as settings and trainer say.

    Those of FSDP's plugin are never reentrant (``simulator/facts/importers/accelerate.yaml``).

    Args:
        settings: What the file says.
        stack: The stack of the job.
        trainer: That of the trainer, whose default counts whatever shards the model.
    """
    usual = STACKS[trainer].recompute_stops_early
    of_plugin = settings.switch(*PLUGIN_CHECKPOINTS)
    stops = of_plugin or not settings.switch(*_REENTRANT, default=not usual)
    return {} if stops is STACKS[stack].recompute_stops_early else {"recompute_stops_early": stops}


def trainer_strategy(settings: Settings) -> str | None:
    """Sharding strategy in TrainingArguments' ``fsdp``, such as "full_shard auto_wrap"."""
    given = settings.get("fsdp")
    words = " ".join(map(str, given)) if isinstance(given, list) else str(given or "")
    found = re.search(r"(full_shard|shard_grad_op|no_shard|hybrid_shard(_zero2)?)", words)
    return found[1].upper() if found else None


def fsdp_offload(settings: Settings) -> dict[str, Any]:
    """The plan's ``offload``, where FSDP keeps its shards on the host."""
    moves_all = settings.switch(
        "fsdp_config.fsdp_offload_params", "fsdp_config.offload_params",
        "fsdp_config.fsdp_cpu_offload", "fsdp_config.cpu_offload",
    )  # fmt: skip
    moves_all = moves_all or "offload" in str(settings.get("fsdp") or "")
    return FSDP_OFFLOAD.model_dump(exclude_defaults=True) if moves_all else {}


def add_deepspeed(
    settings: Settings, draft: Draft, given: Given, beside: Beside, trainer: Mapping[str, Any]
) -> None:
    """Read the DeepSpeed configuration that the settings name or hold into a draft.

    Args:
        settings: What the file says; faults go there.
        draft: What is known of the job so far, its model first.
        given: What the user says.
        beside: Files beside the settings.
        trainer: Arguments of the Trainer, by which it fills what says "auto".
    """
    name, values = _deepspeed_settings(settings, beside)
    inner = with_open_settings(completed(values, trainer))
    found = deepspeed_plan(inner)
    draft.plan |= {key: found[key] for key in _FROM_DEEPSPEED if found.get(key) not in (None, {})}
    precision = str(given.changes.get("plan.precision", draft.plan.get("precision") or "bf16"))
    hidden = _hidden(draft.model)
    draft.facts |= deepspeed_facts(inner, draft.stack, found["zero"], hidden, precision)
    if draft.plan.get("attention") is None and "plan.attention" not in given.changes:
        settings.assumed.append(assumed_attention(draft.stack, precision))
    for key in _SAID_BY_THE_TRAINER:
        inner.get(key)
    add_inner_faults(inner, settings, name, given)
    beside.keys |= inner.keys


def _deepspeed_settings(settings: Settings, beside: Beside) -> tuple[str, Mapping[str, Any]]:
    """Name and settings of the DeepSpeed configuration; none, and a fault, where it is unknown."""
    for file, values in beside.files.items():
        settings.get(_DEEPSPEED)
        return file, values
    if inside := settings.section(_DEEPSPEED):
        return _DEEPSPEED, inside
    name = str(settings.get(_DEEPSPEED))
    for path in (beside.folder / name, beside.folder / Path(name).name):
        if is_there(path):
            return name, read_flat(path, "give a ds_config.json of DeepSpeed")
    facts = shipped_facts("importers/deepspeed_files")
    for pattern, values in facts["files"].items():
        if re.fullmatch(pattern, Path(name).name):
            settings.assumed.append(
                f"{name} is not here; the framework's shipped file of that name applies"
            )
            return name, {**facts["common"], **values}
    rule = "names a file that is not in the folder of the settings"
    settings.fault(_DEEPSPEED, rule, name, "give it as a second file")
    return name, {}


def _hidden(model: object) -> int | None:
    name = model.get("base") if isinstance(model, dict) else model
    if not isinstance(name, str):
        return None
    try:
        return load_model(name).hidden
    except InputError:
        return None  # the job says what is wrong with it
