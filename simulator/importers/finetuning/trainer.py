"""What job do TrainingArguments describe, whichever trainer around Hugging Face's wrote them?

axolotl, LLaMA-Factory and ms-swift have settings of their own beside them, other names for some of
them and other defaults (``simulator/facts/importers``); what they share is read here, and files of
the first two. The number of GPUs is the launcher's.

Source: transformers 4.40 to 5.x, TrainingArguments; axolotl's configuration schema (0.3 to 0.19);
LLaMA-Factory's hparams and ``model/model_utils/checkpointing.py`` (0.6 to 0.9); as facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.importers.adapter_settings import adapter_fields
from simulator.importers.assembly import Draft, Given, finished, read_flat
from simulator.importers.deepspeed import read_deepspeed_config
from simulator.importers.finetuning.llamafactory_v1 import earlier_settings, is_version_1
from simulator.importers.finetuning.sharding import (
    PLUGIN_CHECKPOINTS,
    Beside,
    add_deepspeed,
    checkpoint_facts,
    files_beside,
    fsdp_offload,
    fsdp_sharding,
    kind_of_sharding,
)
from simulator.importers.hub_models import named_model
from simulator.importers.settings import (
    Settings,
    leave_out,
    option_rules,
    option_table,
    spellings_table,
)

_SPELLINGS = spellings_table("trainer", "spellings")
_TRLS = {
    "dataset_name", "dataset_text_field", "max_length", "packing", "packing_strategy",
    "padding_free", "completion_only_loss", "assistant_only_loss", "loss_type", "eos_token",
}  # fmt: skip
"""Settings that TRL adds to TrainingArguments."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a trainer does where its settings say nothing.

    Attributes:
        stack: Its stack where DeepSpeed does not shard.
        micro: Sequences at a time.
        length: Tokens per sequence; None where it must be said.
        precision: Format of the products.
        recomputes: Whether layers are computed again.
    """

    stack: str = "trl"
    micro: int = 8
    length: int | None = None
    precision: str = "fp32"
    recomputes: bool = False


def trainer_draft(settings: Settings, given: Given, beside: Beside, defaults: Defaults) -> Draft:
    """What TrainingArguments say of a job; faults go to ``settings``.

    Args:
        settings: What a file says.
        given: What the user says.
        beside: Files beside it.
        defaults: Of the trainer.
    """
    kind = kind_of_sharding(settings, beside)
    stack = "deepspeed" if kind == "deepspeed" else defaults.stack
    draft = Draft(model=named_model(settings, given, *_SPELLINGS["model"]), stack=stack)
    stated = settings.whole("num_processes", "world_size")
    draft.gpus = given.gpus or stated
    ranks = draft.gpus or 0
    draft.plan = {
        "tp": settings.whole(*_SPELLINGS["tp"], default=1) or 1,
        **_context_parallelism(settings),
        "zero": 0,
        "precision": precision(settings, defaults.precision),
        "recompute": _recomputation(settings, defaults.recomputes),
        "optimizer": optimizer(settings),
        "optimizer_kernels": _optimizer_kernels(settings),
        "clip_gradients": settings.number("max_grad_norm", default=1.0) > 0,
        "attention": _attention(settings),
        **loss(settings),
        **adapter_fields(settings),
    }
    if draft.plan["optimizer"] == "galore":
        draft.plan["optimizer_rank"] = _galore_rank(settings)
    if offload := _activation_offload(settings):
        draft.plan["offload"] = offload
    if kind == "deepspeed":
        add_deepspeed(settings, draft, given, beside, _as_the_trainer(settings, draft, defaults))
    elif kind == "fsdp":
        replicas = settings.whole(*_SPELLINGS["replicas"], default=1) or 1
        draft.plan |= fsdp_sharding(settings, ranks // draft.plan["tp"], replicas)
        _note_shards(settings, ranks, draft.plan["tp"] * draft.plan["cp"] * replicas)
        if offload := fsdp_offload(settings) | draft.plan.get("offload", {}):
            draft.plan["offload"] = offload
        if settings.switch(*PLUGIN_CHECKPOINTS):
            draft.plan["recompute"] = "full"
    draft.facts |= checkpoint_facts(settings, draft.stack, defaults.stack)
    if settings.get("torch_compile") not in (None, False, "false"):
        draft.plan["compile"] = True
    stated_length = settings.whole(*_SPELLINGS["length"], default=defaults.length, least=1)
    draft.seq_len = given.seq_len or stated_length
    _batch(settings, draft, given, defaults)
    return draft


def precision(settings: Settings, default: str) -> str:
    """Our format of the products."""
    words = ("auto", "full", True, "true")
    if settings.get("bf16") in words or settings.get("bfloat16") in words:
        return "bf16"
    if settings.get("fp16") in words or settings.get("float16") in words:
        return "fp16"
    said = [settings.get(key) for key in ("bf16", "fp16")]
    named = settings.choice(
        "torch_dtype",
        meanings={"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "auto": default},
        default=None,
    )
    wide = "tf32" if settings.get("tf32") in words else "fp32"
    if named and named != "fp32":
        return named
    return wide if said == [False, False] or named == "fp32" or default == "fp32" else default


def optimizer(settings: Settings) -> str:
    """Our word for the optimizer."""
    names = option_table("trainer", "optimizers")
    for name in ("muon", "galore"):
        if settings.switch(f"use_{name}"):
            return name
    found: str = settings.choice(*_SPELLINGS["optimizer"], meanings=names, default="adam")
    return found


def _optimizer_kernels(settings: Settings) -> str | None:
    """How AdamW of PyTorch updates, where it is named."""
    kernels: Mapping[str, str] = option_table("trainer", "optimizer_kernels")
    _, named = settings.first(*_SPELLINGS["optimizer"])
    return kernels.get(str(named))


def _galore_rank(settings: Settings) -> int | None:
    """Of LLaMA-Factory, whose default is 16, or in transformers' ``optim_args``."""
    found = re.search(r"\brank=(\d+)", str(settings.get("optim_args") or ""))
    own = 16 if settings.switch("use_galore") else None
    return settings.whole("galore_rank", default=int(found[1]) if found else own, least=1)


def _note_shards(settings: Settings, ranks: int, others: int) -> None:
    """Say so where the GPUs make other shards than axolotl's file, with which it would not start.

    Args:
        settings: What the file says.
        ranks: GPUs; 0 where nobody says how many.
        others: Ranks that hold the same shard, or share it.
    """
    stated = settings.whole("dp_shard_size", default=None)
    if stated and ranks and stated * others != ranks:
        follows = f"follows from {ranks} GPUs: {ranks // others}, not {stated}"
        settings.assumed.append(f"dp_shard_size {follows}")


def _context_parallelism(settings: Settings) -> dict[str, Any]:
    key, _ = settings.first(*_SPELLINGS["cp"])
    cp = settings.whole(*_SPELLINGS["cp"], default=1) or 1
    way = "all_to_all" if key == "sequence_parallel_size" else "ring"
    return {"cp": cp, "cp_method": way if cp > 1 else "ring"}


def _recomputation(settings: Settings, default: bool) -> str:
    if settings.switch("disable_gradient_checkpointing"):
        settings.get("gradient_checkpointing")
        return "none"
    given = settings.get("gradient_checkpointing")
    is_on = given in ("offload", "offload_disk", "unsloth", True, "true")
    return "full" if is_on or (given is None and default) else "none"


def _activation_offload(settings: Settings) -> dict[str, str]:
    moved = settings.get("activation_offloading") in (True, "true", "legacy", "hidden_states")
    moved = moved or settings.get("gradient_checkpointing") in ("offload", "unsloth")
    moved = moved or settings.switch("use_unsloth_gc")
    return {"activations": "cpu"} if moved else {}


def _attention(settings: Settings) -> str:
    """How attention is computed; transformers takes PyTorch's fused kernels by default."""
    if settings.switch("flash_attention", "sdp_attention", "xformers_attention", "flex_attention"):
        return "flash"
    if settings.switch("eager_attention"):
        return "unfused"
    kinds = option_table("trainer", "attentions")
    found: str = settings.choice(*_SPELLINGS["attention"], meanings=kinds, default="flash")
    return found


def loss(settings: Settings) -> dict[str, str]:
    """How the loss is computed, where a kernel of its own replaces PyTorch's."""
    if settings.switch("cut_cross_entropy"):
        return {"cross_entropy": "cut"}
    if settings.switch(*_SPELLINGS["liger"]):
        return {"cross_entropy": "linear-fused"}
    return {"cross_entropy": "chunked"} if settings.switch("chunked_cross_entropy") else {}


def trl_loss(settings: Settings) -> dict[str, str]:
    """How TRL's trainers compute the loss where no kernel of others does; nothing of the rest.

    Source: TRL 1.15 and 1.16, ``add_fused_lm_head`` of trainer/utils.py; ``chunked_nll`` is the
    default since 1.7, in parts of 256 tokens, whose copies of the head are ignored.
    """
    if not settings.keys & _TRLS:
        return {}
    kinds = dict.fromkeys(("nll", "chunked_nll", "dft"), "tiled")
    kind = settings.choice("loss_type", meanings=kinds, default="tiled")
    settings.assumed.append(
        "TRL 1.15 or later, which never has all logits at once: set plan.cross_entropy: eager for "
        "a release before 1.7"
    )
    return {"cross_entropy": kind}


def _as_the_trainer(settings: Settings, draft: Draft, defaults: Defaults) -> dict[str, Any]:
    """The arguments by which the Trainer fills a DeepSpeed configuration."""
    form = draft.plan["precision"]
    micro = settings.whole(*_SPELLINGS["micro"], default=defaults.micro, least=1)
    return {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": _accumulation(settings),
        "max_grad_norm": settings.number("max_grad_norm", default=1.0),
        "bf16": form == "bf16",
        "fp16": form == "fp16",
    }


def _accumulation(settings: Settings) -> int:
    return settings.whole(*_SPELLINGS["accumulation"], default=1, least=1)


def _batch(settings: Settings, draft: Draft, given: Given, defaults: Defaults) -> None:
    micro = settings.whole(*_SPELLINGS["micro"], default=None, least=1)
    if micro is None and not given.micro_batch:
        settings.assumed.append(f"{defaults.micro} sequences per microbatch, the trainer's default")
    draft.set_batch(given, micro or defaults.micro, _accumulation(settings))
    settings.assumed.append("every sequence is assumed to have the largest length of the settings")
    settings.assume_whole_sequences("sample_packing", "neat_packing")


def read_packing(settings: Settings) -> None:
    """Note which packed documents TRL keeps apart: all but those that it cuts ("wrapped").

    Source: TRL's SFTConfig, ``packing_strategy`` and ``padding_free``.
    """
    if settings.get("packing_strategy") == "wrapped":
        settings.switch("packing")
    else:
        settings.assume_whole_sequences("packing")


_TRAINER = "give TrainingArguments as YAML or JSON"
_AXOLOTL = "give a YAML of axolotl"
_LLAMAFACTORY = "give a YAML of LLaMA-Factory"
_LLAMAFACTORY_DEFAULTS = Defaults(stack="llama-factory", length=2048, recomputes=True)
_SUPERVISED, _PREFERENCES = ("pt", "sft"), "dpo"
_COMPARES = {
    "dpo": True, "ipo": True, "sigmoid": True, "hinge": True, "orpo": False, "simpo": False,
}  # fmt: skip
"""Losses of preferences, and whether they compare with a reference (ORPO, arXiv 2403.07691, and
SimPO, arXiv 2405.14734, do not)."""


def read_deepspeed_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of a ``ds_config.json``, alone or with the TrainingArguments it is used with.

    The latter, as JSON or YAML, say what it leaves to the trainer ("auto").
    """
    if len(paths) == 1:
        return read_deepspeed_config(paths[0], given)
    beside = files_beside((paths[1], paths[0]), _TRAINER)
    settings = Settings(read_flat(paths[1], _TRAINER), "TrainingArguments")
    draft = trainer_draft(settings, given, beside, Defaults())
    draft.plan = trl_loss(settings) | draft.plan
    read_packing(settings)
    origin = " and ".join(str(path) for path in paths)
    return finished(draft, settings, option_rules("trainer"), given, origin, beside.keys)


def read_axolotl_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of axolotl's YAML, and of the ``ds_config.json`` that it names."""
    settings = Settings(read_flat(paths[0], _AXOLOTL), "axolotl")
    beside = files_beside(paths, _AXOLOTL)
    # Sequences of a rank and step, which count where nobody says how many microbatches they make.
    of_a_rank = settings.whole("batch_size", default=0)
    micro = max(1, settings.whole(*_SPELLINGS["micro"], default=1))
    settings.add_defaults({"gradient_accumulation_steps": max(1, of_a_rank // micro)})
    # Its bf16 is "auto" where nobody sets it: bf16 on Ampere and newer.
    form = "bf16" if settings.get("bf16") is None else "fp32"
    defaults = Defaults(stack="axolotl", micro=1, length=512, precision=form)
    draft = trainer_draft(settings, given, beside, defaults)
    if settings.get("rl") is not None:
        keeps_copy = bool(settings.switch("rl_adapter_ref_model"))
        _compare(settings, draft, given, "rl", keeps_copy=keeps_copy)
    rules = option_rules("axolotl") | option_rules("trainer")
    return finished(draft, settings, rules, given, str(paths[0]), beside.keys)


def read_llamafactory_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of LLaMA-Factory's YAML or JSON, and of the ``ds_config.json`` that it names."""
    values = read_flat(paths[0], _LLAMAFACTORY)
    is_new = is_version_1(values)
    settings = Settings(earlier_settings(values) if is_new else values, "LLaMA-Factory")
    _check_that_it_trains(settings)
    beside = files_beside(paths, _LLAMAFACTORY)
    defaults = replace(_LLAMAFACTORY_DEFAULTS, micro=1) if is_new else _LLAMAFACTORY_DEFAULTS
    draft = trainer_draft(settings, given, beside, defaults)
    if is_new and (batch := settings.whole("global_batch_size", least=1)):
        draft.global_batch = batch
    if settings.get("stage") == _PREFERENCES:
        keeps_copy = settings.get("ref_model") is not None
        _compare(settings, draft, given, "pref_loss", keeps_copy=keeps_copy)
    if settings.switch("pure_bf16"):
        draft.plan |= {"precision": "bf16", "master_weights": False}
    rules = option_rules("llamafactory") | option_rules("trainer")
    return finished(draft, settings, rules, given, str(paths[0]), beside.keys)


def _compare(settings: Settings, draft: Draft, given: Given, key: str, *, keeps_copy: bool) -> None:
    """Trains on pairs, where the loss says so beside what a reference makes of them.

    Adapters that are turned off leave the reference, unless a copy is asked for.

    Source: TRL, ``DPOTrainer``: ``ref_model`` None with peft; LLaMA-Factory, ``create_ref_model``.
    """
    needs_reference = settings.choice(key, meanings=_COMPARES, default=True)
    draft.compare_pairs(given)
    if needs_reference:
        turns_off = draft.plan.get("lora") and not keeps_copy
        draft.reference = "adapters-off" if turns_off else "same"


def _check_that_it_trains(settings: Settings) -> None:
    """Note what is no training of one language model."""
    stage = settings.get("stage") or "sft"
    if stage not in (*_SUPERVISED, _PREFERENCES):
        rule = "is not modelled: it trains with further models or another loss"
        settings.fault("stage", rule, stage, leave_out("stage"))
    trains = settings.switch("do_train", default=settings.states("per_device_train_batch_size"))
    if not trains:
        rule = "is not true, so the file does not train"
        settings.fault("do_train", rule, settings.get("do_train"), "give a training file")
