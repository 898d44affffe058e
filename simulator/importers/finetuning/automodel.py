"""What job does a recipe of NeMo AutoModel describe?

Models of the hub are sharded by PyTorch's FSDP2 and trained in the format of their checkpoint. The
launcher's GPUs must be given, and the length of sequences where the data decides it.

Source: NeMo AutoModel, its recipes and components, as facts.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.described.load import load_model
from simulator.errors import InputError
from simulator.importers.adapter_settings import automodel_adapters
from simulator.importers.assembly import Draft, Given, finished, read_flat
from simulator.importers.finetuning.trainer import FUSED_BY_COMPILER
from simulator.importers.hub_models import ModelDocument, named_model
from simulator.importers.settings import Settings, option_rules, option_table, spellings_table

_WANTED = "give the YAML of a NeMo AutoModel recipe"
_TARGET = "_target_"
_DEGREES = ("tp", "pp", "cp", "ep")
_PIPELINES = ("distributed.pipeline", "autopipeline")


def read_automodel_recipe(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a NeMo AutoModel recipe."""
    origin = str(path)
    settings = Settings(read_flat(path, _WANTED), "automodel")
    settings.define(given.definitions)
    if not any(key.startswith("step_scheduler.") for key in settings.keys):
        rule = "is not a recipe of training: it has no step_scheduler"
        raise InputError.single("step_scheduler", rule, file=origin, hint=_WANTED)
    spellings = spellings_table("automodel", "spellings")
    draft = Draft(model=named_model(settings, given, *spellings["model"]), stack="automodel")
    draft.gpus = given.gpus
    degrees = {
        name: settings.whole(f"distributed.{name}_size", default=1, least=1) for name in _DEGREES
    }
    draft.plan = {
        **degrees,
        **_sharding(settings, degrees, given.gpus),
        **_dispatch(settings, degrees["ep"]),
        **_pipeline(settings, degrees["pp"], _layers(draft.model)),
        **automodel_adapters(settings),
        "recompute": settings.choice(
            *spellings["recompute"],
            meanings=option_table("automodel", "recomputation"),
            default="none",
        ),
        "sequence_parallel": degrees["tp"] > 1 and settings.switch("distributed.sequence_parallel"),
        "overlap_tp": settings.switch("distributed.enable_async_tensor_parallel") or None,
        "precision": "fp8" if settings.switch("fp8.enabled") else "bf16",
        "cross_entropy": _named(settings, "loss_fn", "losses"),
        **_optimizer(settings),
    }
    draft.facts = _kernels(settings, *spellings["compiles"])
    draft.seq_len = settings.whole(*spellings["seq_len"], default=None, least=1)
    _batch(settings, draft, degrees["pp"])
    return finished(draft, settings, option_rules("automodel"), given, origin)


def _class(settings: Settings, section: str) -> str:
    """Name of the class that a section builds, without its modules."""
    return str(settings.get(f"{section}.{_TARGET}") or "").rpartition(".")[2]


def _named(settings: Settings, section: str, table: str) -> Any:
    """What the class of a section means to us; None where the section is left out."""
    key, name = f"{section}.{_TARGET}", _class(settings, section)
    meanings = option_table("automodel", table)
    known = {str(settings.get(key)): meanings[name]} if name in meanings else meanings
    return settings.choice(key, meanings=known, default=None)


def _layers(model: ModelDocument | None) -> int:
    name = model.get("base") if isinstance(model, dict) else model
    return load_model(str(name)).layers if name else 0


def _sharding(settings: Settings, degrees: dict[str, int], gpus: int | None) -> dict[str, Any]:
    """What ranks share of the states; with experts on ranks of their own, weights stay gathered."""
    strategy = settings.get("distributed.strategy") or _class(settings, "distributed")
    stages = option_table("automodel", "strategies")
    stage = stages.get(str(strategy), 3)
    if strategy and str(strategy) not in stages:
        rule = f"is not modelled; known: {', '.join(stages)}"
        settings.fault("distributed.strategy", rule, strategy, "use fsdp2")
    if stage == 0 or gpus == 1:
        return {"zero": 0}
    replicas = settings.whole("distributed.dp_replicate_size", default=1) or 1
    width = (gpus or 0) // (degrees["tp"] * degrees["pp"])
    spellings = spellings_table("automodel", "spellings")
    reshards = settings.switch(*spellings["reshards"], default=degrees["ep"] == 1)
    return {
        "zero": stage,
        "zero_group": width // replicas if replicas > 1 else 0,
        "reshard_after_forward": None if reshards else False,
    }


def _dispatch(settings: Settings, ep: int) -> dict[str, str]:
    names = option_table("automodel", "dispatchers")
    way = settings.choice("model.backend.dispatcher", meanings=names, default=names["deepep"])
    if not settings.switch("model.backend.enable_deepep", default=True):
        way = names["torch"]
    return {"ep_dispatch": way} if ep > 1 else {}


def _pipeline(settings: Settings, pp: int, layers: int) -> dict[str, Any]:
    """Schedule and chunks of each rank; faults go to ``settings``."""
    names = {name.lower(): ours for name, ours in option_table("automodel", "schedules").items()}
    keys = [f"{block}.pp_schedule" for block in _PIPELINES]
    key, written = settings.first(*keys)
    depth = settings.whole(*(f"{block}.layers_per_stage" for block in _PIPELINES), default=0)
    if pp == 1:
        return {}
    name = str(written or "1f1b").lower()
    if name not in names:
        settings.fault(key, f"is not modelled; known: {', '.join(names)}", written)
        return {}
    schedule = names[name]
    several = schedule not in ("1f1b", "gpipe")
    # Embedding and head count as a layer each; round_virtual_stages_to_pp_multiple is "down".
    chunks = max(1, math.ceil((layers + 2) / depth) // pp) if depth else 2
    return {"schedule": schedule, "vpp": chunks if several else 1}


def _optimizer(settings: Settings) -> dict[str, Any]:
    name = _class(settings, "optimizer")
    is_fused = name == "FusedAdam" or settings.switch("optimizer.fused")
    # "No gradient clipping applied": documentation, performance summary.
    is_measured = "Benchmark" in str(settings.get("recipe") or settings.get(f"recipe.{_TARGET}"))
    return {
        "optimizer": _named(settings, "optimizer", "optimizers"),
        "optimizer_kernels": "fused" if is_fused else None,
        "clip_gradients": False if is_measured else None,
    }


def _kernels(settings: Settings, *compiles: str) -> dict[str, Any]:
    """Facts of the stack that the file changes."""
    kernels = option_table("automodel", "attention_kernels")
    kernel = settings.choice(
        "model.backend.attn", "model.attn_implementation", meanings=kernels, default=None
    )
    facts: dict[str, Any] = {"flash_kernel": kernel} if kernel else {}
    if settings.switch(*compiles):
        return facts | dict.fromkeys(FUSED_BY_COMPILER, True)
    if not settings.switch("model.use_liger_kernel", default=True):
        facts |= dict.fromkeys(("fused_rmsnorm", "fused_rotary", "fused_elementwise"), False)
    return facts


def _batch(settings: Settings, draft: Draft, pp: int) -> None:
    """Sequences at a time and per step; a pipeline cuts a rank's batch into microbatches."""
    local = settings.whole("step_scheduler.local_batch_size", default=1, least=1)
    keys = [f"{block}.pp_microbatch_size" for block in _PIPELINES]
    inside = settings.whole(*keys, default=1, least=1)
    draft.micro_batch = inside if pp > 1 else local
    draft.global_batch = settings.whole("step_scheduler.global_batch_size", default=None, least=1)
