"""What is a file that is given for a job, and is none?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from simulator.errors import InputError

A_JOB = "give a job as YAML, or the name of a shipped one"
_NEEDED = ("model", "cluster", "batch")
"""Fields that every job has."""
_MISSPELT = 3
"""A file without any of these, but with more fields than this, is of another kind."""
_IMPORTS = "clustersim import {} {} makes a job of it"
_KINDS = {
    "deployment": ("describes serving", "clustersim serve run {} simulates it"),
    "offers": ("lists offers of GPUs", "clustersim rent {} compares them"),
    "zero_optimization": ("is a configuration of DeepSpeed", "deepspeed"),
    "train_micro_batch_size_per_gpu": ("is a configuration of DeepSpeed", "deepspeed"),
    "distributed_type": ("is a configuration of accelerate", "accelerate"),
    "compute_environment": ("is a configuration of accelerate", "accelerate"),
    "ddp": ("is a configuration of Megatron-Bridge", "nemo"),
    "dataset_name": ("is a configuration of TRL", "accelerate"),
    "base_model": ("is a configuration of axolotl", "axolotl"),
    "model_name_or_path": ("is a configuration of LLaMA-Factory", "llamafactory"),
    "per_device_train_batch_size": ("holds TrainingArguments", "accelerate"),
    "model_type": ("is the config.json of a model", "hf"),
}
"""Fields that tell a kind of file: what it is, and the command for it, or its ``import`` name."""
_ENDINGS = {
    ".toml": ("is a configuration of torchtitan", "torchtitan"),
    ".sh": ("is a script, such as Megatron-LM's", "megatron"),
    ".py": ("is a script", "clustersim capture {} --world N --out FILE captures its step"),
}
"""Endings that tell a kind of file, in the same way."""


def refuse_another_ending(source: str) -> None:
    """Refuse a file that its ending tells to be of another kind.

    Raises:
        InputError: It is one.
    """
    kind = _ENDINGS.get(PurePath(source).suffix)
    if kind is not None:
        raise _refusal(*kind, source)


def refuse_another_kind(document: Mapping[str, Any], source: str) -> None:
    """Refuse a document that is no job, with the command that reads it where that is known.

    Raises:
        InputError: It is none.
    """
    if "cluster" not in document and "batch" not in document:
        for field, (what, way) in _KINDS.items():
            if field in document:
                raise _refusal(what, way, source)
    if len(document) > _MISSPELT and not any(field in document for field in _NEEDED):
        rule = f"is not a job: it has none of the fields {', '.join(_NEEDED)}"
        raise InputError.single("", rule, hint=A_JOB, file=source)


def _refusal(what: str, way: str, source: str) -> InputError:
    file = "FILE" if source in {"", "-"} else shlex.quote(source)
    hint = way.format(file) if "{}" in way else _IMPORTS.format(way, file)
    return InputError.single("", f"is not a job: it {what}", hint=hint, file=source)
