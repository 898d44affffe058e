"""What job do GPT-NeoX's YAML files describe?

Its options are Megatron-LM's of 2020 under names of its own, with dashes or underscores, and those
of a ``ds_config.json`` beside them. Several files are one configuration.

Source: GPT-NeoX 1.0 to 2.0, ``neox_arguments`` and ``model/transformer.py``, as facts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.described.documents import parse_yaml
from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.files import read_text
from simulator.importers.assembly import Draft, Given, finished, flat
from simulator.importers.deepspeed import (
    checkpoint_fields,
    deepspeed_facts,
    deepspeed_plan,
)
from simulator.importers.settings import Settings, leave_out, option_rules, option_table

_WANTED = "give YAML files of GPT-NeoX"
_FROM_DEEPSPEED = ("zero", "overlap_grad_reduce", "overlap_param_gather", "offload", "precision")
_FLASH = ("flash", "flash_triton")


def read_neox_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of GPT-NeoX's files; what a later one says counts."""
    settings = Settings(_together(paths), "GPT-NeoX")
    settings.define(given.definitions)
    tp = settings.whole("model_parallel_size", default=1) or 1
    pp = max(1, settings.whole("pipe_parallel_size", default=0))
    draft = Draft(stack="megatron-deepspeed")
    model = _model(settings, tp, Path(paths[0]).stem)
    draft.model = given.model or model
    draft.gpus = given.gpus or settings.whole("global_num_gpus", default=None)
    draft.plan = {
        "tp": tp,
        "pp": pp,
        "cp": settings.whole("context_parallel_size", default=1) or 1,
        **_states(settings),
        "sequence_parallel": settings.switch("sequence_parallel") if tp > 1 else None,
        "optimizer": "adam-8bit"
        if settings.switch("use_bnb_optimizer")
        else settings.meaning("gpt-neox/optimizers", "optimizer.type", default="adam"),
        "clip_gradients": settings.number("gradient_clipping", default=1.0) > 0,
        "attention": _attention(settings),
        **_recomputation(settings, tp),
    }
    dropouts = [settings.number(f"{kind}_dropout", default=0.0) for kind in ("hidden", "attention")]
    draft.facts = {"dropout": any(dropouts)}
    draft.facts |= deepspeed_facts(settings, draft.stack, draft.plan["zero"])
    draft.seq_len = settings.whole("seq_length", default=None, least=1)
    _batch(settings, draft, given)
    origin = " and ".join(str(path) for path in paths)
    rules = option_rules("gpt-neox") | option_rules("deepspeed")
    return finished(draft, settings, rules, given, origin)


def _together(paths: Sequence[str | Path]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path in paths:
        origin = str(path)
        # YAML in braces, with comments and commas that JSON does not know.
        found = parse_yaml(read_text(Path(path), _WANTED), origin)
        if not isinstance(found, dict):
            rule = "must be a mapping of settings"
            raise InputError.single("", rule, file=origin, hint=_WANTED)
        values |= {key.replace("-", "_"): value for key, value in flat(found, origin).items()}
    return values


def _model(settings: Settings, tp: int, name: str) -> dict[str, Any] | None:
    sizes = [
        settings.whole(key, default=None)
        for key in ("num_layers", "hidden_size", "num_attention_heads")
    ]
    if None in sizes:
        return None
    layers, hidden, heads = sizes
    is_gated, activation = settings.meaning(
        "gpt-neox/activations", "activation", default=[False, "gelu"]
    )
    is_llama = settings.get("mlp_type") == "llama"
    has_bias = settings.switch("use_bias_in_attn_linear", default=True)
    norm = settings.meaning("gpt-neox/norms", "norm", default="layernorm")
    positions = settings.meaning("gpt-neox/positions", "pos_emb", default="learned")
    rows = settings.whole("max_position_embeddings", default=None)
    model = {
        "name": name,
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": settings.whole("num_kv_heads", default=None),
        "ffn_hidden": _mlp_width(settings, hidden or 1, is_gated, is_llama),
        "vocab": _vocabulary(settings, tp),
        "gated_mlp": is_gated or is_llama,
        "activation": activation,
        "positions": positions,
        "max_positions": rows if positions == "learned" else None,
        "normalisation": norm,
        "norm_bias": norm == "layernorm" and settings.switch("use_bias_in_norms", default=True),
        "qkv_bias": has_bias,
        "attention_output_bias": has_bias,
        "mlp_bias": not is_llama and settings.switch("use_bias_in_mlp", default=True),
        "tied_embeddings": not settings.switch("no_weight_tying"),
        "parallel_block": settings.switch("gpt_j_residual"),
        "norms_per_layer": 1 if settings.switch("gpt_j_tied") else None,
        "sliding_window": settings.whole("sliding_window_width", default=None),
    }
    return {key: value for key, value in model.items() if value is not None}


def _mlp_width(settings: Settings, hidden: int, is_gated: bool, is_llama: bool) -> int:
    """Width of the MLP: a gated one has a third of what is said, since 2/3 of it are two halves."""
    said: int | None = settings.whole("intermediate_size", default=None)
    factor = settings.number("expansion_factor", default=4.0)
    multiple = settings.whole("mlp_multiple_of", default=256 if is_llama else 1) or 1
    width = said or int(factor * hidden)
    if is_llama:
        width = int(2 * hidden * 4 / 3)
    elif is_gated:
        width = int(width * 2 / 3) // 2
    return -(-width // multiple) * multiple


def _vocabulary(settings: Settings, tp: int) -> int:
    """Entries of the embedding, padded as GPT-NeoX does."""
    settings.get("tokenizer_type")
    said: int | None = settings.whole("padded_vocab_size", "vocab_size", default=None)
    file = str(settings.get("vocab_file") or "")
    kind = settings.get("tokenizer_type") or "GPT2BPETokenizer"
    known = option_table("gpt-neox", "tokenizer_vocabulary")
    named = option_table("gpt-neox", "file_vocabulary")
    by_file = next((size for part, size in named.items() if part in file), None)
    entries = said or by_file or known.get(str(kind))
    if entries is None:
        rule = f"is in the file of the {kind}, which is not read"
        settings.fault("vocab_size", rule, hint="give --define vocab_size=N")
        return 1
    multiple = (settings.whole("make_vocab_size_divisible_by", default=128) or 1) * tp
    settings.assumed.append(f"the vocabulary has {entries} entries, padded to a multiple")
    return -(-entries // multiple) * multiple


def _states(settings: Settings) -> dict[str, Any]:
    """What data-parallel ranks shard, and in which format they compute."""
    found = deepspeed_plan(settings)
    fields = {key: found[key] for key in _FROM_DEEPSPEED if key in found}
    named = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}
    said = settings.choice("precision", meanings=named, default=None)
    settings.get("fp16.fp16")
    if settings.get("fp16.type") == "bfloat16":
        said = "bf16"
    return {**fields, "precision": said or fields["precision"]}


def _attention(settings: Settings) -> str:
    given = settings.get("attention_config")
    kinds = set(re.findall(r"[a-z_]+", str(given or ""))) - {"all", "None"}
    if kinds - {*_FLASH, "global"}:
        rule = "is a kind of attention that is not modelled; known: global, flash"
        settings.fault("attention_config", rule, given, leave_out("attention_config"))
    is_fused = settings.switch("scaled_upper_triang_masked_softmax_fusion")
    if kinds & set(_FLASH):
        return "flash"
    return "fused-softmax" if is_fused else "unfused"


def _recomputation(settings: Settings, tp: int) -> dict[str, Any]:
    per_part = settings.whole("checkpoint_num_layers", default=1)
    if not settings.switch("checkpoint_activations"):
        return {"recompute": "none"}
    if per_part and per_part > 1:
        rule = "keeps one input for several layers, which is not modelled"
        settings.fault("checkpoint_num_layers", rule, per_part, leave_out("checkpoint_num_layers"))
    kept = checkpoint_fields(
        tp,
        in_parts=settings.switch("partition_activations"),
        on_host=settings.switch("checkpoint_in_cpu"),
        in_one_buffer=settings.switch("contiguous_checkpointing"),
    )
    return {"recompute": "full", **kept}


def _batch(settings: Settings, draft: Draft, given: Given) -> None:
    micro = given.micro_batch or settings.whole(
        "train_micro_batch_size_per_gpu", default=None, least=1
    )
    total = settings.whole("train_batch_size", default=None, least=1)
    steps = settings.whole("gradient_accumulation_steps", default=None, least=1) or 1
    copies = draft.plan["tp"] * draft.plan["pp"] * draft.plan["cp"]
    dp = (draft.gpus or 0) // copies
    if total and not micro and dp:
        micro = max(1, total // (dp * steps))
    draft.micro_batch = micro
    draft.global_batch = total or (micro * dp * steps if micro and dp else None)
