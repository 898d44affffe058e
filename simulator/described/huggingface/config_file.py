"""How does a Hugging Face ``config.json`` become a model?

The file's ``model_type`` picks a table from :mod:`simulator.described.huggingface.families`;
its keys become the fields of a :class:`~simulator.described.model.Model`. Every other key of
the file ends up in the report: without cost, not modelled, or not known. A family that
is nowhere known is read like Llama if it has no other keys than Llama, and the report says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from simulator.described.foreign_config import ForeignConfig, ImportReport, read_table
from simulator.described.huggingface.families import (
    Fate,
    family_names,
    fate_of_unread_key,
    table_of_family,
)
from simulator.described.huggingface.parameter_counts import decisive_keys, network_names
from simulator.described.model import Model
from simulator.errors import Fault, InputError, UnsupportedError
from simulator.files import read_text, strict_json

MAX_FILE_BYTES = 4 * 1024**2
"""Larger files are refused; real ones have a few thousand bytes."""

_WANTED = "give a config.json of Hugging Face transformers or its folder"
_LIKE_LLAMA = "rotary positions, rmsnorm twice per layer, gated MLP, grouped queries"
_OTHER_NORM = re.compile(r"layer_norm_.*|norm_epsilon|norm_type")
_CAPTURED = "capture a step of its own code instead (clustersim capture)"


def read_huggingface_config(
    source: str | Path | Mapping[str, Any], name: str = ""
) -> tuple[Model, ImportReport]:
    """Read a Hugging Face configuration into a model and a report on its keys.

    Args:
        source: A ``config.json``, a folder that holds one, or its parsed content.
        name: Name of the model; by default that of the folder or file.

    Raises:
        InputError: The file is unreadable or no JSON object, or keys are missing or
            wrong; all of them are named at once.
        UnsupportedError: The network is of a sort that is not modelled.
    """
    values, origin, found_name = load_config(source)
    text, notes = _text_part(values)
    family = _family(text, origin)
    if not family:
        given = text.get("model_type")
        notes.append(f"model_type {given!r} is unknown; read like llama: {_LIKE_LLAMA}")
    config = ForeignConfig(text, family or "llama")
    config.get("model_type")
    fields = read_table(config, table_of_family(family or "llama"))
    lacking = [fault.path for fault in config.faults if fault.value is None]
    if lacking and not family and (given := text.get("model_type")):
        rule = f"is unknown and not like llama, because it lacks {', '.join(lacking)}"
        raise UnsupportedError.single("model_type", rule, given, _CAPTURED, origin)
    if config.faults:
        raise InputError([replace(fault, file=origin) for fault in config.faults])
    _refuse_other_networks(config, text, family, origin)
    fields["name"] = name or found_name or family or "unnamed"
    return _model(fields, config, origin), _report(config, origin, notes)


def load_config(
    source: str | Path | Mapping[str, Any],
) -> tuple[Mapping[str, Any], str, str]:
    """The content of a ``config.json``, the file, and what names the model.

    Raises:
        InputError: The file is unreadable or no JSON object.
    """
    if isinstance(source, Mapping):
        return source, "", ""
    path, text = _file(Path(source))
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _parsed(text, str(path)), str(path), name


def _file(path: Path) -> tuple[Path, str]:
    if os.path.isdir(path):  # false, too, for names that no file can have
        path /= "config.json"
    return path, read_text(path, _WANTED, max_bytes=MAX_FILE_BYTES)


def _parsed(text: str, origin: str) -> Mapping[str, Any]:
    try:
        values = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError.single("", f"is not JSON ({error})", file=origin, hint=_WANTED) from error
    if not isinstance(values, dict):
        raise InputError.single("", "must be a JSON object", file=origin, hint=_WANTED)
    return values


_OF_THE_WHOLE = ("model_type", "tie_word_embeddings")
"""Settings of a model with a vision tower that its language model has where it has none."""


def _text_part(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return the language model of a configuration that may hold a vision tower too."""
    text = values.get("text_config")
    if not isinstance(text, Mapping):
        return values, []
    others = sorted(key for key in values if key.endswith("_config") and key != "text_config")
    note = "only text_config is read" + (f"; {', '.join(others)} ignored" if others else "")
    shared = {key: values[key] for key in _OF_THE_WHOLE if key in values}
    return {**shared, **text}, [note]


def _family(text: Mapping[str, Any], origin: str) -> str:
    """Return the key of the family's table, or "" for one that is read like llama."""
    family = text.get("model_type")
    if family is not None and not isinstance(family, str):
        raise InputError.single("model_type", "must be a text", family, file=origin)
    if text.get("is_encoder_decoder") is True:
        rule = "an encoder and a decoder in one model are not modelled"
        raise UnsupportedError.single("is_encoder_decoder", rule, value=True, file=origin)
    if family is None or family in family_names():
        return family or ""
    if family in network_names():
        rule = "has layers that are not simulated; clustersim models count counts its parameters"
        raise UnsupportedError.single("model_type", rule, family, _CAPTURED, origin)
    return ""


def _refuse_other_networks(
    config: ForeignConfig, text: Mapping[str, Any], family: str, origin: str
) -> None:
    """Refuse a file whose unread keys make its network another than the one that was read."""
    if family:
        decisive = set(decisive_keys(text))
        strange = sorted(key for key in config.unread if key in decisive)
        rule = f"is read, but not these settings, which change its network: {', '.join(strange)}"
    else:
        fates = {key: fate_of_unread_key(key, value) for key, value in config.unread.items()}
        strange = sorted(
            key
            for key, fate in fates.items()
            if fate is not Fate.IGNORED or _OTHER_NORM.fullmatch(key)
        )
        rule = f"is unknown and not like llama, because it has {', '.join(strange)}"
    if strange:
        given = text.get("model_type")
        raise UnsupportedError.single("model_type", rule, given, _CAPTURED, origin)


def _model(fields: Mapping[str, Any], config: ForeignConfig, origin: str) -> Model:
    try:
        return Model.model_validate(fields)
    except ValidationError as error:
        faults = [_fault(detail, config, origin) for detail in error.errors()]
        raise InputError(faults) from error


def _fault(detail: ErrorDetails, config: ForeignConfig, origin: str) -> Fault:
    """Return the fault under the key of the file, or under our field where none was read."""
    field = tuple(str(part) for part in detail["loc"])
    path = config.key_of_field.get(field, ".".join(field))
    rule = detail["msg"].removeprefix("Value error, ")
    return Fault(path, rule, detail["input"], file=origin)


def _report(config: ForeignConfig, origin: str, notes: list[str]) -> ImportReport:
    fates: dict[Fate, list[str]] = {fate: [] for fate in Fate}
    for key, value in config.unread.items():
        fates[fate_of_unread_key(key, value)].append(key)
    return ImportReport(
        source=origin or "a configuration given in Python",
        understood=config.read_keys,
        ignored=tuple(fates[Fate.IGNORED]),
        assumed=(
            *notes,
            *dict.fromkeys(config.assumed),
            *(f"{key} is unknown and assumed to have no cost" for key in fates[Fate.UNKNOWN]),
        ),
        unsupported=(
            *dict.fromkeys(config.unsupported),
            *(f"{key} is set and not modelled" for key in fates[Fate.UNSUPPORTED]),
        ),
    )
