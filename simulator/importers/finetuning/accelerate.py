"""What job do accelerate's configuration and Hugging Face's TrainingArguments describe?

``accelerate config`` says on how many GPUs and how states are sharded; TrainingArguments
(a JSON or YAML of its fields) say batch, format and recomputation. Either will do, and
both together are read as one. The model and the length of its sequences stand elsewhere,
but in a configuration of TRL, which is TrainingArguments with settings of its own.

Source: accelerate 1.x's configuration, transformers 4.x's TrainingArguments, and SFTConfig and
ModelConfig of TRL 0.20 to 1.16, as facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.importers.adapter_settings import adapter_fields
from simulator.importers.assembly import Draft, Given, finished, read_flat
from simulator.importers.deepspeed import assumed_attention
from simulator.importers.finetuning.sharding import (
    PLUGIN_CHECKPOINTS,
    STACK_OF,
    checkpoint_facts,
    fsdp_facts,
    fsdp_offload,
    fsdp_sharding,
    trainer_strategy,
)
from simulator.importers.finetuning.trainer import loss, optimizer, read_packing, trl_loss
from simulator.importers.hub_models import named_model
from simulator.importers.settings import Settings, option_rules

_CHECKPOINTS = "gradient_checkpointing"
_WANTED = "give a YAML of accelerate, or TrainingArguments as YAML or JSON"

KINDS: Mapping[Any, str] = {
    "FSDP": "fsdp",
    "DEEPSPEED": "deepspeed",
    "MULTI_GPU": "ddp",
    "NO": "ddp",
    False: "ddp",
}
"""Way of data parallelism for each ``distributed_type``."""

PRECISIONS: Mapping[Any, str] = {
    "no": "fp32",
    False: "fp32",
    "fp32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
}
"""Our format for each ``mixed_precision``."""


def read_accelerate_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of an accelerate configuration, of TrainingArguments, or of both if they agree."""
    settings = Settings(_together(paths), "accelerate")
    kind = _kind(settings)
    draft = Draft(named_model(settings, given, "model_name_or_path"), stack=STACK_OF[kind])
    stated = settings.whole("num_processes")
    draft.gpus = given.gpus or stated
    ranks = draft.gpus or 0
    tp = settings.whole("parallelism_config.parallelism_config_tp_size", default=1, least=1)
    draft.plan = {
        "tp": tp,
        **_context_parallelism(settings),
        **_sharding(settings, kind, ranks // tp),
        "recompute": _recomputation(settings),
        "precision": _precision(settings),
        "optimizer": optimizer(settings),
        "clip_gradients": _clips(settings),
        **_offload(settings, kind),
        **(loss(settings) or trl_loss(settings)),
        **adapter_fields(settings),
    }
    if kind == "deepspeed" and "attention" not in draft.plan:
        settings.assumed.append(assumed_attention(draft.stack, draft.plan["precision"]))
    if kind == "fsdp":
        draft.facts |= fsdp_facts(settings)
    draft.facts |= checkpoint_facts(settings, draft.stack, STACK_OF["ddp"])
    if _compiles(settings):
        draft.plan["compile"] = True
    draft.seq_len = settings.whole("max_seq_length", "max_length", "model_max_length", least=1)
    micro = settings.whole("per_device_train_batch_size", "train_batch_size", least=1)
    steps = "gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps"
    draft.set_batch(given, micro, settings.whole(*steps, default=None))
    read_packing(settings)
    origin = " and ".join(str(path) for path in paths)
    return finished(draft, settings, option_rules("accelerate"), given, origin)


def _compiles(settings: Settings) -> bool:
    """Whether torch.compile rewrites the model; each kind of file asks for it in its own words."""
    backend = settings.get("dynamo_config.dynamo_backend") or settings.get("dynamo_backend")
    has_backend = backend is not None and str(backend).lower() not in ("no", "eager", "false")
    return settings.switch("torch_compile") or has_backend


def _context_parallelism(settings: Settings) -> dict[str, Any]:
    """Ranks that share a sequence, and how attention sees all of it.

    DeepSpeed trades heads (Ulysses) around a fused kernel; PyTorch gathers keys and values, or
    passes them on.
    """
    block = "parallelism_config.parallelism_config_"
    cp = settings.whole(f"{block}cp_size", default=1, least=1)
    ulysses = settings.whole(f"{block}sp_size", default=1, least=1)
    ways = {"allgather": "all_gather", "alltoall": "ring"}
    way = settings.choice(f"{block}cp_comm_strategy", meanings=ways, default="all_gather")
    backends = {"torch": "torch", "deepspeed": "deepspeed"}
    backend = settings.choice(f"{block}cp_backend", meanings=backends, default="torch")
    settings.choice(f"{block}sp_backend", meanings={"deepspeed": ""}, default="")
    for kind in ("cp", "sp"):
        kernels = dict.fromkeys(("sdpa", "flash_attention_2", "flash_attention_3"), "flash")
        settings.choice(f"{block}{kind}_attn_implementation", meanings=kernels, default="flash")
    if ulysses > 1 or (cp > 1 and backend == "deepspeed"):
        return {"cp": max(cp, ulysses), "cp_method": "all_to_all", "attention": "flash"}
    return {"cp": cp, "cp_method": way if cp > 1 else "ring"}


def _together(paths: Sequence[str | Path]) -> dict[str, Any]:
    """The settings of all files.

    Raises:
        InputError: Two files contradict each other.
    """
    values: dict[str, Any] = {}
    for path in paths:
        for key, value in read_flat(path, _WANTED).items():
            if key in values and values[key] != value:
                rule = f"is {values[key]!r} in another file"
                raise InputError.single(key, rule, value, "remove it from one of them", str(path))
            values[key] = value
    return values


def _kind(settings: Settings) -> str:
    default = "fsdp" if trainer_strategy(settings) else "ddp"
    return settings.choice("distributed_type", meanings=KINDS, default=default)


def _sharding(settings: Settings, kind: str, width: int) -> dict[str, Any]:
    """What ``width`` = dp x cp ranks shard."""
    if kind == "deepspeed":
        return {"zero": settings.whole("deepspeed_config.zero_stage", default=2)}
    replicas = settings.whole(
        "parallelism_config.parallelism_config_dp_replicate_size", default=1, least=1
    )
    settings.whole("parallelism_config.parallelism_config_dp_shard_size", least=1)
    return fsdp_sharding(settings, width, replicas) if kind == "fsdp" else {"zero": 0}


def _offload(settings: Settings, kind: str) -> dict[str, Any]:
    found = fsdp_offload(settings) if kind == "fsdp" else {}
    places = {"cpu": "cpu", "nvme": "nvme", "none": None}
    for field, theirs in (("optimizer", "optimizer"), ("parameters", "param")):
        key = f"deepspeed_config.offload_{theirs}_device"
        place = settings.choice(key, meanings=places, default=None)
        found |= {field: place} if place and kind == "deepspeed" else {}
    return {"offload": found} if found else {}


def _clips(settings: Settings) -> bool:
    """Whether gradients are clipped, which the Trainer does by default."""
    key = "deepspeed_config.gradient_clipping"
    keys = ("max_grad_norm",) if settings.get(key) == "auto" else (key, "max_grad_norm")
    return settings.number(*keys, default=1.0) > 0


def _recomputation(settings: Settings) -> str:
    of_plugin, of_trainer = settings.switch(*PLUGIN_CHECKPOINTS), settings.switch(_CHECKPOINTS)
    return "full" if of_plugin or of_trainer else "none"


def _precision(settings: Settings) -> str:
    found = settings.choice("mixed_precision", meanings=PRECISIONS, default="fp32")
    if settings.switch("bf16"):
        return "bf16"
    if settings.switch("fp16"):
        return "fp16"
    if found == "fp32" and settings.switch("tf32"):
        return "tf32"
    return found
