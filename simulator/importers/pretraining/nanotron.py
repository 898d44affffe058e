"""What job does a YAML of nanotron describe?

It says everything: the network under Hugging Face's names, all degrees and the batch.

Source: nanotron 0.4, ``config``, as facts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.importers.assembly import Draft, Given, finished, read_flat
from simulator.importers.hub_models import configured_model
from simulator.importers.settings import Settings, option_rules

_WANTED = "give a YAML of nanotron"
_MODEL = "model.model_config"
_NETWORK = (
    "hidden_size", "hidden_act", "intermediate_size", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "tie_word_embeddings", "vocab_size", "attention_bias", "head_dim",
)  # fmt: skip


def read_nanotron_config(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a nanotron configuration."""
    origin = str(path)
    settings = Settings(read_flat(path, _WANTED), "nanotron")
    settings.define(given.definitions)
    degrees = {
        name: settings.whole(f"parallelism.{key}", default=1) or 1
        for name, key in (("tp", "tp"), ("pp", "pp"), ("cp", "context_parallel_size"),
                          ("ep", "expert_parallel_size"))
    }  # fmt: skip
    dp = settings.whole("parallelism.dp", default=None)
    model = _model(settings, Path(path).stem)
    draft = Draft(model=given.model or model, stack="nanotron")
    copies = degrees["tp"] * degrees["pp"] * degrees["cp"]
    draft.gpus = dp * copies if dp else None
    draft.plan = {**degrees, **_plan(settings, degrees)}
    draft.seq_len = settings.whole("tokens.sequence_length", default=None, least=1)
    micro = settings.whole("tokens.micro_batch_size", default=None, least=1)
    steps = settings.whole("tokens.batch_accumulation_per_replica", default=1, least=1)
    draft.set_batch(given, micro, steps)
    return finished(draft, settings, option_rules("nanotron"), given, origin)


def _plan(settings: Settings, degrees: dict[str, int]) -> dict[str, Any]:
    modes = {"REDUCE_SCATTER": True, "reduce_scatter": True, "ALL_REDUCE": False,
             "all_reduce": False}  # fmt: skip
    cuts = settings.choice("parallelism.tp_mode", meanings=modes, default=False)
    schedule = settings.meaning("nanotron/engines", "parallelism.pp_engine", default="gpipe")
    in_fp32 = settings.switch("optimizer.accumulate_grad_in_fp32")
    return {
        "sequence_parallel": cuts if degrees["tp"] > 1 else None,
        "schedule": schedule if degrees["pp"] > 1 else None,
        "zero": settings.whole("optimizer.zero_stage", default=0),
        "precision": settings.meaning("nanotron/formats", "model.dtype", default="fp32"),
        "grad_reduce_precision": "fp32" if in_fp32 else None,
        "optimizer": settings.meaning(
            "nanotron/optimizers", "optimizer.optimizer_factory.name", default="adam"
        ),
        "clip_gradients": settings.number("optimizer.clip_grad", default=0.0) > 0,
        "recompute": "full" if settings.switch("parallelism.recompute_layer") else "none",
        "attention": "flash",
    }


def _model(settings: Settings, name: str) -> dict[str, Any] | None:
    inner = {key: settings.get(f"{_MODEL}.{key}") for key in _NETWORK}
    if inner["hidden_size"] is None:
        return None
    family = "qwen2" if inner["attention_bias"] else "llama"
    if settings.get(f"{_MODEL}.is_starcoder2_config"):
        rule = "is a network that cannot be read"
        hint = "give --model NAME, or a path to its config.json"
        settings.fault(f"{_MODEL}.is_starcoder2_config", rule, value=True, hint=hint)
        return None
    known = {key: value for key, value in inner.items() if value is not None}
    return configured_model(settings, {"model_type": family, **known}, name, _MODEL)
