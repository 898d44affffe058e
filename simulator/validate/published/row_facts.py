"""What is known of published runs that their table does not say?

A table ``runs.csv`` may have a file ``runs.facts.yaml`` beside it. It holds groups of facts, each
with its evidence and the rows that it is about::

    groups:
    - where: {source: "Lab's report*", tp: ["4", "8"]}   # cells; * stands for any text
      job: {plan: {overlap_tp: true}}                     # fields of the job
      cells: {mem_kind: device}                           # columns of the table
      source: documentation
      reference: launch.sh of the report's repository

Later groups go over earlier ones. Fields of the job travel in the column ``facts`` of a row, which
a table may have itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from simulator.cells import Row, text
from simulator.described.documents import merged, read_yaml, validated, yaml_mapping
from simulator.errors import InputError

_COLUMN = "facts"


class RowFacts(BaseModel):
    """What holds for the rows whose cells fit ``where``, and how that is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: dict[str, str | tuple[str, ...]]
    job: dict[str, Any] = {}
    cells: dict[str, str] = {}
    source: Literal["documentation", "measurement of its own", "residuals", "assumed"]
    reference: str = ""

    def is_about(self, row: Row) -> bool:
        """Whether the cells of a row fit."""
        return all(_fits(text(row, name), patterns) for name, patterns in self.where.items())


class FactsFile(BaseModel):
    """All facts about the rows of one table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: tuple[RowFacts, ...]


def _fits(said: str, patterns: str | Iterable[str]) -> bool:
    wanted = (patterns,) if isinstance(patterns, str) else patterns
    return any(fnmatchcase(said.lower(), pattern.lower()) for pattern in wanted)


def facts_file_of(table: Path) -> Path | None:
    """The file of facts beside a table; None where there is none."""
    path = table.with_suffix(".facts.yaml")
    return path if path.is_file() else None


def with_known_facts(rows: Sequence[Row], table: Path, *, residuals: bool = True) -> list[Row]:
    """The rows of a table with what the file beside it says about them.

    Args:
        rows: The rows.
        table: Their file.
        residuals: Whether to take facts that were found with errors of these rows in view.

    Raises:
        InputError: The file cannot be read, is none of facts, or speaks of rows that are not there.
    """
    path = facts_file_of(table)
    if path is None:
        return list(rows)
    groups = validated(FactsFile, read_yaml(path), file=str(path)).groups
    for number, group in enumerate(groups):
        if not any(map(group.is_about, rows)):
            where = f"groups.{number}.where"
            rule, hint = "fits no row of the table", "correct it, or remove the group"
            raise InputError.single(where, rule, dict(group.where), hint, str(path))
    taken = [group for group in groups if residuals or group.source != "residuals"]
    return [_with_facts(row, [group for group in taken if group.is_about(row)]) for row in rows]


def _with_facts(row: Row, groups: Sequence[RowFacts]) -> Row:
    job: Mapping[str, Any] = stated_facts(row)
    cells: dict[str, str] = {}
    for group in groups:
        job = merged(job, group.job)
        cells |= group.cells
    return {**row, **cells, **({_COLUMN: json.dumps(job)} if job else {})}


def stated_facts(row: Row) -> dict[str, Any]:
    """Fields of the job in a row's column ``facts``; none where that is empty.

    Raises:
        InputError: The cell is no YAML or JSON mapping.
    """
    said = text(row, _COLUMN)
    return yaml_mapping(said, f"column {_COLUMN}") if said else {}
