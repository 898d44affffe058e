"""What job does axolotl's YAML describe?

It is TrainingArguments under partly other names; the number of GPUs is the launcher's.

Source: axolotl's configuration schema (0.3 to 0.19), as facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.files import read_text
from simulator.importers.assembly import Given, finished, flat, parse_mapping
from simulator.importers.finetuning.sharding import files_beside
from simulator.importers.finetuning.trainer import Defaults, trainer_draft
from simulator.importers.settings import Settings, option_rules

_WANTED = "give a YAML of axolotl"
_DEFAULTS = Defaults(stack="axolotl", micro=1, length=512)


def read_axolotl_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of an axolotl configuration, and a report on its settings.

    Args:
        paths: The YAML, and the ``ds_config.json`` that it names, if it is not beside it.
        given: The GPUs, and what else the file leaves open.

    Raises:
        InputError: It is no such file, a setting costs something that is not modelled, or
            something is missing.
    """
    origin = str(paths[0])
    values = parse_mapping(read_text(Path(origin), _WANTED), origin, _WANTED)
    settings = Settings(flat(values, origin), "axolotl")
    beside = files_beside(paths, _WANTED)
    draft = trainer_draft(settings, given, beside, _DEFAULTS)
    rules = option_rules("axolotl") | option_rules("trainer")
    return finished(draft, settings, rules, given, origin, beside.keys)
