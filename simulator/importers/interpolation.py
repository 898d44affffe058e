"""What do references inside a YAML file stand for?

OmegaConf's ``${model.hidden_size}``, ``${.hidden_size}`` and ``${multiply:4, ${.hidden_size}}``,
its ``${oc.env:NAME,default}``, and Primus' ``${NAME:default}`` are followed by text alone; the
environment is not looked at. What they leave open the user can define.

Source: OmegaConf's grammar of interpolations; Primus' YAML parser; as facts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_MOST_STEPS = 10
"""References that lead to references."""


def resolved(values: Mapping[str, Any], definitions: Mapping[str, str]) -> dict[str, Any]:
    """The settings with their references to one another replaced.

    Args:
        values: Settings by dotted path.
        definitions: Values of names that the file does not define.
    """
    return {
        key: _resolved(key, value, values, definitions, _MOST_STEPS)
        for key, value in values.items()
    }


def typed(text: str) -> int | float | bool | str:
    """The number or switch that a text says, or else the text."""
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) and len(text) < 40:
        return float(text)
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def _resolved(
    key: str, value: Any, values: Mapping[str, Any], definitions: Mapping[str, str], steps: int
) -> Any:
    if not isinstance(value, str) or "${" not in value or steps == 0 or len(value) > 1000:
        return value
    found = re.search(r"\$\{([^${}]*)\}", value)
    if found is None:
        return value
    target = _value_of(key, found[1].strip(), values, definitions)
    if target is None:
        return value
    if found[0] == value:
        return _resolved(key, target, values, definitions, steps - 1)
    replaced = value.replace(found[0], str(target), 1)
    return _resolved(key, replaced, values, definitions, steps - 1)


def _value_of(
    key: str, name: str, values: Mapping[str, Any], definitions: Mapping[str, str]
) -> Any:
    if name in definitions:
        return typed(definitions[name])
    head, colon, rest = name.partition(":")
    if head == "multiply":
        return _product(rest)
    if head == "oc.env":
        head, _, rest = (part.strip() for part in rest.partition(","))
    if colon:
        default = rest.strip("'\" ")
        return typed(definitions.get(head, default)) if head in definitions or default else None
    dots = len(name) - len(name.lstrip("."))
    parents = key.split(".")[:-dots] if dots else []
    return values.get(".".join([*parents, name.lstrip(".")]))


def _product(factors: str) -> int | None:
    words = [factor.strip() for factor in factors.split(",")]
    is_short = all(re.fullmatch(r"\d{1,9}", word) for word in words) and len(words) < 10
    return math.prod(map(int, words)) if is_short else None
