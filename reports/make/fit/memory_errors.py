"""How far does the memory that published runs held spread about the predicted one?

The logarithm of held over predicted memory is taken as Student's t, about zero: no prediction is
shifted by it. It has two scales: one for runs whose framework and device *other* sources speak of,
too, and one for those that are the only ones of theirs, as a user's may be. So each source says how
far off a run is that nothing was held against. Sources count the same, however many runs they
publish, and the degrees of freedom are shared.

Run as ``python -m reports.make.fit.memory_errors RUNS.csv ... [--write]``.
"""

from __future__ import annotations

import argparse
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
from simulator.validate.published.published_runs import (
    PublishedResult,
    predicted,
    read_rows,
    row_source,
)

FREEDOMS = range(2, 9)
"""Degrees of freedom that are tried; fewer have no variance, more are hardly told apart."""
_SCALES = [0.01 * 1.05**power for power in range(80)]
FILE = facts.FOLDER / "memory_errors.yaml"


class MemoryResidual(NamedTuple):
    """How one published run was missed.

    Attributes:
        id: The run.
        stack, profile: Its framework's stack, and its system.
        ratio: Held over predicted memory.
    """

    id: str
    stack: str
    profile: str
    ratio: float

    @property
    def source(self) -> str:
        """Where it was published."""
        return row_source(self.id)


def memory_residuals(rows: Sequence[Row]) -> list[MemoryResidual]:
    """Of all runs that state their memory and can be predicted."""
    stated = [row for row in rows if row.get("measured_mem_gib")]
    with ProcessPoolExecutor(core_count()) as executor:
        found = list(executor.map(partial(predicted, engine="replay"), stated))
    return [
        residual(row, result)
        for row, result in zip(stated, found, strict=True)
        if result.mem_error_pct is not None
    ]


def residual(row: Row, result: PublishedResult) -> MemoryResidual:
    """Of a run whose memory is stated and predicted."""
    stack = stack_of(row["framework"], row.get("framework_version", ""))
    ratio = 1 / (1 + (result.mem_error_pct or 0.0) / 100)
    return MemoryResidual(result.id, stack, result.gpu, ratio)


def known_names(residuals: Iterable[MemoryResidual]) -> tuple[frozenset[str], frozenset[str]]:
    """Stacks and profiles that some source speaks of."""
    found = list(residuals)
    return frozenset(each.stack for each in found), frozenset(each.profile for each in found)


def is_known(each: MemoryResidual, others: Sequence[MemoryResidual]) -> bool:
    """Whether sources other than its own speak of its stack and of its profile."""
    stacks, profiles = known_names(other for other in others if other.source != each.source)
    return each.stack in stacks and each.profile in profiles


def fitted_spreads(residuals: Sequence[MemoryResidual]) -> Mapping[bool, MemorySpread]:
    """Maximum-likelihood spreads, of runs that are known by others and of those that are not."""
    groups = {
        known: [each for each in residuals if is_known(each, residuals) is known]
        for known in (True, False)
    }
    freedom = max(
        FREEDOMS,
        key=lambda nu: sum(_best(logs, nu)[0] for logs in map(_by_source, groups.values())),
    )
    return {
        known: MemorySpread(round(_best(_by_source(group), freedom)[1], 3), freedom)
        for known, group in groups.items()
    }


def _by_source(residuals: Iterable[MemoryResidual]) -> list[list[float]]:
    logs: dict[str, list[float]] = defaultdict(list)
    for each in residuals:
        logs[each.source].append(math.log(each.ratio))
    return list(logs.values())


def _best(logs: Sequence[Sequence[float]], freedom: int) -> tuple[float, float]:
    """The largest likelihood and its scale; each source counts as one run."""
    return max(
        (sum(_mean(_log_density(each / scale, freedom) for each in one) - math.log(scale)
             for one in logs), scale)
        for scale in _SCALES
    )  # fmt: skip


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _log_density(value: float, freedom: int) -> float:
    """Logarithm of the density of Student's t."""
    norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return (
        norm - math.log(freedom * math.pi) / 2 - (freedom + 1) / 2 * math.log1p(value**2 / freedom)
    )


def without_source(residuals: Sequence[MemoryResidual], each: MemoryResidual) -> MemorySpread:
    """The spread that all other sources give for a run."""
    others = [other for other in residuals if other.source != each.source]
    return fitted_spreads(others)[is_known(each, residuals)]


def document(residuals: Sequence[MemoryResidual], tables: Sequence[Path]) -> str:
    """The file of facts, with where its numbers come from."""
    spreads = fitted_spreads(residuals)
    stacks, profiles = known_names(residuals)
    sources = {each.source for each in residuals}
    content = {
        "degrees_of_freedom": spreads[True].freedom,
        "scale": {"known": spreads[True].scale, "unknown": spreads[False].scale},
        "stacks": sorted(stacks),
        "profiles": sorted(profiles),
        "source": "residuals",
        "reference": f"{len(residuals)} runs of {len(sources)} sources in "
        f"{' and '.join(path.name for path in tables)} that state their memory; "
        "python -m reports.make.fit.memory_errors",
    }
    return yaml.safe_dump(content, sort_keys=False, width=100)


def main() -> None:
    """Fit the spreads and print them, or write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="into simulator/facts")
    given = parser.parse_args()
    rows = [row for table in given.tables for row in read_rows(table)]
    text = document(memory_residuals(rows), given.tables)
    print(text)
    if given.write:
        FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
