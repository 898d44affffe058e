"""What job does a recipe of NeMo or Megatron-Bridge describe, in YAML or in Python?

Both are configurations of Megatron-Core in sections; the sections are laid into one
mapping and read like Megatron-LM's options (:mod:`simulator.importers.megatron.megatron_core`).
References are followed by :mod:`simulator.importers.interpolation`; what they leave open the
user can define. Recipes in Python build nested configurations by functions, which are read and
never run; what they name of a model is looked up among the shipped ones.

Source: NeMo-Framework-Launcher's and Megatron-Bridge's recipes; NeMo 2.0 to 2.4
(``nemo.collections.llm``), Megatron-Bridge 0.1 to 0.3; as facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.files import read_text
from simulator.importers.adapter_settings import nemo_adapters
from simulator.importers.assembly import Given, finished, flat, parse_mapping
from simulator.importers.hub_models import named_model
from simulator.importers.interpolation import resolved
from simulator.importers.megatron.megatron_core import megatron_draft
from simulator.importers.megatron.megatron_model import changed_model
from simulator.importers.python_source.evaluation import (
    TARGET,
    function_names,
    read_python_config,
)
from simulator.importers.settings import Settings, option_rules, option_table

_WANTED = "give a recipe of NeMo or Megatron-Bridge, as YAML or FILE.py:FUNCTION"

_SECTIONS = (
    "dist", "model", "ddp", "comm_overlap", "optimizer", "model.optim", "mixed_precision", "train",
    "tokenizer", "model.tokenizer", "dataset", "model.data",
)  # fmt: skip
"""Sections that are laid over one another; later ones count, unless they say nothing."""

_NAMED_OPTIMIZER = "optim.name"

_MIXES: Mapping[str, Mapping[str, object]] = {
    "bf16_mixed": {"bf16": True},
    "fp16_mixed": {"fp16": True},
    "bf16_with_fp8_delayed_scaling_mixed": {"bf16": True, "fp8": "hybrid"},
    "bf16_with_fp8_current_scaling_mixed": {
        "bf16": True,
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
    },
    "bf16_with_mxfp8_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "mxfp8"},
    "bf16_with_nvfp4_mixed": {"bf16": True, "fp4": "e2m1"},
}
"""What the named mixtures of Megatron-Bridge stand for."""

_SPELT_OUT_MIXES = ("MixedPrecisionConfig", "MegatronMixedPrecision")
"""Classes whose arguments are the settings of a mixture, so that their name says nothing more."""

_MODEL_NAME = "model.name_or_class"
"""Under which a recipe's model is kept: a name of the hub, or a class of the framework."""
_USUAL = "pretrain_recipe"
_MOVED = {
    "trainer.strategy.ddp": "ddp",
    "trainer.strategy": "dist",
    "trainer.plugins": "mixed_precision",
    "optim.config": "optimizer",
    "model.config": "model",
    "data": "dataset",
}
"""Sections of NeMo 2 under the names that YAML recipes have for them; longer ones first."""
_NAMES_OF_MODELS = ("model.0", "model.config.0", f"model.{TARGET}", f"model.config.{TARGET}")
_OVERLAP = "MegatronCommOverlapCallback"
_CLASS = r"(?P<family>[A-Za-z]+\d*(?:_\d+)?)(?:Config|ModelProvider|Provider)(?P<size>\w*)"


def read_nemo_recipe(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a YAML of NeMo 1 or Megatron-Bridge, or of ``FILE.py:FUNCTION``."""
    origin = str(path)
    is_python = ".py:" in origin or Path(origin).suffix == ".py"
    known, notes = _read_python_recipe(origin) if is_python else (_yaml(origin, given), [])
    settings = Settings(_one_mapping(known), "NeMo")
    settings.assumed += notes
    settings.define(given.definitions)
    model = named_model(settings, given, "name_or_class") if is_python else None
    if model and not given.model:
        model = changed_model(settings, model)
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
    for section in _SECTIONS:
        inner = tuple(f"{s}." for s in _SECTIONS if s.startswith(f"{section}."))
        for key in [k for k in rest if k.startswith(f"{section}.") and not k.startswith(inner)]:
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


def _read_python_recipe(origin: str) -> tuple[dict[str, Any], list[str]]:
    """Settings of a recipe by dotted path, and notes on what was simplified.

    Args:
        origin: ``FILE.py:FUNCTION``; without a function, ``pretrain_recipe``.

    Raises:
        InputError: There is no such function, or it does more than to configure.
    """
    file, _, function = origin.rpartition(":") if ".py:" in origin else (origin, "", "")
    names = function_names(Path(file))
    if not function and _USUAL not in names:
        if not names:
            rule = "defines no function that makes a recipe"
            hint = "name the file and function that it takes one from, or its settings as YAML"
            raise InputError.single("", rule, file=file, hint=hint)
        known = ", ".join(names[:20])
        hint = f"write FILE.py:FUNCTION with one of {known}"
        raise InputError.single("", "does not say which recipe", file=file, hint=hint)
    written, notes = read_python_config(Path(file), function or _USUAL)
    if re.search(r"_recipe$|_config$", str(written.get(TARGET, ""))):
        rule = f"starts from {written[TARGET]}, which is not in its folder"
        raise InputError.single("", rule, file=file, hint="give the file of that recipe")
    values = dict(_with_moved_sections(flat(_with_overlaps(written), origin)))
    return {key: value for key, value in values.items() if not _is_name(key)}, notes


def _hub_name(text: str) -> str:
    """A class such as ``Llama31Config70B`` as the hub would name the model; other texts stay."""
    found = re.fullmatch(_CLASS, text)
    if found is None:
        return text
    families: Mapping[str, str] = option_table("nemo", "families")
    family = found["family"].lower()
    size = found["size"].lower().replace("_", "-")
    return "-".join(part for part in (families.get(family, family), size) if part)


def _is_name(key: str) -> bool:
    """Whether a setting is the name of what was called, or an argument without a name."""
    return key.rpartition(".")[2] in (TARGET, "**") or bool(re.search(r"(^|\.)\d+(\.|$)", key))


def _with_overlaps(written: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with the callback that overlaps communication as a section."""
    trainer = written.get("trainer")
    callbacks = trainer.get("callbacks") if isinstance(trainer, Mapping) else None
    found = dict(written)
    for callback in callbacks if isinstance(callbacks, list) else ():
        if isinstance(callback, Mapping) and _OVERLAP in (callback.get("0"), callback.get(TARGET)):
            found["comm_overlap"] = {**callback, "tp_comm_overlap_cfg": None}
    return found


def _with_moved_sections(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key in _NAMES_OF_MODELS:
            if re.fullmatch(_CLASS, str(value)) or "/" in str(value):
                yield _MODEL_NAME, _hub_name(str(value))
            continue
        if key == f"mixed_precision.{TARGET}":
            if str(value).rpartition(".")[2] not in _SPELT_OUT_MIXES:
                yield "mixed_precision", value
            continue
        section = next((old for old in _MOVED if key.startswith(f"{old}.")), "")
        yield (_MOVED[section] + key.removeprefix(section) if section else key), value
