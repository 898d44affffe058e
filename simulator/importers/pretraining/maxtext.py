"""What job does a YAML of MaxText describe, or the launch line that changes one?

A file names a model or its dimensions; what neither it nor the launch line says is as in MaxText's
``base.yml``. The number of devices is the launcher's. A batch may be a part of a sequence for each
device: several devices then share one.

Source: MaxText 0.2, ``configs/base.yml``, ``layers/nnx_decoders.py``, as facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.facts import shipped_facts
from simulator.files import read_text
from simulator.importers.assembly import ASK_FOR_MODEL, Draft, Given, finished, flat, parse_mapping
from simulator.importers.hub_models import ModelDocument, named_model
from simulator.importers.interpolation import typed
from simulator.importers.settings import Settings, option_rules, option_table
from simulator.importers.shell.command_options import launched_gpus
from simulator.importers.shell.launch_script import read_script

_WANTED = "give a YAML of MaxText, or a script that starts its train.py"
_NO_MODEL = (None, "default")
_LAYER_INPUT = "decoder_layer_input"
"""What a layer reads, which custom keeps somewhere in any case."""


def read_maxtext_config(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a YAML of MaxText, or of a script that starts it with ``KEY=VALUE`` words."""
    origin = str(path)
    text = read_text(Path(path), _WANTED)
    gpus, notes = None, []
    if Path(path).suffix in (".yml", ".yaml"):
        values: Mapping[str, Any] = flat(parse_mapping(text, origin, _WANTED), origin)
    else:
        script = read_script(text, given.definitions, origin)
        words = _launch(script.commands, origin)
        values, gpus, notes = _assignments(words), launched_gpus(words, script), script.notes
    settings = Settings(values, "MaxText")
    settings.assumed += notes
    settings.define(given.definitions)
    model = named_model(settings, given, "model_name") if _names_model(settings) else None
    draft = Draft(model=given.model or model or _dimensions(settings, Path(path).stem))
    if draft.model is None or isinstance(draft.model, str):
        settings.pass_over(shipped_facts("importers/maxtext")["dimensions"].replace(" ", ""))
    draft.stack, draft.gpus = "jax", given.gpus or gpus
    settings.add_defaults(option_table("maxtext", "defaults"))
    recomputation, draft.facts = _recomputation(settings)
    draft.plan = {**_degrees(settings), **_plan(settings), **recomputation}
    draft.seq_len = settings.whole("max_target_length", least=1)
    _batch(settings, draft)
    return finished(draft, settings, option_rules("maxtext"), given, origin)


def _launch(commands: Sequence[Sequence[str]], origin: str) -> Sequence[str]:
    for words in reversed(commands):
        if any(re.search(r"train(_compile)?(\.py)?$", word) for word in words) and any(
            "=" in word for word in words
        ):
            return words
    rule = "has no command that starts MaxText's train.py with its settings"
    raise InputError.single("", rule, file=origin, hint=_WANTED)


def _assignments(words: Sequence[str]) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words if re.match(r"[A-Za-z_]\w*=", word)]
    return {key: typed(value) for key, _, value in pairs}


def _names_model(settings: Settings) -> bool:
    return settings.get("model_name") not in _NO_MODEL


def _dimensions(settings: Settings, name: str) -> ModelDocument | None:
    if _names_model(settings):
        return None
    if not {"base_emb_dim", "base_num_decoder_layers"} & settings.keys:
        return None
    decoder = settings.get("decoder_block")
    if decoder not in (None, *option_table("maxtext", "decoders")):
        rule = "is a layer that cannot be read here"
        settings.fault("decoder_block", rule, decoder, ASK_FOR_MODEL)
        return None
    settings.add_defaults(option_table("maxtext", "defaults"))
    experts = settings.whole("num_experts", default=1)
    width = settings.whole("base_mlp_dim")
    activations = settings.get("mlp_activations") or ["silu", "linear"]
    model = {
        "name": name,
        "layers": settings.whole("base_num_decoder_layers"),
        "hidden": settings.whole("base_emb_dim"),
        "heads": settings.whole("base_num_query_heads"),
        "kv_heads": settings.whole("base_num_kv_heads"),
        "head_dim": settings.whole("head_dim"),
        "ffn_hidden": width,
        "vocab": settings.whole("vocab_size"),
        "gated_mlp": "linear" in activations,
        "activation": next((word for word in activations if word != "linear"), "silu"),
        "tied_embeddings": settings.switch("logits_via_embedding"),
    }
    if experts > 1:
        model["experts"] = {
            "count": experts,
            "top_k": settings.whole("num_experts_per_tok", default=1),
            "ffn_hidden": settings.whole("base_moe_mlp_dim", default=width),
        }
    return model


def _degrees(settings: Settings) -> dict[str, Any]:
    """Parallel degrees: on the links of a node (ici) times between nodes (dcn)."""
    degrees = {
        field: max(1, _axis(settings, "ici", name)) * max(1, _axis(settings, "dcn", name))
        for field, name in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"),
                            ("ep", "expert"))
    }  # fmt: skip
    return {
        **degrees,
        "cp_method": "all_gather" if degrees["cp"] > 1 else "ring",
        **_sharding(settings),
    }


def _axis(settings: Settings, links: str, name: str, default: int = 1) -> int:
    return settings.whole(f"{links}_{name}_parallelism", default=default) or 1


def _sharding(settings: Settings) -> dict[str, Any]:
    """Weights are sharded along fsdp alone: 1 there is plain data parallelism."""
    inside, between = _axis(settings, "ici", "fsdp", -1), _axis(settings, "dcn", "fsdp")
    _axis(settings, "ici", "data"), _axis(settings, "dcn", "data", -1)
    if inside == between == 1:
        return {"zero": 0}
    is_fixed = inside > 0 and between > 0
    return {"zero": 3, "zero_group": inside * between if is_fixed else 0}


def _recomputation(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of the plan and facts of the stack about what is computed again."""
    policy = settings.get("remat_policy") or "full"
    kept = settings.meaning("maxtext/policies", "remat_policy", default=[])
    if kept is None:
        return {"recompute": "none"}, {}
    outputs, places = option_table("maxtext", "tensors"), option_table("maxtext", "places")
    is_offloaded = str(policy).endswith("_offloaded")
    if policy == "custom":
        is_offloaded = "offload" in (settings.get(name) for name in (_LAYER_INPUT, *outputs))
        settings.choice(_LAYER_INPUT, meanings=places, default=True)
        kept = [name for name in outputs if settings.choice(name, meanings=places, default=False)]
    named = list(dict.fromkeys(output for name in kept for output in outputs[name]))
    plan = {"offload": {"activations": "cpu"}} if is_offloaded else {}
    if not named:
        return {"recompute": "full", **plan}, {}
    facts = {"selective_policy": "named-outputs", "named_outputs": named}
    return {"recompute": "selective", **plan}, facts


def _plan(settings: Settings) -> dict[str, Any]:
    form = settings.meaning("maxtext/formats", "dtype", default="bf16")
    quantised = settings.meaning("maxtext/quantizations", "quantization", default=None)
    return {
        "precision": quantised or form,
        **settings.meaning("maxtext/weight_formats", "weight_dtype", default={}),
        "optimizer": settings.meaning("maxtext/optimizers", "opt_type", default="adam"),
        "clip_gradients": settings.number("gradient_clipping_threshold", default=1.0) > 0,
        "attention": settings.meaning("maxtext/attentions", "attention", default="flash"),
    }


def _batch(settings: Settings, draft: Draft) -> None:
    per_device = settings.number("per_device_batch_size", default=12.0)
    steps = settings.whole("gradient_accumulation_steps", default=1, least=1)
    gpus = draft.gpus or 0
    plan = draft.plan
    ranks = gpus // (plan["tp"] * plan["pp"] * plan["cp"])
    draft.global_batch = int(per_device * gpus * steps) or None
    draft.micro_batch = max(1, int(per_device * gpus) // ranks if ranks else int(per_device))
