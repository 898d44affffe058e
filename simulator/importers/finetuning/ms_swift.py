"""What job does a launch script of ms-swift start, or its arguments describe?

``swift sft`` and ``swift pt`` train around Hugging Face's Trainer; ``megatron sft`` and ``megatron
pt`` (Megatron-SWIFT) take Megatron-Core's options and the hub's name of a model. Scripts are read,
never run.

Source: ms-swift's arguments (2.0 to 4.6), as facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.files import read_text
from simulator.importers.adapter_settings import adapter_fields
from simulator.importers.assembly import Given, finished, flat, parse_mapping
from simulator.importers.finetuning.sharding import files_beside
from simulator.importers.finetuning.trainer import Defaults, trainer_draft
from simulator.importers.hub_models import (
    named_model,
    shipped_model,
    with_multi_token_layers,
)
from simulator.importers.interpolation import typed
from simulator.importers.megatron.megatron_core import megatron_draft
from simulator.importers.megatron.megatron_model import changed_model
from simulator.importers.settings import Settings, option_rules, option_table
from simulator.importers.shell.command_options import launched_gpus, options_of
from simulator.importers.shell.launch_script import Script, read_script

_WANTED = "give a launch script of ms-swift, or its arguments as YAML or JSON"
_DEFAULTS = Defaults(stack="ms-swift", micro=1, precision="bf16", recomputes=True)
_TRAINS = ("sft", "pt", "rlhf")
_ADAPTER_DROPOUT = 0.05
_PROGRAMS = {"swift": False, "megatron": True}
"""Commands, and whether they are Megatron-SWIFT's."""


def read_swift_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of a script or of arguments of ms-swift, and of the DeepSpeed JSON they name."""
    origin = str(paths[0])
    text = read_text(Path(origin), _WANTED)
    if Path(origin).suffix in (".json", ".yaml", ".yml"):
        values, gpus, is_megatron = flat(parse_mapping(text, origin, _WANTED), origin), None, False
        notes, waits = list[str](), dict[str, str]()
    else:
        script = read_script(text, given.definitions, origin)
        launcher, command, is_megatron = _launch(script, origin)
        values = {
            key: typed(value) if isinstance(value, str) else value
            for key, value in options_of(command).items()
        }
        gpus, notes, waits = launched_gpus(launcher, script), script.notes, script.waits
    settings = Settings(values, "ms-swift")
    settings.assumed += notes
    settings.wait_for(waits)
    settings.define(given.definitions)
    settings.assume_whole_sequences("packing")
    settings.add_defaults({"lora_dropout": _ADAPTER_DROPOUT})
    gpus = given.gpus or gpus
    return (_megatron if is_megatron else _trainer)(settings, paths, given, gpus)


def _launch(script: Script, origin: str) -> tuple[list[str], list[str], bool]:
    """Words before the training and behind its command, and whether it is Megatron-SWIFT's."""
    for words in reversed(script.commands):
        for i, word in enumerate(words[:-1]):
            program = word.rpartition("/")[2]
            if program in _PROGRAMS and words[i + 1] in _TRAINS:
                mode = ["--rlhf_type", "preferences"] if words[i + 1] == "rlhf" else []
                return words[:i], [*mode, *words[i + 2 :]], _PROGRAMS[program]
            if program in (f"{mode}.py" for mode in _TRAINS):
                arguments = [*_sharding_file(words[:i]), *words[i + 1 :]]
                return words[:i], arguments, "megatron" in word
    rule = "has no command swift sft, swift pt, megatron sft or megatron pt"
    raise InputError.single("", rule, file=origin, hint=_WANTED)


def _sharding_file(launcher: Sequence[str]) -> list[str]:
    """The file by which accelerate launches, as an option that is accounted for."""
    given = options_of(launcher).get("config_file")
    return ["--config_file", str(given)] if given else []


def _trainer(
    settings: Settings, paths: Sequence[str | Path], given: Given, gpus: int | None
) -> tuple[Job, ImportReport]:
    beside = files_beside(paths, _WANTED)
    draft = trainer_draft(settings, replace(given, gpus=gpus), beside, _DEFAULTS)
    rules = option_rules("ms-swift") | option_rules("trainer")
    return finished(draft, settings, rules, given, str(paths[0]), beside.keys)


def _megatron(
    settings: Settings, paths: Sequence[str | Path], given: Given, gpus: int | None
) -> tuple[Job, ImportReport]:
    names = ["model", "model_id_or_path"]
    if shipped_model(str(settings.get("load"))):
        names.append("load")  # its copy in the format of Megatron-Core
    model = named_model(settings, given, *names)
    if model and not given.model:
        model = changed_model(settings, model)
        model = with_multi_token_layers(model, settings.whole("mtp_num_layers", default=0))
    defaults: Mapping[str, Any] = option_table("ms-swift", "megatron_defaults")
    settings.add_defaults(defaults)
    draft = megatron_draft(settings, gpus, None, model)
    draft.plan |= adapter_fields(settings)
    if draft.plan.get("lora"):
        settings.pass_over("lora_(alpha|bias|dtype)|use_rslora")
    draft.seq_len = settings.whole("max_length", "seq_length", default=None, least=1)
    rules = option_rules("megatron") | option_rules("ms-swift")
    return finished(draft, settings, rules, given, str(paths[0]))
