"""Which facts were found with the errors of a run's own source, and what is the run without them?

Such a fact is of a framework (``found_with`` in ``simulator/facts/stacks``) or of rows
(``source: residuals`` in the file beside a table). A run that is predicted without its source is
predicted without them, too: the framework does what a stack does that states nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simulator.cells import Row, text
from simulator.described.base import file_name_of_field
from simulator.described.documents import merged
from simulator.described.plan.shipped_stacks import evidence_of_stack
from simulator.described.plan.stack import Stack
from simulator.validate.published.framework_stacks import stack_of
from simulator.validate.published.published_runs import read_rows, row_source
from simulator.validate.published.row_facts import stated_facts

_FACTS = "facts"


class Bare(NamedTuple):
    """A run without the facts that its own source told.

    Attributes:
        row: What is left of it.
        taken: Names of the facts that were taken away.
    """

    row: Row
    taken: tuple[str, ...]


def bare_rows(table: Path) -> list[Bare]:
    """Every row of a table without the facts that its own source told."""
    return [
        _bare(row, known)
        for row, known in zip(read_rows(table, residuals=False), read_rows(table), strict=True)
    ]


def _bare(row: Row, known: Row) -> Bare:
    of_row = tuple(sorted(_leaves(stated_facts(known)) - _leaves(stated_facts(row))))
    stack = stack_of(row["framework"], text(row, "framework_version"))
    of_stack = {
        field: getattr(Stack(description=""), _attribute(field))
        for field, evidence in evidence_of_stack(stack).items()
        if row_source(row["id"]) in evidence.found_with
    }
    if of_stack:
        facts = merged(stated_facts(row), {"plan": {"stack": of_stack}})
        row = {**row, _FACTS: json.dumps(facts)}
    return Bare(row, (*of_row, *(f"{stack}: {field}" for field in of_stack)))


def _attribute(field: str) -> str:
    """Name of a stack's attribute, as Python has it."""
    return next(name for name in Stack.model_fields if file_name_of_field(name) == field)


def _leaves(facts: Mapping[str, Any], path: str = "") -> set[str]:
    """Every field that facts state, as ``path: value``."""
    found: set[str] = set()
    for key, value in facts.items():
        at = f"{path}.{key}" if path else key
        found |= _leaves(value, at) if isinstance(value, Mapping) else {f"{at}: {value}"}
    return found
