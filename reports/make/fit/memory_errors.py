"""How far does the memory that published runs held spread about the predicted one?

The logarithm of held over predicted memory is taken as Student's t about zero: no prediction is
shifted by it. There are two scales. Where the framework and the device were held against measured
memory, it is that of today's predictions. Where neither was, it is that of predictions made before
anybody had seen the runs (*first sight*), which is what a user's own framework meets. Sources count
the same, however many runs they publish; the degrees of freedom are shared. Runs of the lower
grades are left out: what they were missed by is what their source leaves unsaid.

Run as ``python -m reports.make.fit.memory_errors FIRST_SIGHT.csv RUNS.csv ... [--write]``.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from simulator import facts
from simulator.processor import core_count
from simulator.results.fit_probability import MemorySpread
from simulator.tables.cells import Row
from simulator.validate.published.framework_stacks import stack_of
from simulator.validate.published.published_runs import predicted, read_rows, row_source

FILE = facts.FOLDER / "memory_errors.yaml"
_FREEDOMS = range(2, 9)
"""Degrees of freedom that are tried; fewer have no variance, more are hardly told apart."""
_SCALES = [0.01 * 1.05**power for power in range(80)]
_GRADES = ("A", "A-")


class MemoryResidual(NamedTuple):
    """How one published run was missed.

    Attributes:
        id: The run.
        stack, profile: Its framework's stack, and its system.
        log_ratio: Logarithm of held over predicted memory.
    """

    id: str
    stack: str
    profile: str
    log_ratio: float

    @property
    def source(self) -> str:
        """Where it was published."""
        return row_source(self.id)


def memory_residuals(rows: Iterable[Row]) -> list[MemoryResidual]:
    """Of all runs that state their memory and can be predicted, by today's predictions."""
    stated = [row for row in rows if row.get("measured_mem_gib") and row["grade"] in _GRADES]
    with ProcessPoolExecutor(core_count()) as executor:
        found = list(executor.map(partial(predicted, engine="replay"), stated))
    return [
        residual_of(row, result.mem_error_pct)
        for row, result in zip(stated, found, strict=True)
        if result.mem_error_pct is not None
    ]


def first_residuals(rows: Iterable[Row], first_sight: Path) -> list[MemoryResidual]:
    """The same of the predictions that were made before anybody had seen the runs."""
    with first_sight.open(encoding="utf-8", newline="") as file:
        errors = {row["id"]: row["mem_error_pct"] for row in csv.DictReader(file)}
    stated = (row for row in rows if row["grade"] in _GRADES and errors.get(row["id"]))
    return [residual_of(row, float(errors[row["id"]])) for row in stated]


def residual_of(row: Row, error_pct: float) -> MemoryResidual:
    """Of a run whose memory was missed by so much [%]."""
    stack = stack_of(row["framework"], row.get("framework_version", ""))
    return MemoryResidual(row["id"], stack, row["profile"], -math.log1p(error_pct / 100))


def fitted_spreads(
    known: Sequence[MemoryResidual], first: Sequence[MemoryResidual]
) -> Mapping[str, MemorySpread]:
    """Maximum-likelihood spreads of what is known, and of what is seen for the first time."""
    groups = {"known": _by_source(known), "unknown": _by_source(first)}
    freedom = max(
        _FREEDOMS, key=lambda nu: math.fsum(_best(logs, nu)[0] for logs in groups.values() if logs)
    )
    scales = {name: _best(logs, freedom)[1] for name, logs in groups.items()}
    return {name: MemorySpread(round(scale, 3), freedom) for name, scale in scales.items()}


def _by_source(residuals: Iterable[MemoryResidual]) -> list[list[float]]:
    logs: dict[str, list[float]] = defaultdict(list)
    for each in residuals:
        logs[each.source].append(each.log_ratio)
    return list(logs.values())


def _best(logs: Sequence[Sequence[float]], freedom: int) -> tuple[float, float]:
    """The largest logarithm of the likelihood and its scale; each source counts as one run."""

    def likelihood(scale: float) -> float:
        means = (
            math.fsum(_log_density(x / scale, freedom) for x in one) / len(one) for one in logs
        )
        return math.fsum(means) - len(logs) * math.log(scale)

    return max((likelihood(scale), scale) for scale in _SCALES)


def _log_density(value: float, freedom: int) -> float:
    """Logarithm of the density of Student's t."""
    norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    tail = (freedom + 1) / 2 * math.log1p(value**2 / freedom)
    return norm - math.log(freedom * math.pi) / 2 - tail


def document(
    known: Sequence[MemoryResidual], first: Sequence[MemoryResidual], tables: Sequence[Path]
) -> str:
    """The file of facts, with where its numbers come from."""
    spreads = fitted_spreads(known, first)
    names = " and ".join(path.name for path in tables)
    content = {
        "degrees_of_freedom": spreads["known"].freedom,
        "scale": {name: spread.scale for name, spread in spreads.items()},
        "stacks": sorted({each.stack for each in known}),
        "profiles": sorted({each.profile for each in known}),
        "source": "residuals",
        "reference": f"memory of {len(known)} runs of {len(_by_source(known))} sources in {names}; "
        f"of {len(first)} of {len(_by_source(first))} at first sight",
    }
    return yaml.safe_dump(content, sort_keys=False, width=100)


def main() -> None:
    """Fit the spreads and print them, or write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first_sight", type=Path)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="into simulator/facts")
    given = parser.parse_args()
    rows = [row for table in given.tables for row in read_rows(table)]
    text = document(memory_residuals(rows), first_residuals(rows, given.first_sight), given.tables)
    print(text)
    if given.write:
        FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
