"""What job does an experiment of Primus describe?

Its module ``pre_trainer`` names a framework, a model and what is overridden: options of Megatron-LM
or settings of torchtitan. ``${NAME:default}`` is the environment's; the default counts unless the
user defines the name. The number of GPUs is the launcher's.

Source: Primus' ``configs/modules`` of 2025, as facts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.importers.assembly import Draft, Given, finished, read_flat
from simulator.importers.hub_models import named_model, with_multi_token_layers
from simulator.importers.interpolation import resolved
from simulator.importers.megatron.megatron_core import megatron_draft
from simulator.importers.megatron.megatron_model import changed_model
from simulator.importers.settings import Settings, option_rules, option_table
from simulator.importers.torchtitan import torchtitan_draft

_WANTED = "give the YAML of a Primus experiment, with modules.pre_trainer"
_MODULES = ("pre_trainer", "sft_trainer", "post_trainer")


def read_primus_experiment(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a Primus experiment."""
    origin = str(path)
    known = resolved(read_flat(path, _WANTED), given.definitions)
    module = next((m for m in _MODULES if f"modules.{m}.framework" in known), None)
    if module is None:
        rule = "has no modules.pre_trainer with a framework"
        raise InputError.single("modules", rule, file=origin, hint=_WANTED)
    settings = Settings(_of_module(known, f"modules.{module}."), "Primus")
    settings.define(given.definitions)
    framework = settings.choice(
        "framework", meanings={"megatron": "megatron", "torchtitan": "torchtitan"}, default=""
    )
    model = settings.get("model")
    settings.replace({"model": Path(str(model)).stem.replace("_", "-")} if model else {})
    draft = (
        _torchtitan(settings, given, Path(path))
        if framework == "torchtitan"
        else (_megatron(settings, given))
    )
    rules = option_rules("primus") | option_rules(framework or "megatron")
    return finished(draft, settings, rules, given, origin)


def _of_module(values: dict[str, Any], module: str) -> dict[str, Any]:
    """What a module says, its overrides under their own names, and what stands outside."""
    inner = {key.removeprefix(module): v for key, v in values.items() if key.startswith(module)}
    outer = {key: value for key, value in values.items() if not key.startswith("modules.")}
    plain = {key.removeprefix("overrides."): value for key, value in inner.items()}
    return {**outer, **{key: value for key, value in plain.items() if value != "null"}}


def _megatron(settings: Settings, given: Given) -> Draft:
    model = named_model(settings, given, "model")
    settings.add_defaults(option_table("primus", "megatron_defaults"))
    if model and not given.model:
        model = changed_model(settings, model)
        if "mtp_num_layers" in settings.keys:
            model = with_multi_token_layers(model, settings.whole("mtp_num_layers", default=0))
    return megatron_draft(settings, given.gpus, None, model)


def _torchtitan(settings: Settings, given: Given, path: Path) -> Draft:
    settings.add_defaults(option_table("primus", "torchtitan_defaults"))
    if str(settings.get("model")).lower().endswith("-fp8"):
        settings.add_defaults({"model.converters": ["float8"]})
    return torchtitan_draft(settings, given, named_model(settings, given, "model"), path.parent)
