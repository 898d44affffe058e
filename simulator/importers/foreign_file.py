"""How is the text of a file that anyone may have written parsed without harm?

By parsers that execute nothing. Nested mappings become flat ones with dotted keys, so that
every setting of a file can be told apart in a report.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulator.described.documents import parse_yaml
from simulator.errors import InputError

_MAX_DEPTH = 50
_MAX_KEY_LETTERS = 500


def parse_mapping(text: str, origin: str, wanted: str = "") -> dict[str, Any]:
    """The mapping that a JSON, TOML or YAML text stands for.

    The ending of ``origin`` decides; without a known one, JSON is tried first, as its
    first letter gives it away, and YAML else.

    Raises:
        InputError: It is malformed, nested too deeply, or no mapping.
    """
    suffix = Path(origin).suffix.lower()
    if suffix == ".toml":
        values = _parsed(text, origin, wanted, "TOML", tomllib.loads)
    elif suffix == ".json" or text.lstrip()[:1] == "{":
        values = _parsed(text, origin, wanted, "JSON", json.loads)
    else:
        values = parse_yaml(text, origin)
    if not isinstance(values, dict):
        rule = "must be a mapping of settings"
        raise InputError.single("", rule, file=origin, hint=wanted)
    return values


def _parsed(
    text: str, origin: str, wanted: str, language: str, parse: Callable[[str], Any]
) -> object:
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        rule = f"is no {language} ({error})"
        raise InputError.single("", rule, file=origin, hint=wanted) from error


def flat(values: Mapping[str, Any], origin: str = "") -> dict[str, Any]:
    """The same settings in one mapping, nested keys joined by dots.

    Empty mappings stay, so that no section of a file gets lost.

    Raises:
        InputError: It is nested deeper, or has longer keys, than a configuration ever is.
    """
    result: dict[str, Any] = {}
    pending = [("", values, 0)]
    while pending:
        prefix, block, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise InputError.single(prefix.rstrip("."), "is nested too deeply", file=origin)
        for key, value in block.items():
            if len(str(key)) > _MAX_KEY_LETTERS:
                rule = f"has a key of {len(str(key)):,} letters"
                raise InputError.single(str(key)[:60], rule, file=origin)
            if isinstance(value, Mapping) and value:
                pending.append((f"{prefix}{key}.", value, depth + 1))
            else:
                result[f"{prefix}{key}"] = value
    return result
