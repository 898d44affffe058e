"""How far does the memory that published runs held spread about the predicted one?

The logarithm of held over predicted memory is taken as Student's t about a centre: what a
prediction misses mostly holds memory, so runs hold more than is predicted more often than less. No
prediction is shifted by it, only how likely it is to hold. There are two such spreads. Where the
framework and the device were held against measured memory, it is that of today's predictions. Where
neither was, it is that of predictions made before anybody had seen the runs (*first sight*), which
is what a user's own framework meets, about the centre of today's, since causes that were mended are
missed nowhere. Sources count the same, however many runs they publish: a user adds one more source,
so the spread is that of the next one, wider than a dozen are themselves.
Runs of the lower grades are left out: what they were missed by is what their source leaves unsaid.

Run as ``python -m reports.make.fit.memory_errors FIRST_SIGHT.csv RUNS.csv ... [--write]``.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from simulator import facts
from simulator.cells import Row
from simulator.described.load import profile_names
from simulator.processor import core_count
from simulator.results.fit_probability import MemorySpread
from simulator.results.students_t import students_t_quantile, students_t_share
from simulator.tables.spellings import profile_name_of
from simulator.validate.published.framework_stacks import stack_of
from simulator.validate.published.published_runs import predicted, read_rows, row_source

FILE = facts.FOLDER / "memory_errors.yaml"
_FREEDOMS = range(2, 9)
"""Degrees of freedom that are tried; fewer have no variance, more are hardly told apart."""
_SCALES = 0.01 * 1.1 ** np.arange(44)
_CENTRES = np.linspace(-0.12, 0.24, 73)
_RATIOS = np.linspace(-2, 2, 801)
"""Logarithms of held over predicted memory for which shares of runs are found."""
_NEGLIGIBLE = 1e-9
"""Probability of a centre or a scale that does not count."""
_LEVELS = np.array([0.8, 0.9, 0.95, 0.99])
"""Probabilities at which the spread of the next source is met by one Student's t, beside 0.5."""
_GRADES = ("A", "A-")


EXPERTS, ADAPTERS, ALONE, OWN_LOOP, NARROW = TRAITS = (
    "experts", "adapters", "one GPU", "plain PyTorch", "8 bits and fewer",
)  # fmt: skip
"""What a run may be known to have, beside its stack and its system: experts, adapters, one GPU, a
loop of its own in PyTorch, and products of operands in 8 bits and fewer."""
_WIDE = ("", "bf16", "fp16", "fp32", "tf32")


class MemoryResidual(NamedTuple):
    """How one published run was missed.

    Attributes:
        id: The run.
        stack, profile: Its framework's stack, and its system.
        log_ratio: Logarithm of held over predicted memory.
        traits: What is known of it before its error is, of :data:`TRAITS`.
    """

    id: str
    stack: str
    profile: str
    log_ratio: float
    traits: frozenset[str] = frozenset()

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
    log_ratio = -math.log1p(error_pct / 100)
    profile = profile_name_of(row["profile"], profile_names()) or row["profile"]
    return MemoryResidual(row["id"], stack, profile, log_ratio, traits_of(row, stack))


def traits_of(row: Row, stack: str) -> frozenset[str]:
    """What a row tells of a run beforehand."""
    has = {
        EXPERTS: bool(row.get("experts")),
        ADAPTERS: '"lora"' in (row.get("facts") or "") or "LoRA" in (row.get("notes") or ""),
        ALONE: row.get("gpus") == "1",
        OWN_LOOP: stack == "torch",
        NARROW: row.get("precision", "") not in _WIDE,
    }
    return frozenset(name for name, is_so in has.items() if is_so)


def unmeasured_spread(first: Iterable[MemoryResidual], known: MemorySpread) -> MemorySpread:
    """That of what was not held against measured memory, about the centre of what was."""
    return fitted_spread(first)._replace(centre=known.centre)


def fitted_spread(residuals: Iterable[MemoryResidual]) -> MemorySpread:
    """Student's t that is closest to what sources tell of the next one.

    A few sources leave centre, scale and degrees of freedom open, so all that are likely count,
    each by its likelihood; centres, and scales by their logarithm, are alike beforehand. Each
    source counts as one run.
    """
    shares = _shares_of_the_next(_by_source(residuals))
    centre = float(np.interp(0.5, shares, _RATIOS))
    reached = np.interp(_LEVELS, shares, _RATIOS) - centre
    fits = []
    for freedom in _FREEDOMS:
        quantiles = np.array([students_t_quantile(p, freedom) for p in _LEVELS.tolist()])
        scale = float(np.mean(reached / quantiles))
        fits.append((float(np.sum((reached / (scale * quantiles) - 1) ** 2)), freedom, scale))
    _, freedom, scale = min(fits)
    return MemorySpread(round(scale, 3), freedom, round(centre, 3))


def _shares_of_the_next(logs: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Share of runs of the next source at or below each of ``_RATIOS``."""
    shares, likelihoods = np.zeros_like(_RATIOS), _likelihoods(logs)
    likely = likelihoods.max(axis=(0, 1)) > _NEGLIGIBLE
    for centre, of_centre in zip(_CENTRES, likelihoods[:, :, likely], strict=True):
        if of_centre.max() > _NEGLIGIBLE:
            errors = (_RATIOS - centre)[:, None] / _SCALES[likely]
            for weight, freedom in zip(of_centre, _FREEDOMS, strict=True):
                shares += _shares_below(freedom)(errors) @ weight
    return shares


def log_density(spread: MemorySpread, log_ratio: float) -> float:
    """Logarithm of the density that a spread gives a logarithm of held over predicted memory."""
    error = (log_ratio - spread.centre) / spread.scale
    return float(_log_density(np.array(error), spread.freedom)) - math.log(spread.scale)


def _by_source(residuals: Iterable[MemoryResidual]) -> list[list[float]]:
    logs: dict[str, list[float]] = defaultdict(list)
    for each in residuals:
        logs[each.source].append(each.log_ratio)
    return list(logs.values())


def _likelihoods(logs: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Of shape (centres, freedoms, scales), with sum 1."""
    ratios = np.concatenate([np.asarray(one, dtype=np.float64) for one in logs])
    alike = np.concatenate([np.full(len(one), 1 / len(one)) for one in logs])
    errors = (ratios - _CENTRES[:, None, None]) / _SCALES[:, None]
    found = np.stack([_log_density(errors, freedom) @ alike for freedom in _FREEDOMS], axis=1)
    found -= len(logs) * np.log(_SCALES)
    weights = np.exp(found - found.max())
    normed: NDArray[np.float64] = weights / weights.sum()
    return normed


def _log_density(values: NDArray[np.float64], freedom: int) -> NDArray[np.float64]:
    """Logarithm of the density of Student's t."""
    norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    tail = (freedom + 1) / 2 * np.log1p(values**2 / freedom)
    density: NDArray[np.float64] = norm - math.log(freedom * math.pi) / 2 - tail
    return density


@cache
def _shares_below(freedom: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Student's distribution function, from a table."""
    values = np.sinh(np.linspace(-7, 7, 701))
    shares = [students_t_share(value, freedom) for value in values.tolist()]
    return lambda wanted: np.interp(wanted, values, shares)


def document(
    known: Sequence[MemoryResidual], first: Sequence[MemoryResidual], tables: Sequence[Path]
) -> str:
    """The file of facts, with where its numbers come from."""
    of_known = fitted_spread(known)
    spreads = {"known": of_known, "unknown": unmeasured_spread(first, of_known)}
    names = " and ".join(path.name for path in tables)
    content = {
        "spreads": {name: spread._asdict() for name, spread in spreads.items()},
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
