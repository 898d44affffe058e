"""What job does a recipe of torchtune describe?

Distributed recipes shard everything with FSDP2 and train in the format that ``dtype`` names, states
included; recipes ``..._single_device`` run on one GPU. The length of sequences is often the data's
and must be given.

Source: torchtune 0.2 to 0.6, its recipes, as facts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.described.plan.plan_blocks import FSDP_OFFLOAD
from simulator.errors import InputError
from simulator.importers.adapter_settings import torchtune_adapters
from simulator.importers.assembly import ASK_FOR_MODEL, Draft, Given, finished, read_flat
from simulator.importers.hub_models import ModelDocument, shipped_model
from simulator.importers.interpolation import resolved
from simulator.importers.settings import Settings, option_rules, option_table

_WANTED = "give the YAML of a torchtune recipe"
_COMPONENT = "_component_"
_ALONE = "single_device"


def read_torchtune_recipe(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a torchtune recipe."""
    origin = str(path)
    settings = Settings(resolved(read_flat(path, _WANTED), given.definitions), "torchtune")
    settings.define(given.definitions)
    if f"optimizer.{_COMPONENT}" not in settings.keys:
        rule = "is not a recipe of training: it has no optimizer"
        raise InputError.single("optimizer", rule, file=origin, hint=_WANTED)
    draft = Draft(model=_model(settings, given), stack="torchtune")
    draft.gpus = given.gpus or (1 if _ALONE in Path(path).stem else None)
    tp = settings.whole("tensor_parallel_dim", default=1) or 1
    draft.plan = {
        "tp": tp,
        "zero": 0 if draft.gpus == 1 else 3,
        "precision": settings.meaning("torchtune/formats", "dtype", default="bf16"),
        "recompute": "full" if settings.switch("enable_activation_checkpointing") else "none",
        "optimizer": _named(settings, "optimizer", "optimizers"),
        "clip_gradients": settings.get("clip_grad_norm") is not None,
        "optimizer_in_backward": settings.switch("optimizer_in_bwd"),
        "optimizer_kernels": "fused" if settings.switch("optimizer.fused") else None,
        "cross_entropy": _named(settings, "loss", "losses"),
        **torchtune_adapters(settings, _builder(settings)),
    }
    if settings.switch("compile"):
        draft.plan["compile"] = True
    if settings.get("custom_sharded_layers"):
        # Embedding and output, which are large, are no longer part of the root.
        draft.facts["sharding_units"] = "ends"
    if offload := _offload(settings):
        draft.plan["offload"] = offload
    draft.seq_len = settings.whole("tokenizer.max_seq_len", default=None, least=1)
    _batch(settings, draft, given)
    return finished(draft, settings, option_rules("torchtune"), given, origin)


def _named(settings: Settings, section: str, table: str) -> Any:
    """What the class that a section names means to us."""
    return settings.named_class(f"{section}.{_COMPONENT}", option_table("torchtune", table))


def _builder(settings: Settings) -> str:
    return str(settings.get(f"model.{_COMPONENT}") or "").rpartition(".")[2]


def _model(settings: Settings, given: Given) -> ModelDocument | None:
    builder = _builder(settings)
    if given.model:
        return given.model
    plain = builder.removeprefix("qlora_").removeprefix("lora_")
    plain = plain.removesuffix("_instruct").removesuffix("_base")
    name = option_table("torchtune", "models").get(plain)
    if name is None:
        rule = "is not a shipped model, and the file does not state its dimensions"
        settings.fault(f"model.{_COMPONENT}", rule, builder, ASK_FOR_MODEL)
        return None
    return shipped_model(name)


def _offload(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if settings.switch("fsdp_cpu_offload"):
        found |= FSDP_OFFLOAD.model_dump(exclude_defaults=True)
    if settings.switch("enable_activation_offloading"):
        found["activations"] = "cpu"
    return found


def _batch(settings: Settings, draft: Draft, given: Given) -> None:
    micro = settings.whole("batch_size", default=None, least=1)
    steps = settings.whole("gradient_accumulation_steps", default=1, least=1)
    draft.set_batch(given, micro, steps)
    settings.assumed.append("every sequence is assumed to have the given length")
