"""What is meant by a field, or a value of one, that other frameworks call otherwise?

Names and values stand in ``simulator/facts/other_names.yaml``.
"""

from __future__ import annotations

import re

from simulator.facts import shipped_facts

_ENDINGS = "_size", "_degree"


def other_name_hint(word: str, value: object = None) -> str:
    """Which field somebody means who calls it ``word`` as other frameworks do; empty if none.

    ``value`` is what was given to it, which may be written otherwise here, too.
    """
    plain = word.lower().replace("-", "_")
    spellings = {plain, *(plain.removesuffix(ending) for ending in _ENDINGS)}
    facts = shipped_facts("other_names")
    for entry in facts["derived"]:
        if spellings & set(entry["names"]):
            return str(entry["hint"])
    for path, names in facts["fields"].items():
        if spellings & set(names):
            value_here = value_hint(plain, value) or value_hint(path, value)
            return "; ".join(filter(None, [f"its name here is {path}", value_here]))
    return ""


def value_hint(field: str, value: object) -> str:
    """What to write in place of a value that other frameworks have; empty where none is known.

    Args:
        field: Path of the field, or another name of it.
        value: What was given.
    """
    said = re.sub(r"[\s_]+", "-", str(value).lower())
    for pattern, hint in shipped_facts("other_names")["values"].get(field, {}).items():
        if match := re.fullmatch(pattern, said):
            return match.expand(hint)
    return ""
