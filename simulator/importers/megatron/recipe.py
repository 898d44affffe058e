"""Which settings does a recipe in Python write, of NeMo 2 or of Megatron-Bridge?

Both build nested configurations of Megatron-Core by functions, which are read and never run; what
they name of a model is looked up among the shipped ones. The sections are those of YAML recipes,
NeMo's trainer and optimizer taken apart into them.

Source: NeMo 2.0 to 2.4 (``nemo.collections.llm``), Megatron-Bridge 0.1 to 0.3; as facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.importers.assembly import flat
from simulator.importers.python_source.evaluation import (
    TARGET,
    function_names,
    read_python_config,
)
from simulator.importers.settings import option_table

MODEL_NAME = "model.name_or_class"
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


def read_python_recipe(origin: str) -> tuple[dict[str, Any], list[str]]:
    """Settings of a recipe by dotted path, and notes on what was simplified.

    Args:
        origin: ``FILE.py:FUNCTION``; without a function, ``pretrain_recipe``.

    Raises:
        InputError: There is no such function, or it does more than to configure.
    """
    file, _, function = origin.rpartition(":") if ".py:" in origin else (origin, "", "")
    names = function_names(Path(file))
    if not function and _USUAL not in names:
        known = ", ".join(names[:20])
        hint = f"write FILE.py:FUNCTION with one of {known}"
        raise InputError.single("", "has several recipes", file=file, hint=hint)
    written, notes = read_python_config(Path(file), function or _USUAL)
    if re.search(r"_recipe$|_config$", str(written.get(TARGET, ""))):
        rule = f"starts from {written[TARGET]}, which is not in its folder"
        raise InputError.single("", rule, file=file, hint="give the file of that recipe")
    values = dict(_with_moved_sections(flat(_with_overlaps(written), origin)))
    return {key: value for key, value in values.items() if not _is_name(key)}, notes


def hub_name(text: str) -> str:
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
                yield MODEL_NAME, hub_name(str(value))
            continue
        if key == f"mixed_precision.{TARGET}":
            yield "mixed_precision", value
            continue
        section = next((old for old in _MOVED if key.startswith(f"{old}.")), "")
        yield (_MOVED[section] + key.removeprefix(section) if section else key), value
