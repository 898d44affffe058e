"""Which jobs do TrainingArguments describe, and the files of axolotl and LLaMA-Factory?

All three are TrainingArguments (``trainer``), the last two under partly other names, with other
defaults and some settings of their own. The number of GPUs is the launcher's.

Source: axolotl's configuration schema (0.3 to 0.19); LLaMA-Factory's hparams and
``model/model_utils/checkpointing.py`` (0.6 to 0.9); as facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.importers.assembly import Draft, Given, finished, read_flat
from simulator.importers.deepspeed import read_deepspeed_config
from simulator.importers.finetuning.sharding import files_beside
from simulator.importers.finetuning.trainer import Defaults, trainer_draft
from simulator.importers.settings import Settings, leave_out, option_rules

_TRAINER = "give TrainingArguments as YAML or JSON"
_AXOLOTL = "give a YAML of axolotl"
_LLAMAFACTORY = "give a YAML of LLaMA-Factory"
_AXOLOTL_DEFAULTS = Defaults(stack="axolotl", micro=1, length=512)
_LLAMAFACTORY_DEFAULTS = Defaults(stack="llama-factory", length=2048, recomputes=True)
_SUPERVISED, _PREFERENCES = ("pt", "sft"), "dpo"
_COMPARES = {
    "dpo": True, "ipo": True, "sigmoid": True, "hinge": True, "orpo": False, "simpo": False,
}  # fmt: skip
"""Losses of preferences, and whether they compare with a reference (ORPO, arXiv 2403.07691, and
SimPO, arXiv 2405.14734, do not)."""


def read_deepspeed_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of a ``ds_config.json``, alone or with the TrainingArguments it is used with.

    The latter, as JSON or YAML, say what it leaves to the trainer ("auto").
    """
    if len(paths) == 1:
        return read_deepspeed_config(paths[0], given)
    beside = files_beside((paths[1], paths[0]), _TRAINER)
    settings = Settings(read_flat(paths[1], _TRAINER), "TrainingArguments")
    draft = trainer_draft(settings, given, beside, Defaults())
    origin = " and ".join(str(path) for path in paths)
    return finished(draft, settings, option_rules("trainer"), given, origin, beside.keys)


def read_axolotl_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of axolotl's YAML, and of the ``ds_config.json`` that it names."""
    settings = Settings(read_flat(paths[0], _AXOLOTL), "axolotl")
    beside = files_beside(paths, _AXOLOTL)
    draft = trainer_draft(settings, given, beside, _AXOLOTL_DEFAULTS)
    if settings.get("rl") is not None:
        keeps_copy = bool(settings.switch("rl_adapter_ref_model"))
        _compare(settings, draft, given, "rl", keeps_copy=keeps_copy)
    rules = option_rules("axolotl") | option_rules("trainer")
    return finished(draft, settings, rules, given, str(paths[0]), beside.keys)


def read_llamafactory_files(paths: Sequence[str | Path], given: Given) -> tuple[Job, ImportReport]:
    """The job of LLaMA-Factory's YAML or JSON, and of the ``ds_config.json`` that it names."""
    settings = Settings(read_flat(paths[0], _LLAMAFACTORY), "LLaMA-Factory")
    _check_that_it_trains(settings)
    beside = files_beside(paths, _LLAMAFACTORY)
    draft = trainer_draft(settings, given, beside, _LLAMAFACTORY_DEFAULTS)
    if settings.get("stage") == _PREFERENCES:
        keeps_copy = settings.get("ref_model") is not None
        _compare(settings, draft, given, "pref_loss", keeps_copy=keeps_copy)
    if settings.switch("pure_bf16"):
        draft.plan |= {"precision": "bf16", "master_weights": False}
    rules = option_rules("llamafactory") | option_rules("trainer")
    return finished(draft, settings, rules, given, str(paths[0]), beside.keys)


def _compare(settings: Settings, draft: Draft, given: Given, key: str, *, keeps_copy: bool) -> None:
    """Trains on pairs, where the loss says so beside what a reference makes of them.

    Adapters that are turned off leave the reference, unless a copy is asked for.

    Source: TRL, ``DPOTrainer``: ``ref_model`` None with peft; LLaMA-Factory, ``create_ref_model``.
    """
    needs_reference = settings.choice(key, meanings=_COMPARES, default=True)
    draft.compare_pairs(given)
    if needs_reference:
        turns_off = draft.plan.get("lora") and not keeps_copy
        draft.reference = "adapters-off" if turns_off else "same"


def _check_that_it_trains(settings: Settings) -> None:
    """Note what is no training of one language model."""
    stage = settings.get("stage") or "sft"
    if stage not in (*_SUPERVISED, _PREFERENCES):
        rule = "is not modelled: it trains with further models or another loss"
        settings.fault("stage", rule, stage, leave_out("stage"))
    trains = settings.switch("do_train", default=settings.states("per_device_train_batch_size"))
    if not trains:
        rule = "is not true, so the file does not train"
        settings.fault("do_train", rule, settings.get("do_train"), "give a training file")
