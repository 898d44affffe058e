"""What job does a recipe of NeMo or Megatron-Bridge describe, in YAML or in Python?

Both are configurations of Megatron-Core in sections; the sections are laid into one
mapping and read like Megatron-LM's options (:mod:`simulator.importers.megatron.megatron_core`).
References are followed by :mod:`simulator.importers.interpolation`; what they leave open the
user can define.

Source: NeMo-Framework-Launcher's and Megatron-Bridge's recipes, as facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.files import read_text
from simulator.importers.adapter_settings import nemo_adapters
from simulator.importers.assembly import Given, finished, flat, parse_mapping
from simulator.importers.hub_models import named_model
from simulator.importers.interpolation import resolved
from simulator.importers.megatron.megatron_core import megatron_draft
from simulator.importers.megatron.recipe import read_python_recipe
from simulator.importers.settings import Settings, option_rules, option_table

_WANTED = "give a recipe of NeMo or Megatron-Bridge, as YAML or FILE.py:FUNCTION"

_SECTIONS = (
    "dist", "model", "ddp", "comm_overlap", "optimizer", "model.optim", "mixed_precision", "train",
    "tokenizer", "model.tokenizer", "dataset", "model.data",
)  # fmt: skip
"""Sections that are laid over one another; later ones count, unless they say nothing."""

_NAMED_OPTIMIZER = "optim.name"

_MIXES: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "bf16_mixed": {"bf16": True},
        "fp16_mixed": {"fp16": True},
        "bf16_with_fp8_delayed_scaling_mixed": {"bf16": True, "fp8": "hybrid"},
        "bf16_with_fp8_current_scaling_mixed": {"bf16": True, "fp8": "hybrid"},
        "bf16_with_mxfp8_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "mxfp8"},
        "bf16_with_nvfp4_mixed": {"bf16": True, "fp4": "e2m1"},
    }
)
"""What the named mixtures of Megatron-Bridge stand for."""


def read_nemo_recipe(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a YAML of NeMo 1 or Megatron-Bridge, or of ``FILE.py:FUNCTION``."""
    origin = str(path)
    is_python = ".py:" in origin or Path(origin).suffix == ".py"
    known, notes = read_python_recipe(origin) if is_python else (_yaml(origin, given), [])
    settings = Settings(_one_mapping(known), "NeMo")
    settings.assumed += notes
    settings.define(given.definitions)
    model = named_model(settings, given, "name_or_class") if is_python else None
    if is_python:
        settings.pass_over("vocab_size")  # of the tokenizer; the model is named
        settings.add_defaults(option_table("nemo", "recipe_defaults"))
    elif "num_layers" not in settings.keys:
        settings.assumed.append(
            "settings that are not in the file have Megatron-LM's defaults; a recipe in Python "
            "may differ"
        )
    nodes, devices = settings.whole("trainer.num_nodes"), settings.whole("trainer.devices")
    gpus = given.gpus or (nodes * devices if nodes and devices else None)
    draft = megatron_draft(settings, gpus, None if given.model else Path(origin).stem, model)
    draft.plan |= nemo_adapters(settings)
    rules = option_rules("megatron") | option_rules("nemo")
    return finished(draft, settings, rules, given, origin)


def _yaml(origin: str, given: Given) -> dict[str, Any]:
    values = parse_mapping(read_text(Path(origin), _WANTED), origin, _WANTED)
    inner = values.get("ConfigContainer")
    values = {**values, **inner} if isinstance(inner, Mapping) else values
    values.pop("ConfigContainer", None)
    return resolved(flat(values, origin), given.definitions)


def _one_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of all sections under plain names; what no section holds keeps its path."""
    found: dict[str, Any] = {}
    rest = dict(values)
    for section in sorted(_SECTIONS, key=_SECTIONS.index):
        inner = [s for s in _SECTIONS if s.startswith(f"{section}.")]
        for key in [k for k in rest if k.startswith(f"{section}.")]:
            if any(key.startswith(f"{s}.") for s in inner):
                continue
            value = rest.pop(key)
            name = key.removeprefix(f"{section}.")
            name = _NAMED_OPTIMIZER if key == "model.optim.name" else name
            if value is not None or name not in found:
                found[name] = value
    mix = rest.pop("mixed_precision", None)
    if isinstance(mix, str) and mix in _MIXES:
        found = {**_MIXES[mix], **found}
    elif mix is not None:
        rest["fp8_recipe"] = rest["fp8"] = mix
    return {**rest, **found}
