"""Which clock does a device sustain in training?

It is fitted to published training runs: one number per device, for all workloads at once, and where
a profile has one for products of 8 bits and fewer, one for these. Sources
count nearly the same, however many runs and tables they publish: a single run tells less of what
its source has in common, by the noise that the model of errors finds. Errors count only up to a
limit, because a run that is far off is off for another reason. Runs of the lower grades, where the
source leaves knobs unstated, are not used, nor are those that are bound by launches, nor those of a
source that alone would need the lowest or the highest clock there is: what it misses is no clock.

The cross-validation leaves out one source after another: each of its runs is predicted with
numbers fitted to all other sources alone, and without the facts that were found with its errors in
view (:mod:`reports.make.fit.residual_facts`).

Run as ``python -m reports.make.fit.fit_training RUNS.csv... [--write | --validate]``.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from reports.make.fit.residual_facts import bare_rows
from reports.make.fit.training_response import (
    CLOCK,
    CLOCKS,
    NARROW_CLOCK,
    Response,
    has_narrow_clock,
    is_launch_bound,
    responses,
)
from reports.make.tables import write_table
from simulator.calibrate.profile_text import with_value
from simulator.cells import read_table
from simulator.described.documents import data_folder, parse_yaml
from simulator.described.load import profile_names
from simulator.results.step_error import shipped_errors
from simulator.validate.published.published_runs import read_rows, row_source

CROSS_VALIDATION_FILE = "cross_validation.csv"
"""Beside the first table of runs: all predictions with their own source left out."""
_LEFT_OUT_COLUMNS = ("id", "fitted_elsewhere", "predicted_step_s", "with_facts_s", "taken")

_GRADES = ("A", "A-")
_ERROR_LIMIT = 0.25
"""Errors in the logarithm beyond this one count as this one."""

_TRIED = 80
"""Steps between the lowest and the highest clock at which a loss is looked at first."""

_FLAT = 1.01
"""A loss up to so many times the least is no worse. Assumption."""

_FEWEST_RUNS = 3
"""A clock of fewer is not written: their one source may be off for reasons of its own."""

_STEP = 0.001

_RELATIVES: Mapping[str, str] = MappingProxyType(
    {
        "a100-pcie-40gb": "a100-sxm-80gb",
        "a100-pcie-80gb": "a100-sxm-80gb",
        "a100-sxm-40gb": "a100-sxm-80gb",
        "a800-sxm-80gb": "a100-sxm-80gb",
        "b200-sxm-180gb": "h100-sxm-80gb",
        "b300-sxm": "b200-sxm-180gb",
        "gb200-nvl72": "b200-sxm-180gb",
        "gb300-nvl72": "gb200-nvl72",
        "gh200-96gb": "h100-sxm-80gb",
        "h100-hbm2e-96gb-500w": "h100-sxm-80gb",
        "h100-pcie-80gb": "h100-sxm-80gb",
        "h200-sxm-141gb": "h100-sxm-80gb",
        "h800": "h100-sxm-80gb",
        "l40s": "a100-sxm-80gb",
        "rtx-4090": "l40s",
        "v100-sxm2-32gb": "v100-sxm3-32gb",
    }
)
"""Device of the same or the nearest generation that stands in where no run is published."""

Fitted = Mapping[tuple[str, str], float]
"""Clock by profile and field."""


@dataclass(frozen=True)
class LeftOut:
    """One run, predicted from other sources alone.

    Attributes:
        id: The run.
        fitted: Whether other sources speak of its device; else the device's relative stands in.
        predicted_step_s: Step time [s].
        with_facts_s: The same with the facts that were found with errors of its source [s].
        taken: Those facts, which the prediction does without.
    """

    id: str
    fitted: bool
    predicted_step_s: float
    with_facts_s: float
    taken: str = ""


def fit(runs: Iterable[Response]) -> Fitted:
    """Every clock that runs speak of."""
    groups: dict[tuple[str, str], list[Response]] = {}
    for run in runs:
        if _tells_a_clock(run):
            groups.setdefault((run.profile, run.field), []).append(run)
    telling = {clock: _of_telling_sources(own) for clock, own in sorted(groups.items())}
    return {clock: _best(own) for clock, own in telling.items() if own}


def _of_telling_sources(runs: Iterable[Response]) -> list[Response]:
    """Runs of sources that alone would need neither the lowest nor the highest clock."""
    by_source: dict[str, list[Response]] = {}
    for run in runs:
        by_source.setdefault(row_source(run.row["id"]), []).append(run)
    return [
        run for own in by_source.values() if CLOCKS[0] < _lowest(own) < CLOCKS[-1] for run in own
    ]


def _tells_a_clock(run: Response) -> bool:
    return run.row.get("grade", "A") in _GRADES and not is_launch_bound(run.row)


def cross_validation(
    runs: Sequence[Response], bare: Mapping[str, tuple[Response, str]] | None = None
) -> list[LeftOut]:
    """Every run with numbers fitted to all sources but its own.

    Args:
        runs: The runs.
        bare: By id, those that are other runs without facts found in their own residuals, and the
            names of these facts.
    """
    found = []
    for source in sorted({row_source(run.row["id"]) for run in runs}):
        fitted = fit(run for run in runs if row_source(run.row["id"]) != source)
        for run in runs:
            if row_source(run.row["id"]) == source:
                name, value = run.row["id"], fitted.get((run.profile, run.field))
                used = _stand_in(run, fitted) if value is None else value
                alone, taken = (bare or {}).get(name, (run, ""))
                steps_s = alone.step_s(used), run.step_s(used)
                found.append(LeftOut(name, value is not None, *steps_s, taken))
    return found


def loss(runs: Sequence[Response], value: float) -> float:
    """Mean over sources of the mean limited error in the logarithm of the step time.

    Sources weigh by how surely their runs tell what they have in common.

    Source: weights of random-effects models (R. DerSimonian, N. Laird, "Meta-analysis in clinical
    trials", Controlled Clinical Trials 7, 1986), with the sizes of the shipped model of errors.
    """
    by_source: dict[str, list[float]] = {}
    for run in runs:
        error = min(abs(run.error(value)), _ERROR_LIMIT)
        by_source.setdefault(row_source(run.row["id"]), []).append(error)
    return statistics.fmean(
        map(statistics.fmean, by_source.values()), [_weight(len(own)) for own in by_source.values()]
    )


def _weight(runs: int) -> float:
    """Of a source with so many runs; 1 is that of one whose runs leave nothing open."""
    sizes = shipped_errors()
    noise = math.hypot(sizes.noise["overall"], *sizes.alike.values())
    spread = sizes.spread["overall"]
    return spread**2 / (spread**2 + noise**2 / runs)


def _best(runs: Sequence[Response]) -> float:
    """The middle of all values around the lowest that runs do not tell from it.

    Between sources that disagree the loss is flat, and one run more moves its least value from one
    end to the other.
    """
    lowest = _lowest(runs)
    reach, flat = (CLOCKS[-1] - CLOCKS[0]) / _TRIED, _FLAT * loss(runs, lowest)

    def end(step: float) -> float:
        value = lowest
        while CLOCKS[0] <= value + step <= CLOCKS[-1] and loss(runs, value + step) <= flat:
            value += step
        return value

    return float(end(-reach) + end(reach)) / 2


def _lowest(runs: Sequence[Response]) -> float:
    """Where the loss is least. It has kinks and may have several valleys, so all is tried."""
    coarse = np.linspace(CLOCKS[0], CLOCKS[-1], _TRIED + 1)
    centre = min(coarse, key=lambda value: loss(runs, value))
    reach = coarse[1] - coarse[0]
    low, high = max(CLOCKS[0], centre - reach), min(CLOCKS[-1], centre + reach)
    fine = np.arange(low, high + _STEP / 2, _STEP)
    return float(min(fine, key=lambda value: loss(runs, value)))


def _stand_in(run: Response, fitted: Fitted) -> float:
    """What is taken where no other source speaks of a device in a format.

    That is the device in other formats, or a relative.
    """
    relative: str | None = run.profile
    while relative is not None:
        for field in (run.relatives_field, CLOCK, NARROW_CLOCK):
            if (relative, field) in fitted:
                return fitted[relative, field]
        relative = _RELATIVES.get(relative)
    return statistics.median(fitted.values() or (CLOCKS[-1],))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits from a table of training runs, prints the numbers and may write the clocks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", type=Path, nargs="+", help="published training runs (CSV)")
    parser.add_argument(
        "--write", action="store_true", help="write clocks into the profiles, and the validation"
    )
    parser.add_argument("--validate", action="store_true", help="write the validation alone")
    options = parser.parse_args(arguments)
    changed = [each for table in options.tables for each in bare_rows(table) if each.taken]
    with ProcessPoolExecutor() as executor:
        runs = responses([row for table in options.tables for row in read_rows(table)], executor)
        alone = responses([each.row for each in changed], executor)
    taken = {each.row["id"]: "; ".join(each.taken) for each in changed}
    bare = {run.row["id"]: (run, taken[run.row["id"]]) for run in alone}
    fitted = fit(runs)
    for (profile, field), clock in fitted.items():
        sys.stdout.write(f"{field} of {profile}: {clock:.3f}\n")
    if options.write:
        write_clocks(fitted, runs, ", ".join(table.name for table in options.tables))
    if options.write or options.validate:
        _write_cross_validation(cross_validation(runs, bare), options.tables[0].parent)
    return 0


def write_clocks(fitted: Fitted, runs: Sequence[Response], tables: str) -> None:
    """Put fitted clocks into the profiles."""
    for (profile, field), value in clocks_to_write(fitted, runs, tables).items():
        path = data_folder("hardware_profiles") / f"{profile}.yaml"
        path.write_text(with_value(path.read_text(), ["kernels", field], value))


def clocks_to_write(
    fitted: Fitted, runs: Sequence[Response], tables: str
) -> dict[tuple[str, str], str]:
    """What profiles say of their clocks; those that say ``as`` another follow it.

    A published clock stays, and so do one of which too few runs tell and one that is assumed for
    a reason of the device's own.
    """
    evidence = {clock: _evidence(_runs_of(clock, runs), tables) for clock in fitted}
    told = {clock: value for clock, value in fitted.items() if evidence[clock]}
    clocks = [(name, CLOCK) for name in profile_names()]
    clocks += [(name, NARROW_CLOCK) for name in profile_names() if has_narrow_clock(name)]
    found = {}
    for profile, field in clocks:
        kind, reference = _source(profile, field)
        relative = (reference.removeprefix("as "), field)
        if (profile, field) in told and kind != "published":
            value, said = told[profile, field], f'fitted, reference: "{evidence[profile, field]}"'
        elif relative in told:
            value, said = told[relative], f'assumed, reference: "{reference}"'
        else:
            continue
        found[profile, field] = f"{{value: {value:.3f}, source: {{kind: {said}}}}}"
    return found


def _source(profile: str, field: str) -> tuple[str, str]:
    """Kind and reference of what a profile says of a clock; empty where it says nothing."""
    text = (data_folder("hardware_profiles") / f"{profile}.yaml").read_text(encoding="utf-8")
    number = parse_yaml(text).get("kernels", {}).get(field)
    source = number.get("source", {}) if isinstance(number, Mapping) else {}
    return source.get("kind", ""), source.get("reference", "")


def _evidence(runs: Sequence[Response], tables: str) -> str:
    """What a clock is fitted to; empty where that is too little."""
    sources = {row_source(run.row["id"]) for run in runs}
    return (
        f"{tables}: {len(runs)} runs of {len(sources)} sources" if len(runs) >= _FEWEST_RUNS else ""
    )


def _runs_of(clock: tuple[str, str], runs: Iterable[Response]) -> list[Response]:
    """Runs that a clock is fitted to."""
    own = [run for run in runs if (run.profile, run.field) == clock and _tells_a_clock(run)]
    return _of_telling_sources(own)


def read_left_out(path: Path) -> list[LeftOut]:
    """The cross-validation that a fit has written."""
    return [
        LeftOut(
            row["id"],
            row["fitted_elsewhere"] == "true",
            float(row["predicted_step_s"]),
            float(row["with_facts_s"]),
            row["taken"],
        )
        for row in read_table(path, _LEFT_OUT_COLUMNS)
    ]


def _write_cross_validation(left_out: Sequence[LeftOut], folder: Path) -> None:
    rows = (
        (run.id, str(run.fitted).lower(), run.predicted_step_s, run.with_facts_s, run.taken)
        for run in sorted(left_out, key=lambda run: run.id)
    )
    write_table(folder / CROSS_VALIDATION_FILE, _LEFT_OUT_COLUMNS, rows)


if __name__ == "__main__":
    raise SystemExit(main())
