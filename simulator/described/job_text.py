"""How are the degrees of a plan, changes of a job, and differences of two jobs put into words?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.described.job import Job


def degrees_text(degrees: Mapping[str, int], dp: int) -> str:
    """The degrees above 1, and always that of data parallelism: ``tp2 pp4 dp1``."""
    divided = {name: degree for name, degree in degrees.items() if degree > 1}
    return " ".join(f"{name}{degree}" for name, degree in {**divided, "dp": dp}.items())


def options_text(changes: Mapping[str, Any]) -> str:
    """Changes as a shell takes them: ``--set plan.tp=2 --set batch.micro=1``."""
    words = (f"{path}={value}".replace("=True", "=true") for path, value in changes.items())
    return " ".join(f"--set {shlex.quote(word.replace('=False', '=false'))}" for word in words)


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
