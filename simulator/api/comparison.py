"""What do comparisons of steps and of deployments share?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from simulator.described.job import differing_fields
from simulator.errors import InputError

_Job = TypeVar("_Job")


def comparison_dict(
    runs: Sequence[Any], numbers: Iterable[Mapping[str, Any]], changes: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Every run with its numbers, and how each of the others differs from the first, for JSON."""
    first, *others = runs
    return {
        "schema_version": 1,
        "runs": [{"name": run.name, **of} for run, of in zip(runs, numbers, strict=True)],
        "differences": [
            {"name": other.name, **change, "fields": differing_fields(first.job, other.job)}
            for other, change in zip(others, changes, strict=True)
        ],
    }


def named_jobs(jobs: Mapping[str, _Job] | Sequence[tuple[str, _Job]]) -> list[tuple[str, _Job]]:
    """Jobs to compare, with their names.

    Raises:
        InputError: There are fewer than two.
    """
    if len(jobs) < 2:
        hint = "give two or more jobs, each with a different name"
        raise InputError.single("jobs", "needs a second job to compare with", len(jobs), hint)
    return list(jobs.items() if isinstance(jobs, Mapping) else jobs)
