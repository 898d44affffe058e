"""What job does a YAML of LLaMA-Factory describe?

It is TrainingArguments and settings of its own; the number of GPUs is the launcher's. Layers are
computed again unless ``disable_gradient_checkpointing`` says otherwise.

Source: LLaMA-Factory's hparams and ``model/model_utils/checkpointing.py`` (0.6 to 0.9), as facts.
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
from simulator.importers.settings import Settings, leave_out, option_rules

_WANTED = "give a YAML of LLaMA-Factory"
_DEFAULTS = Defaults(stack="llama-factory", micro=8, length=2048, precision="fp32", recomputes=True)
_SUPERVISED = ("pt", "sft")


def read_llamafactory_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of a LLaMA-Factory configuration, and a report on its settings.

    Args:
        paths: The YAML or JSON, and the ``ds_config.json`` that it names, if it is not beside it.
        given: The GPUs, and what else the file leaves open.

    Raises:
        InputError: It is no such file, a setting costs something that is not modelled, or
            something is missing.
    """
    origin = str(paths[0])
    values = parse_mapping(read_text(Path(origin), _WANTED), origin, _WANTED)
    settings = Settings(flat(values, origin), "LLaMA-Factory")
    _check_that_it_trains(settings)
    beside = files_beside(paths, _WANTED)
    draft = trainer_draft(settings, given, beside, _DEFAULTS)
    if settings.switch("pure_bf16"):
        draft.plan |= {"precision": "bf16", "master_weights": False}
    rules = option_rules("llamafactory") | option_rules("trainer")
    return finished(draft, settings, rules, given, origin, beside.keys)


def _check_that_it_trains(settings: Settings) -> None:
    """Note what is no training of one language model."""
    stage = settings.get("stage") or "sft"
    if stage not in _SUPERVISED:
        rule = "is not modelled: it trains with further models or another loss"
        settings.fault("stage", rule, stage, leave_out("stage"))
    trains = settings.switch("do_train", default=settings.states("per_device_train_batch_size"))
    if not trains:
        rule = "is not true, so the file does not train"
        settings.fault("do_train", rule, settings.get("do_train"), "give a training file")
