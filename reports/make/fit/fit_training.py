"""Which clock does a device sustain in training, and how much host work does a framework do?

Both are fitted to published training runs: one number per device and one per framework,
for all workloads at once. Sources count the same, however many runs they publish, and errors
count only up to a limit, because a run that is far off is off for another reason. Runs of
the lower grades, where the source leaves knobs unstated, are not used.

The cross-validation leaves out one source after another: each of its runs is predicted with
numbers fitted to all other sources alone.

Run as ``python -m reports.make.fit.fit_training RUNS.csv [--write]``.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from reports.make.fit.training_response import KNOB_VALUES, Knob, Response, responses
from simulator.calibrate.profile_text import with_value
from simulator.described.documents import data_folder
from simulator.described.load import profile_names
from simulator.tables.cells import read_table
from simulator.validate.published.published_runs import read_rows, row_source

CROSS_VALIDATION_FILE = "cross_validation.csv"
"""Beside the table of runs: its predictions with their own source left out."""
_LEFT_OUT_COLUMNS = ("id", "fitted_elsewhere", "predicted_step_s")

_GRADES = ("A", "A-")
_ERROR_LIMIT = 0.25
"""Errors in the logarithm beyond this one count as this one."""

_FEWEST: Mapping[Knob, int] = {"clock": 1, "host_work": 10}
"""Runs that a number needs before it is fitted."""

_STEP: Mapping[Knob, float] = {"clock": 0.001, "host_work": 0.01}

EAGER_HOST_WORK = 13.6
"""Host work per launch of a stack of eager PyTorch for which nothing is fitted: a transformer
layer forward holds the host for 1.2 ms (a Llama-7B of 32 layers in plain PyTorch on an A100: 25.5
tokens/s, bound by its host; PyTorch team, Accelerating Generative AI with PyTorch II, 2023), in
which an unfused GPT layer launches 18 of the kernels modelled here, at 5 us each."""

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
        "h20": "h100-sxm-80gb",
        "h800": "h100-sxm-80gb",
        "l40s": "a100-sxm-80gb",
        "rtx-4090": "l40s",
        "v100-sxm2-32gb": "v100-sxm3-32gb",
    }
)
"""Device of the same or the nearest generation that stands in where no run is published."""

Fitted = Mapping[tuple[Knob, str], float]
"""Value by knob and by profile or stack."""


@dataclass(frozen=True)
class LeftOut:
    """One run, predicted from other sources alone.

    Attributes:
        id: The run.
        fitted: Whether other sources speak of its device or stack; else its device's
            relative, or what is known of eager PyTorch, stands in.
        predicted_step_s: Step time [s].
    """

    id: str
    fitted: bool
    predicted_step_s: float


def fit(runs: Iterable[Response]) -> Fitted:
    """Clock of every profile and host work of every stack that enough runs speak of."""
    groups: dict[tuple[Knob, str], list[Response]] = {}
    for run in runs:
        if run.row.get("grade", "A") in _GRADES:
            groups.setdefault((run.knob, run.key), []).append(run)
    return {
        (knob, key): _best(knob, own)
        for (knob, key), own in sorted(groups.items())
        if len(own) >= _FEWEST[knob]
    }


def cross_validation(runs: Sequence[Response]) -> list[LeftOut]:
    """Every run with numbers fitted to all sources but its own."""
    found = []
    for source in sorted({row_source(run.row["id"]) for run in runs}):
        fitted = fit(run for run in runs if row_source(run.row["id"]) != source)
        for run in runs:
            if row_source(run.row["id"]) == source:
                value = _value(run, fitted)
                step_s = run.step_s(_stand_in(run, fitted) if value is None else value)
                found.append(LeftOut(run.row["id"], value is not None, step_s))
    return found


def loss(runs: Sequence[Response], value: float) -> float:
    """Mean over sources of the mean limited error in the logarithm of the step time."""
    by_source: dict[str, list[float]] = {}
    for run in runs:
        error = min(abs(run.error(value)), _ERROR_LIMIT)
        by_source.setdefault(row_source(run.row["id"]), []).append(error)
    return statistics.fmean(statistics.fmean(errors) for errors in by_source.values())


def _best(knob: Knob, runs: Sequence[Response]) -> float:
    """Where the loss is least. It has kinks and may have several valleys, so all is tried."""
    values = KNOB_VALUES[knob]
    coarse = np.linspace(values[0], values[-1], 81)
    centre = min(coarse, key=lambda value: loss(runs, value))
    reach = coarse[1] - coarse[0]
    low, high = max(values[0], centre - reach), min(values[-1], centre + reach)
    fine = np.arange(low, high + _STEP[knob] / 2, _STEP[knob])
    return float(min(fine, key=lambda value: loss(runs, value)))


def _value(run: Response, fitted: Fitted) -> float | None:
    return fitted.get((run.knob, run.key))


def _stand_in(run: Response, fitted: Fitted) -> float:
    """What is taken where no other source speaks of a device or stack.

    A stack's launches follow from small runs, which frameworks other than eager ones do not have.
    """
    if run.knob == "host_work":
        return EAGER_HOST_WORK
    relative: str | None = run.key
    while relative is not None and ("clock", relative) not in fitted:
        relative = _RELATIVES.get(relative)
    clocks = [value for (knob, _), value in fitted.items() if knob == "clock"]
    return fitted["clock", relative] if relative is not None else statistics.median(clocks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits from a table of training runs, prints the numbers and may write the clocks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table", type=Path, help="published training runs (CSV)")
    parser.add_argument(
        "--write", action="store_true", help="write clocks into the profiles, and the validation"
    )
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor() as executor:
        measured = [row for row in read_rows(options.table) if row["measured_step_s"]]
        runs = responses(measured, executor)
    fitted = fit(runs)
    for (knob, key), value in fitted.items():
        sys.stdout.write(f"{knob} of {key}: {value:.3f}\n")
    if options.write:
        left_out = cross_validation(runs)
        write_clocks(fitted, runs, options.table.name)
        _write_cross_validation(left_out, options.table.parent)
    return 0


def write_clocks(fitted: Fitted, runs: Sequence[Response], table: str) -> None:
    """Put fitted clocks into the profiles; devices without runs take their relative's."""
    for profile in profile_names():
        relative: str | None = profile
        while relative is not None and ("clock", relative) not in fitted:
            relative = _RELATIVES.get(relative)
        if relative == profile:
            source = f'{{kind: fitted, reference: "{_evidence(profile, runs, table)}"}}'
        elif relative is not None:
            source = f'{{kind: assumed, reference: "as {relative}"}}'
        else:
            continue
        value = f"{{value: {fitted['clock', relative]:.3f}, source: {source}}}"
        path = data_folder("hardware_profiles") / f"{profile}.yaml"
        path.write_text(with_value(path.read_text(), ["kernels", "sustained_clock"], value))


def _evidence(profile: str, runs: Sequence[Response], table: str) -> str:
    own = [
        run
        for run in runs
        if (run.knob, run.key) == ("clock", profile) and run.row.get("grade", "A") in _GRADES
    ]
    sources = {row_source(run.row["id"]) for run in own}
    return f"{table}: {len(own)} runs of {len(sources)} sources"


def read_left_out(path: Path) -> list[LeftOut]:
    """The cross-validation that a fit has written."""
    return [
        LeftOut(row["id"], row["fitted_elsewhere"] == "true", float(row["predicted_step_s"]))
        for row in read_table(path, _LEFT_OUT_COLUMNS)
    ]


def _write_cross_validation(left_out: Sequence[LeftOut], folder: Path) -> None:
    with (folder / CROSS_VALIDATION_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_LEFT_OUT_COLUMNS)
        for run in sorted(left_out, key=lambda run: run.id):
            writer.writerow((run.id, str(run.fitted).lower(), f"{run.predicted_step_s:.6g}"))


if __name__ == "__main__":
    raise SystemExit(main())
