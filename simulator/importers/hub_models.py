"""Which model does a file mean that only names it, as the Hugging Face hub does?

A folder with a ``config.json`` beside the file is that model. Else the last part of the name is
looked up among the shipped models (``simulator/facts/hub_names.yaml``), or the user's own copy of
its ``config.json`` is read.

The hub's client keeps what it has downloaded as ``models--ORG--NAME/snapshots/REVISION/``, and in
``refs/main`` which revision ``main`` was. Source: documentation of huggingface_hub, *Understand
caching*. ``HF_HUB_CACHE``, ``HF_HOME`` or ``XDG_CACHE_HOME`` say where, in this order.
Nothing is ever downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.described.huggingface.config_file import read_huggingface_config
from simulator.described.huggingface.hub_names import shipped_as
from simulator.described.load import load_model, model_names
from simulator.described.model import Model
from simulator.errors import InputError
from simulator.files import is_there
from simulator.importers.assembly import ASK_FOR_MODEL, Given
from simulator.importers.settings import Settings

ModelDocument = dict[str, Any] | str
"""A model as a job writes it: a name, a path, or fields in place."""

_LONGEST_NAME = 200

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_CONFIG = "config.json"


def named_model(settings: Settings, given: Given, *keys: str) -> ModelDocument | None:
    """The model that one of several settings names; what is not known is a fault.

    Args:
        settings: What a file says.
        given: What the user says; his model counts before the file's.
        keys: Settings that name a model; the first that is there counts.

    Returns:
        The model as a job writes it, or None where nobody names one.
    """
    key, name = settings.first(*keys)
    if given.model or name is None:
        return given.model
    found = shipped_model(str(name))
    if found is None:
        rule = "is not a shipped model, and the file does not state its dimensions"
        settings.fault(key, rule, name, ASK_FOR_MODEL)
    else:
        said = found if isinstance(found, str) else found.get("base")
        if said != str(name):
            settings.assumed.append(f"{name} has the dimensions of {said}")
    return found


def shipped_model(name: str) -> ModelDocument | None:
    """The shipped model with the dimensions of a model of the hub, or None."""
    if len(name) <= _LONGEST_NAME and is_there(Path(name) / "config.json"):
        return str(Path(name) / "config.json")
    return shipped_as(name, model_names())


def layers_of(model: ModelDocument | None) -> int:
    """Layers of a model that a name or a path stands for; none where nobody names one."""
    name = model.get("base") if isinstance(model, dict) else model
    return load_model(str(name)).layers if name else 0


def with_multi_token_layers(known: ModelDocument, count: int) -> ModelDocument:
    """A model with so many layers that predict further tokens (MTP), whatever its own number."""
    base = known.get("base") if isinstance(known, dict) else known
    if load_model(str(base)).multi_token_layers == count:
        return known
    return {**(known if isinstance(known, dict) else {"base": known}), "multi_token_layers": count}


def configured_model(
    settings: Settings, config: Mapping[str, Any], name: str, section: str
) -> dict[str, Any] | None:
    """The model that a section of a file describes as a ``config.json`` would.

    What is wrong with it are faults of the section; the model is None then.
    """
    try:
        model, _ = read_huggingface_config(config, name)
    except InputError as error:
        settings.faults += [replace(f, path=f"{section}.{f.path}") for f in error.faults]
        return None
    return model_document(model)


def model_document(model: Model) -> dict[str, Any]:
    """The model as a job file writes it, without what is left at its default."""
    return {
        "name": model.name,
        **model.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"name"}),
    }


def is_hub_name(text: str) -> bool:
    """Whether a text can be a repository of the hub, ``ORG/NAME``, and no file of that name is."""
    return bool(_REPOSITORY.fullmatch(text)) and ".." not in text and not Path(text).exists()


def hub_cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Folder in which the hub's client keeps repositories, whether or not it exists."""
    if own := environment.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    caches = environment.get("XDG_CACHE_HOME", "~/.cache")
    return Path(caches).expanduser() / "huggingface" / "hub"


def cached_config(repository: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The ``config.json`` of a repository in the local cache, or None where there is none.

    That of the revision that ``main`` was, else of the only or newest other one that holds it.

    Args:
        repository: ``ORG/NAME``.
        environment: Variables that say where the cache lies.
    """
    organisation, _, name = repository.partition("/")
    folder = hub_cache_folder(environment) / f"models--{organisation}--{name}"
    main = _text(folder / "refs" / "main")
    if main and (found := folder / "snapshots" / main / _CONFIG).is_file():
        return found
    others = [path for path in folder.glob(f"snapshots/*/{_CONFIG}") if path.is_file()]
    return max(others, key=lambda path: path.stat().st_mtime, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
