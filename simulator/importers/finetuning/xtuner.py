"""What job does an XTuner configuration describe?

It is a Python file of assignments, which is read and never run. Sharding is said on the command
line (``--deepspeed deepspeed_zero2``): without a word of the user ranks shard nothing.

Source: XTuner 0.1 to 0.2, its configs and ``model/sft.py``, as facts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.importers.adapter_settings import xtuner_adapters
from simulator.importers.assembly import Draft, Given, finished, flat
from simulator.importers.hub_models import named_model
from simulator.importers.python_source.evaluation import TARGET, read_python_settings
from simulator.importers.settings import Settings, leave_out, option_rules, option_table

_READ = ("model", "optim_wrapper", "strategy", "train_cfg")
"""Objects that are read; the others are data, hooks and logs."""
_MODEL = ("model.llm.pretrained_model_name_or_path", "pretrained_model_name_or_path",
          "llm_name_or_path")  # fmt: skip


def read_xtuner_config(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of an XTuner configuration."""
    origin = str(path)
    names, notes = read_python_settings(Path(path))
    if "model" not in names:
        rule, hint = "assigns no model, so it is not a configuration of XTuner", "give one"
        raise InputError.single("model", rule, hint=hint, file=origin)
    values = {key: value for key, value in flat(names, origin).items() if not key.endswith(TARGET)}
    settings = Settings(values, "XTuner")
    data = [name for name in names if f"{name}.type" in values and name not in _READ]
    settings.pass_over("|".join(rf"{re.escape(name)}\..*" for name in data))
    settings.assumed += notes
    _check_that_it_is_supervised(settings)
    draft = Draft(model=named_model(settings, given, *_MODEL), stack="torch", gpus=given.gpus)
    draft.plan = _plan(settings)
    if "plan.zero" not in given.changes:
        settings.assumed.append(
            "ranks shard nothing, as without --deepspeed; --set plan.zero=2 changes that"
        )
    draft.seq_len = settings.whole("max_length", default=None, least=1)
    _batch(settings, draft, given)
    return finished(draft, settings, option_rules("xtuner"), given, origin)


def _check_that_it_is_supervised(settings: Settings) -> None:
    kind = settings.get("model.type")
    if kind is not None and kind not in option_table("xtuner", "supervised"):
        rule = "is not modelled: it trains with further models or another loss"
        settings.fault("model.type", rule, str(kind), leave_out("model.type"))


def _plan(settings: Settings) -> dict[str, Any]:
    form = settings.meaning("xtuner/formats", "optim_wrapper.dtype", default="fp16")
    cp = settings.whole("sequence_parallel_size", default=1, least=1)
    is_on = settings.switch("model.use_activation_checkpointing", default=True)
    return {
        "cp": cp,
        "cp_method": "all_to_all" if cp > 1 else "ring",
        "zero": 0,
        "precision": form,
        "recompute": "full" if is_on else "none",
        "optimizer": settings.meaning(
            "xtuner/optimizers", "optim_wrapper.optimizer.type", "optim_type", default="adam"
        ),
        "clip_gradients": settings.get("optim_wrapper.clip_grad.max_norm") is not None,
        "attention": "flash",
        **xtuner_adapters(settings),
    }


def _batch(settings: Settings, draft: Draft, given: Given) -> None:
    micro = settings.whole("batch_size", "train_dataloader.batch_size", default=None, least=1)
    steps = settings.whole(
        "accumulative_counts", "optim_wrapper.accumulative_counts", default=1, least=1
    )
    draft.set_batch(given, micro, steps)
    settings.assume_whole_sequences("use_varlen_attn")
    if not settings.switch("pack_to_max_length"):
        settings.assumed.append(
            "every sequence is assumed to have the largest length of the settings"
        )
