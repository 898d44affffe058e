"""Which clock does a device sustain in training, and how much host work does a framework do?

Both are fitted to published training runs: one number per device and one per framework,
for all workloads at once. Sources count alike, however many runs they publish, and errors
count only up to a limit, because a run that is far off is off for another reason. Runs of
the lower grades, where the source leaves knobs unstated, are not used.

Run as ``python -m simulator.calibrate.fit_training RUNS.csv [--write]``.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.calibrate.fit_kernels import RELATIVES
from simulator.calibrate.profile_text import with_value
from simulator.errors import InputError
from simulator.results.run import run_step
from simulator.spec.documents import data_folder, merged
from simulator.spec.load import job_from_document, profile_names
from simulator.validate.published import read_rows, row_source
from simulator.validate.published_rows import Row, job_document

_GRADES = ("A", "A-")
_CLOCK_RANGE = (0.6, 1.0)
_HOST_RANGE = (1.0, 30.0)
_ERROR_LIMIT = 0.25
"""Errors in the logarithm beyond this one count as this one."""

_LAUNCH_BOUND_ELEMENTS = 4e6
"""Activations (tokens x hidden / tp) per microbatch below which kernels are so short that
launching them decides; only such runs can tell a framework's host work."""

_MIN_HOST_ROWS = 10
"""Such runs that a framework needs before its host work is fitted."""

_RELATIVES = {**RELATIVES, "v100-sxm2-32gb": "v100-sxm3-32gb"}
"""Device that stands in where no run is published."""

_TOLERANCE = 0.04
"""Width of the final bracket over that of the first."""


@dataclass
class Parameters:
    """What is fitted.

    Attributes:
        clock: ``sustained_clock`` by profile.
        host_work: ``host_work_per_launch`` by stack.
    """

    clock: dict[str, float] = field(default_factory=dict)
    host_work: dict[str, float] = field(default_factory=dict)

    def document(self, row: Row) -> dict[str, Any]:
        """The job of a row, with these numbers in place of the shipped ones."""
        document = job_document(row)
        stack = document["plan"]["stack"]["base"]
        if row["profile"] in self.clock:
            kernels = {"sustained_clock": self.clock[row["profile"]]}
            document = merged(document, {"cluster": {"kernels": kernels}})
        if stack in self.host_work:
            changed = {"host_work_per_launch": self.host_work[stack]}
            document = merged(document, {"plan": {"stack": changed}})
        return document


def fit_training(rows: Sequence[Row], executor: Executor) -> Parameters:
    """Clock of every profile and host work of every stack that enough rows speak of."""
    usable = [row for row in rows if row.get("grade", "A") in _GRADES]
    by_profile = _grouped(usable, lambda row: row["profile"])
    by_stack = _grouped(usable, lambda row: job_document(row)["plan"]["stack"]["base"])
    fitted = Parameters()  # what is not fitted yet is as shipped
    for profile, own in by_profile.items():
        long = [row for row in own if not _is_launch_bound(row)]
        if long:
            _fit(fitted.clock, profile, _CLOCK_RANGE, fitted, long, executor)
    for stack, own in by_stack.items():
        short = [row for row in own if _is_launch_bound(row)]
        if len(short) >= _MIN_HOST_ROWS:
            _fit(fitted.host_work, stack, _HOST_RANGE, fitted, short, executor)
    return fitted


def _fit(
    values: dict[str, float],
    key: str,
    bounds: tuple[float, float],
    parameters: Parameters,
    rows: Sequence[Row],
    executor: Executor,
) -> None:
    """Sets ``values[key]``, one of the parameters, to where the rows' loss is least."""

    def loss_at(value: float) -> float:
        values[key] = value
        return loss(rows, parameters, executor)

    best = _golden_section(loss_at, *bounds)
    sys.stderr.write(f"{key}: {best:.3f}, mean error {100 * loss_at(best):.1f} %\n")


def loss(rows: Sequence[Row], parameters: Parameters, executor: Executor) -> float:
    """Mean over sources of the mean limited error in the logarithm of the step time."""
    documents = [parameters.document(row) for row in rows]
    by_source: dict[str, list[float]] = {}
    for row, step_time_s in zip(rows, executor.map(_step_time_s, documents), strict=True):
        if step_time_s is not None:
            error = abs(math.log(step_time_s / float(row["measured_step_s"])))
            by_source.setdefault(row_source(row["id"]), []).append(min(error, _ERROR_LIMIT))
    return statistics.fmean(statistics.fmean(errors) for errors in by_source.values() or [[0.0]])


def _step_time_s(document: dict[str, Any]) -> float | None:
    try:
        return run_step(job_from_document(document)).step_time_s
    except InputError:
        return None


def _is_launch_bound(row: Row) -> bool:
    tokens = float(row["micro_batch"]) * float(row["seq_len"])
    return tokens * float(row["hidden"]) / float(row["tp"]) < _LAUNCH_BOUND_ELEMENTS


def _golden_section(function: Callable[[float], float], low: float, high: float) -> float:
    """Argument in [low, high] where a function with one valley is least."""
    ratio = (math.sqrt(5) - 1) / 2
    tolerance = _TOLERANCE * (high - low)
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    left_value, right_value = function(left), function(right)
    while high - low > tolerance:
        if left_value < right_value:
            high, right, right_value = right, left, left_value
            left = high - ratio * (high - low)
            left_value = function(left)
        else:
            low, left, left_value = left, right, right_value
            right = low + ratio * (high - low)
            right_value = function(right)
    return (low + high) / 2


def _grouped(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return dict(sorted(groups.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits from a table of training runs, prints the numbers and may write the clocks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table", type=Path, help="published training runs (CSV)")
    parser.add_argument("--write", action="store_true", help="write clocks into the profiles")
    options = parser.parse_args(arguments)
    rows = read_rows(options.table)
    with ProcessPoolExecutor() as executor:
        fitted = fit_training(rows, executor)
    for stack, value in fitted.host_work.items():
        sys.stdout.write(f"stack {stack}: host_work_per_launch={value:.2f}\n")
    for profile, value in fitted.clock.items():
        sys.stdout.write(f"profile {profile}: sustained_clock={value:.3f}\n")
    if options.write:
        write_clocks(fitted.clock, rows, options.table.name)
    return 0


def write_clocks(clocks: Mapping[str, float], rows: Sequence[Row], table: str) -> None:
    """Put fitted clocks into the profiles; devices without runs take their relative's."""
    for profile in profile_names():
        kin: str | None = profile
        while kin is not None and kin not in clocks:
            kin = _RELATIVES.get(kin)
        if kin == profile:
            source = f'{{kind: fitted, reference: "{_evidence(profile, rows, table)}"}}'
        elif kin is not None:
            source = f'{{kind: assumed, reference: "as {kin}"}}'
        else:
            continue
        value = f"{{value: {clocks[kin]:.3f}, source: {source}}}"
        path = data_folder("hardware_profiles") / f"{profile}.yaml"
        path.write_text(with_value(path.read_text(), ["kernels", "sustained_clock"], value))


def _evidence(profile: str, rows: Sequence[Row], table: str) -> str:
    own = [row for row in rows if row["profile"] == profile and row.get("grade", "A") in _GRADES]
    long = [row for row in own if not _is_launch_bound(row)]
    sources = {row_source(row["id"]) for row in long}
    return f"{table}: {len(long)} runs of {len(sources)} sources"


if __name__ == "__main__":
    raise SystemExit(main())
