"""Which training steps are run for real on one GPU, and as which jobs?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.described.documents import merged, read_yaml
from simulator.errors import InputError

_BLOCKS = ("common", "runs")


@dataclass(frozen=True, slots=True)
class GridRun:
    """One run of the grid.

    Attributes:
        name: What files and rows are called.
        document: The job, as a file would hold it.
        is_alone: Whether only one rank of the job's is there.
    """

    name: str
    document: Mapping[str, Any]
    is_alone: bool


def read_grid(path: Path) -> list[GridRun]:
    """The runs of a grid file, in order.

    Raises:
        InputError: The file is not laid out as a grid.
    """
    document = read_yaml(path)
    wrong = [name for name in document if name not in _BLOCKS]
    runs = document.get("runs")
    if wrong or not isinstance(runs, Mapping) or not runs:
        rule = f"must have the blocks {' and '.join(_BLOCKS)}, and at least one run"
        raise InputError.single(wrong[0] if wrong else "runs", rule, file=str(path))
    common = document.get("common") or {}
    return [_run(name, run, common) for name, run in runs.items()]


def _run(name: str, given: Mapping[str, Any], common: Mapping[str, Any]) -> GridRun:
    own = {key: value for key, value in given.items() if key != "alone"}
    job = merged(common, own)
    alone = given.get("alone")
    if alone is not None:
        job = merged(job, {"cluster": {"gpus": alone}})
    return GridRun(name, job, alone is not None)
