"""What job does a YAML of llm-foundry describe?

It is OmegaConf: references to ``${variables.max_seq_len}`` are followed. MPT stands in place,
models of the Hugging Face hub are named. The number of GPUs is the launcher's.

Source: llm-foundry 0.1 to 0.22 and Composer's FSDP configuration, as facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.facts import shipped_facts
from simulator.files import read_text
from simulator.importers.adapter_settings import peft_adapters
from simulator.importers.assembly import Draft, Given, finished, flat, parse_mapping
from simulator.importers.finetuning.sharding import fsdp_sharding
from simulator.importers.hub_models import ModelDocument, configured_model, named_model
from simulator.importers.interpolation import resolved
from simulator.importers.settings import Settings, option_rules

_WANTED = "give a YAML of llm-foundry's train.py"
_MPT: Mapping[str, Any] = {"no_bias": False, "expansion_ratio": 4, "tie_word_embeddings": True}
"""What MPTConfig of llm-foundry has where a file says nothing."""
_MPT_NAMES = ("mpt_causal_lm", "mosaic_gpt")
_SIZES = ("d_model", "n_heads", "n_layers", "vocab_size", "max_seq_len", "learned_pos_emb", *_MPT)
_ATTENTION = ("attn_type", "kv_n_heads", "qk_ln", "qk_gn", "alibi", "rope", "attn_impl", "clip_qkv")
_GROUPS = {"multihead_attention": None, "multiquery_attention": 1}
_IMPLEMENTATIONS = {"flash": "flash", "triton": "flash", "torch": "unfused", "flex": "flash"}


def read_foundry_config(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a YAML of llm-foundry's ``train.py``."""
    origin = str(path)
    values = parse_mapping(read_text(Path(path), _WANTED), origin, _WANTED)
    inner = values.get("parameters")
    values = inner if isinstance(inner, dict) and "model" not in values else values
    known = resolved(flat(values, origin), given.definitions)
    settings = Settings(known, "llm-foundry")
    settings.define(given.definitions)
    draft = Draft(model=_model(settings, given, Path(path).stem), stack="torch-fsdp")
    draft.gpus = given.gpus
    draft.plan = {
        **_sharding(settings, given.gpus or 0),
        "precision": settings.meaning("llm-foundry/precisions", "precision", default="bf16"),
        "recompute": "full" if settings.switch("fsdp_config.activation_checkpointing") else "none",
        "optimizer": settings.meaning("llm-foundry/optimizers", "optimizer.name", default="adam"),
        "clip_gradients": "algorithms.gradient_clipping.clipping_threshold" in settings.keys,
        "attention": _attention(settings),
        "compile": any(key.startswith("compile_config.") for key in settings.keys) or None,
        **(peft_adapters(settings, "model.peft_config") or peft_adapters(settings, "peft_config")),
    }
    logs = settings.switch("model.use_train_metrics", default=True)
    draft.facts = dict(shipped_facts("framework_names")["logged_losses"]) if logs else {}
    draft.seq_len = settings.whole(
        "max_seq_len", "train_loader.dataset.max_seq_len", default=None, least=1
    )
    draft.global_batch = settings.whole("global_train_batch_size", default=None, least=1)
    draft.micro_batch = _micro_batch(settings, given)
    if draft.micro_batch and draft.global_batch and given.gpus:
        # It takes no more at a time than a rank has at all, and warns (utils/config_utils.py).
        draft.micro_batch = min(draft.micro_batch, max(1, draft.global_batch // given.gpus))
    return finished(draft, settings, option_rules("llm-foundry"), given, origin)


def _sharding(settings: Settings, gpus: int) -> dict[str, Any]:
    """What FSDP shards; DDP without its configuration."""
    if not any(key.startswith("fsdp_config.") for key in settings.keys):
        return {"zero": 0}
    reduced = settings.meaning("llm-foundry/reduced", "fsdp_config.mixed_precision", default="fp32")
    return {**fsdp_sharding(settings, gpus, 1), "grad_reduce_precision": reduced}


def _attention(settings: Settings) -> str:
    key = "model.attn_config.attn_impl"
    other = "model.config_overrides.attn_config.attn_impl"
    return settings.choice(key, other, "model.attn_impl", meanings=_IMPLEMENTATIONS,
                           default="flash")  # fmt: skip


def _micro_batch(settings: Settings, given: Given) -> int | None:
    key = "device_train_microbatch_size"
    if settings.get(key) in (None, "auto"):
        if given.micro_batch is None:
            rule = "is determined by the trainer at run time"
            settings.fault(key, rule, "auto", "give --micro-batch N")
        return None
    return settings.whole(key)


def _model(settings: Settings, given: Given, name: str) -> ModelDocument | None:
    kind = settings.get("model.name")
    if given.model:
        settings.pass_over(r"model\..*")
    if given.model or kind not in _MPT_NAMES:
        return named_model(settings, given, "model.pretrained_model_name_or_path")
    sizes = {key: settings.get(f"model.{key}") for key in _SIZES}
    attention = {key: settings.get(f"model.attn_config.{key}") for key in _ATTENTION}
    groups = _GROUPS.get(str(attention.pop("attn_type")), attention["kv_n_heads"])
    config: dict[str, Any] = {**_MPT} | {
        key: value for key, value in sizes.items() if value is not None
    }
    config["attn_config"] = {
        key: value
        for key, value in {**attention, "kv_n_heads": groups}.items()
        if value is not None
    }
    return configured_model(settings, {"model_type": "mpt", **config}, name, "model")
