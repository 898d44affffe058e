"""What is a file that is given for a job, and is none?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from simulator.described.documents import data_folder, names_in
from simulator.errors import InputError
from simulator.files import is_there

A_JOB = "give a job as YAML, or the name of a shipped one"
_NEEDED = ("model", "cluster", "batch")
"""Fields that every job has."""
_MISSPELT = 3
"""A file without any of these, but with more fields than this, is of another kind."""
_IMPORTS = "clustersim import {} {} makes a job of it"
_KINDS = {
    "deployment": ("describes serving", "clustersim serve run {} simulates it"),
    "rollout": ("describes reinforcement learning", "clustersim rl {} simulates it"),
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


_SHIPPED = {
    "job": ("a job of training", (), "clustersim run {} simulates it"),
    "serving job": ("a serving job", ("serving",), "clustersim serve run {} simulates it"),
    "RL job": ("a job of reinforcement learning", ("rl",), "clustersim rl {} simulates it"),
    "offers": ("a list of offers", ("offers",), "clustersim rent {} compares them"),
    "model": ("a model", ("models",), ""),
}
"""Kinds of shipped files: what one is, its folder in ``workloads``, and the command for it."""
_WITH_A_MODEL = {
    "job": "clustersim init --model {} writes a job of it",
    "serving job": "give a file with deployment: {{model: {}, profile: h100-sxm-80gb, gpus: 8}}",
}
"""What to do with a model where another kind is asked for."""


def refuse_shipped_of_another_kind(wanted: str, path: Path) -> None:
    """Refuse the name of a shipped file of another kind, with the way to use it.

    Args:
        wanted: The kind that is asked for.
        path: What the user gave; a file that is there, or a name of the kind, is let through.

    Raises:
        InputError: It is one.
    """
    name, workloads = str(path), data_folder("workloads")
    its_name, its_folder, _ = _SHIPPED[wanted]
    if is_there(path) or name in names_in(workloads.joinpath(*its_folder)):
        return
    for what, folder, way in _SHIPPED.values():
        if name in names_in(workloads.joinpath(*folder)):
            hint = (way or _WITH_A_MODEL.get(wanted, "")).format(name)
            raise InputError.single(wanted, f"is {what}, not {its_name}", name, hint)


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
