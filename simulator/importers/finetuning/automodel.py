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
from simulator.errors import InputError
from simulator.importers.adapter_settings import automodel_adapters
from simulator.importers.assembly import Draft, Given, finished, read_flat
from simulator.importers.hub_models import layers_of, named_model
from simulator.importers.settings import (
    Settings,
    expert_exchange,
    option_rules,
    option_table,
    spellings_table,
)
from simulator.importers.torchtitan import ONE_CHUNK, SCHEDULES

_WANTED = "give the YAML of a NeMo AutoModel recipe"
_TARGET = "_target_"
_DEGREES = ("tp", "pp", "cp", "ep")
_PIPELINES = ("distributed.pipeline", "autopipeline")
_PACKED = "packed_sequence.packed_sequence_size"


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
    degrees = {
        name: settings.whole(f"distributed.{name}_size", default=1, least=1) for name in _DEGREES
    }
    draft.gpus = given.gpus or _gpus(settings, degrees)
    draft.plan = {
        **degrees,
        **_sharding(settings, degrees, draft.gpus),
        **_dispatch(settings, degrees["ep"]),
        **_pipeline(settings, degrees["pp"], layers_of(draft.model)),
        **automodel_adapters(settings),
        "recompute": settings.meaning(
            "automodel/recomputation", *spellings["recompute"], default="none"
        ),
        "sequence_parallel": degrees["tp"] > 1 and settings.switch("distributed.sequence_parallel"),
        "overlap_tp": settings.switch("distributed.enable_async_tensor_parallel") or None,
        "cross_entropy": _named(settings, "loss_fn", "losses"),
        **_formats(settings),
        **_optimizer(settings),
    }
    is_compiled = settings.switch(*spellings["compiles"])
    draft.plan["compile"] = True if is_compiled else None
    draft.facts = _kernels(settings, is_compiled=is_compiled)
    settings.assumed.append("every sequence is assumed to have the given length")
    packed = settings.whole(_PACKED, default=0, least=0)
    length = settings.whole(*spellings["seq_len"], default=None, least=1)
    # 0 packs nothing: sequences have the lengths of the data set.
    draft.seq_len = packed or length
    _batch(settings, draft, degrees["pp"])
    return finished(draft, settings, option_rules("automodel"), given, origin)


def _class(settings: Settings, section: str) -> str:
    """Name of the class that a section builds, without its modules."""
    return str(settings.get(f"{section}.{_TARGET}") or "").rpartition(".")[2]


def _named(settings: Settings, section: str, table: str) -> Any:
    """What the class of a section means to us; None where the section is left out."""
    return settings.named_class(f"{section}.{_TARGET}", option_table("automodel", table))


def _gpus(settings: Settings, degrees: dict[str, int]) -> int | None:
    """Ranks where the file says how many copies of the model there are."""
    copies = settings.get("distributed.dp_size")
    if not isinstance(copies, int) or copies < 1:
        return None
    return copies * math.prod(degrees[name] for name in ("tp", "pp", "cp"))


def _formats(settings: Settings) -> dict[str, Any]:
    """Formats of products, weights and reduced gradients."""
    words = option_table("automodel", "dtypes")
    keeps = settings.choice("model.torch_dtype", meanings={**words, "auto": "bf16"}, default="bf16")
    is_eight = settings.switch("fp8.enabled")
    return {
        "precision": "fp8" if is_eight else "bf16",
        "master_weights": True if keeps == "fp32" else None,
        "grad_reduce_precision": settings.choice(
            "distributed.mp_policy.reduce_dtype", meanings=words, default=None
        ),
    }


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
    names = {name.casefold(): ours for name, ours in SCHEDULES.items()}
    keys = [f"{block}.pp_schedule" for block in _PIPELINES]
    key, written = settings.first(*keys)
    depth_key, depth = settings.first(*(f"{block}.layers_per_stage" for block in _PIPELINES))
    settings.whole(depth_key, least=1)
    rounds = settings.choice(
        *(f"{block}.round_virtual_stages_to_pp_multiple" for block in _PIPELINES),
        meanings={"up": "up", "down": "down"},
        default=None,
    )
    if pp == 1:
        return {}
    name = str(written or "1f1b").casefold()
    if name not in names:
        settings.fault(key, f"is not modelled; known: {', '.join(SCHEDULES)}", written)
        return {}
    if names[name] in ONE_CHUNK:
        return {"schedule": names[name]}
    if not isinstance(depth, int) or depth < 1:
        return {"schedule": names[name], "vpp": 2}
    stages = math.ceil(layers / depth)
    if stages % pp and rounds is None:
        rule = f"makes {stages} stages, which cannot be divided evenly over {pp} ranks"
        settings.fault(depth_key, rule, depth)
    vpp = math.ceil(stages / pp) if rounds == "up" else stages // pp
    return {"schedule": names[name], "vpp": max(1, vpp)}


def _optimizer(settings: Settings) -> dict[str, Any]:
    name = _class(settings, "optimizer")
    is_fused = name == "FusedAdam" or settings.switch("optimizer.fused")
    # "No gradient clipping applied": documentation, performance summary.
    is_measured = "Benchmark" in str(settings.get("recipe") or settings.get(f"recipe.{_TARGET}"))
    clips = settings.number("clip_grad_norm.max_norm", default=1.0) > 0
    return {
        "optimizer": _named(settings, "optimizer", "optimizers"),
        "optimizer_kernels": "fused" if is_fused else None,
        "clip_gradients": clips and not is_measured,
    }


def _kernels(settings: Settings, *, is_compiled: bool) -> dict[str, Any]:
    """Facts of the stack that the file changes."""
    kernels = option_table("automodel", "attention_kernels")
    kernel = settings.choice(
        "model.backend.attn", "model.attn_implementation", meanings=kernels, default=None
    )
    facts: dict[str, Any] = {"flash_kernel": kernel} if kernel else {}
    if settings.get("model.backend.experts") == "torch":
        facts["grouped_experts"] = False
    facts |= expert_exchange(settings, "model.backend.dispatcher")
    scaling = settings.meaning("automodel/scalings", "fp8.recipe_name", default=None)
    if scaling:
        facts["float8_scaling"] = scaling
    has_kernels = settings.switch("model.use_liger_kernel", default=True)
    if not has_kernels and not is_compiled:
        facts |= dict.fromkeys(("fused_rmsnorm", "fused_rotary", "fused_elementwise"), False)
    return facts


def _batch(settings: Settings, draft: Draft, pp: int) -> None:
    """Sequences at a time and per step; a pipeline cuts a rank's batch into microbatches."""
    local = settings.whole("step_scheduler.local_batch_size", default=1, least=1)
    keys = [f"{block}.pp_microbatch_size" for block in _PIPELINES]
    inside = settings.whole(*keys, default=1, least=1)
    draft.micro_batch = inside if pp > 1 else local
    draft.global_batch = settings.whole("step_scheduler.global_batch_size", default=None, least=1)
