"""How is a file that anyone may have written read without harm?

Files are read up to a limit, decoded strictly and parsed by parsers that execute
nothing. Nested mappings become flat ones with dotted keys, so that every setting of a
file can be told apart in a report.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.spec.documents import parse_yaml

MAX_FILE_BYTES = 1024**2
"""Larger files are refused; real configurations have some ten thousand bytes."""

_MAX_DEPTH = 50
_MAX_KEY_LETTERS = 500


def read_text(
    path: Path, wanted: str = "", *, max_bytes: int = MAX_FILE_BYTES, errors: str = "strict"
) -> str:
    """The text of a file.

    Args:
        path: Where it lies.
        wanted: What kind of file would do, as the way out of an error.
        max_bytes: A larger one is refused.
        errors: What becomes of bytes that are no UTF-8, as ``bytes.decode`` has it.

    Raises:
        InputError: It is no file, too large, or not UTF-8 text.
    """
    try:
        if not path.is_file():
            raise InputError.single("", "is not a file", file=str(path), hint=wanted)
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            rule = f"has more than the {max_bytes:,} bytes that such a file ever has"
            raise InputError.single("", rule, file=str(path), hint=wanted)
        return content.decode("utf-8-sig", errors)
    except (OSError, ValueError) as error:
        raise InputError.single("", f"cannot be read ({error})", file=str(path)) from error


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
