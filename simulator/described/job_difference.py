"""In which fields do two jobs differ, as their authors wrote them?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulator.described.job import Job


def changed_fields(first: Job, second: Job) -> dict[str, tuple[Any, Any]]:
    """Both values by dotted path, None where a job leaves the field to its default."""
    before, after = dict(_fields(first.document)), dict(_fields(second.document))
    return {
        path: (before.get(path), after.get(path))
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    }


def _fields(node: object, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _fields(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node
