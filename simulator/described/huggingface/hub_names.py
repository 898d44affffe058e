"""Which shipped model has the dimensions of a model that the Hugging Face hub names?

Source: ``simulator/facts/hub_names.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from simulator.facts import shipped_facts

_LONGEST_NAME = 200


def shipped_as(name: str, shipped: Collection[str]) -> dict[str, Any] | str | None:
    """The shipped model of a name of the hub, or its changes; None where there is none.

    Args:
        name: With or without its owner and folders.
        shipped: Names of the shipped models.
    """
    if len(name) > _LONGEST_NAME:
        return None
    facts = shipped_facts("hub_names")
    short = name.rstrip("/").rpartition("/")[2].lower()
    tail = rf"[-_.](?:{facts['tails'].replace(' ', '')})"
    while True:
        if short in shipped:
            return short
        for pattern, found in facts["same"].items():
            if re.fullmatch(pattern, short):
                return dict(found) if isinstance(found, dict) else str(found)
        shorter = re.sub(rf"{tail}$", "", short)
        if shorter == short:
            return None
        short = shorter
