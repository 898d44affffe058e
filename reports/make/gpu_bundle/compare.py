"""How far are predictions from the training runs of raw files, as a page and a picture?

Run as ``python -m reports.make.gpu_bundle.compare RAW_FOLDER OUT_FOLDER --profile FILE``;
RAW_FOLDER holds one ``*.jsonl`` or ``*.jsonl.gz`` of one device, and may hold captures of the runs
in ``captures/`` and what was predicted before anything was measured in ``first_sight.csv``. No run
is part of any fit, but the one whose host time a launch is taken from.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from reports.make.gpu_bundle.device.training_runs import Network, TrainingRun
from reports.make.gpu_bundle.jobs import job_document
from reports.make.tables import markdown_table
from reports.make.torch_runs.run_errors import RowErrors, draw_run_errors
from simulator.api import simulate
from simulator.calibrate.gpu.raw_file import read_raw_lines
from simulator.capture.file import read_capture
from simulator.capture.result import simulate_capture
from simulator.described.load import job_from_document, load_profile
from simulator.errors import InputError
from simulator.files import write_whole
from simulator.results.step import ClassMemory
from simulator.units import error_text, format_bytes, format_seconds
from simulator.validate.accuracy import error_pct

WANTED = {
    "step": "4 % mean, 10 % worst", "allocated": "1 %", "reserved": "4 %", "device": "4 %",
}  # fmt: skip
"""Errors that are wanted, by what they are of."""
FIRST_SIGHT, SHIPPED, CALIBRATED, CAPTURED = (
    "first sight, shipped profile", "shipped profile", "calibrated profile",
    "calibrated profile, captured code",
)  # fmt: skip
_BANDS_PCT = (4.0, 10.0)
_REFUSED = 2


@dataclass(frozen=True)
class ComparedRun:
    """One run, measured and predicted.

    Attributes:
        name: Of the run.
        measured: Seconds ``step``, bytes ``allocated``, ``reserved`` and ``device``.
        predicted: The same, by what they were predicted with.
        ran_out: Whether it ran out of memory.
        fits: Whether it is predicted to fit.
        is_own_code: Whether it runs code that a job cannot tell.
    """

    name: str
    measured: Mapping[str, float]
    predicted: Mapping[str, Mapping[str, float]]
    ran_out: bool
    fits: bool
    is_own_code: bool = False

    def error_pct(self, name: str, source: str) -> float | None:
        """Signed error [%], positive where the prediction is too large; None where none is."""
        measured, predicted = self.measured.get(name), self.predicted.get(source)
        if not measured or predicted is None or self.ran_out:
            return None
        return error_pct(predicted[name], measured)


def compared_runs(
    lines: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, str],
    raw: Path | None = None,
) -> list[ComparedRun]:
    """Every run of the lines that came to a step or ran out of memory.

    Args:
        lines: Of a raw file.
        profiles: What predictions rest on, by their words; the last one decides what fits.
        raw: Folder that may hold captures and first predictions.
    """
    before = _first_sight(raw)
    return [_compared(line, profiles, raw, before) for line in lines if _is_run(line)]


def _first_sight(raw: Path | None) -> Mapping[str, Mapping[str, float]]:
    path = raw / "first_sight.csv" if raw else None
    if path is None or not path.exists():
        return {}
    with path.open(encoding="utf-8") as file:
        return {
            row["run"]: {
                "step": float(row["step_s"]),
                **{n: float(row[f"{n}_bytes"]) for n in ("allocated", "reserved", "device")},
            }
            for row in csv.DictReader(file)
        }


def _is_run(line: Mapping[str, Any]) -> bool:
    return line["kind"] == "run" and "out_of_memory" in line


def _compared(
    line: Mapping[str, Any],
    profiles: Mapping[str, str],
    raw: Path | None,
    before: Mapping[str, Mapping[str, float]],
) -> ComparedRun:
    run = _run_of(line["run"])
    others = line.get("taken_before_bytes", 0)
    measured = {
        "allocated": line["allocated_bytes"],
        "reserved": line["reserved_bytes"],
        "device": max(0, line["device_bytes"] - others),
    }
    if not line["out_of_memory"]:
        measured["step"] = statistics.median(line["step_s"])
    predicted = {FIRST_SIGHT: before[run.name]} if run.name in before else {}
    fits = True
    for words, profile in profiles.items():
        result = simulate(job_from_document(job_document(run, profile)))
        predicted[words], fits = _numbers(result.step_time_s, result.memory), result.fits
    capture = raw / "captures" / f"{run.name}.capture" if raw else None
    if capture is not None and capture.exists() and CALIBRATED in profiles:
        found = simulate_capture(read_capture(capture), load_profile(profiles[CALIBRATED]))
        predicted[CAPTURED] = _numbers(found.step_time_s, found.memory)
    ran_out = line["out_of_memory"]
    return ComparedRun(run.name, measured, predicted, ran_out, fits, _is_own_code(run))


def _is_own_code(run: TrainingRun) -> bool:
    """Whether a run does what a job cannot say.

    Experts are code of its own, 8-bit products are scaled eagerly, a compiler gets rotations that
    every layer computes anew, or every tensor that is kept is offloaded.
    """
    own_experts = run.network.experts and not run.is_transformers
    of_layer = own_experts or run.precision == "fp8"
    return bool(of_layer or run.is_compiled or run.is_offloaded)


def _numbers(step_s: float, stages: Sequence[ClassMemory]) -> dict[str, float]:
    memory = max(stages, key=lambda stage: stage.peak_device_bytes)
    return {
        "step": step_s,
        "allocated": memory.peak_allocated_bytes,
        "reserved": memory.peak_reserved_bytes,
        "device": memory.peak_device_bytes,
    }


def _run_of(document: Mapping[str, Any]) -> TrainingRun:
    known = {field.name for field in fields(TrainingRun)} - {"network"}
    own = {name: value for name, value in document.items() if name in known}
    return TrainingRun(network=Network(**document["network"]), **own)


def page(runs: Sequence[ComparedRun], device: Mapping[str, Any], left: Mapping[str, str]) -> str:
    """The page, in Markdown.

    Args:
        runs: All that were measured.
        device: The line of the device.
        left: Runs without numbers, and why.
    """
    sources = list(dict.fromkeys(source for run in runs for source in run.predicted))
    told = [run for run in runs if not run.is_own_code]
    lines = [
        f"# Training steps on {device['name']} against their predictions",
        "",
        "Made by `make gpu-report RAW=DIR` from what `gpu_bundle.pyz` measured. No run is part",
        "of any fit. Errors are of the prediction, positive where it is too large; steps are",
        "medians. A job describes a run in the words of a job file; a capture is of its code.",
        f"torch {device['torch']}, {device['date']}.",
        "",
        *_summary("All runs", runs, sources),
        *(_summary("Runs whose code a job can tell", told, sources) if told != [*runs] else []),
        "![every run](raw_steps.png)",
        "",
        *(line for name in WANTED for line in _table(name, runs, sources)),
    ]
    if any(run.ran_out for run in runs):
        lines += ["## Ran out of memory", ""]
        lines += [
            f"- {run.name}: {'predicted to fit, wrongly' if run.fits else 'as predicted'}"
            for run in runs
            if run.ran_out
        ]
        lines += [""]
    if left:
        lines += ["## Without a measurement", "", *(f"- {n}: {r}" for n, r in left.items()), ""]
    return "\n".join(lines)


def _summary(title: str, runs: Sequence[ComparedRun], sources: Sequence[str]) -> list[str]:
    heads = ("", *(f"{name}, wanted {wanted}" for name, wanted in WANTED.items()))
    rows = (
        (source, *(_mean_and_worst(run.error_pct(name, source) for run in runs) for name in WANTED))
        for source in sources
    )
    return [f"## {title}: mean and worst error", "", *markdown_table(heads, rows), ""]


def _mean_and_worst(found: Iterable[float | None]) -> str:
    errors = [abs(error) for error in found if error is not None]
    if not errors:
        return ""
    return f"{statistics.fmean(errors):.1f} / {max(errors):.1f} % of {len(errors)}"


def _table(name: str, runs: Sequence[ComparedRun], sources: Sequence[str]) -> list[str]:
    words = "Step time" if name == "step" else f"{name.capitalize()} memory"
    show = format_seconds if name == "step" else format_bytes
    rows = (
        (
            run.name,
            show(run.measured[name]),
            *(error_text(run.error_pct(name, source)) for source in sources),
        )
        for run in runs
        if not run.ran_out and run.measured.get(name)
    )
    return [f"## {words}", "", *markdown_table(("run", "measured", *sources), rows), ""]


def draw(runs: Sequence[ComparedRun], path: Path, title: str) -> None:
    """Write the picture of all runs that came to a step; none where there are none.

    Shown are the step of a job and, of the best description there is, memory.
    """
    rows = []
    for run in runs:
        best = CAPTURED if CAPTURED in run.predicted else CALIBRATED
        asked = {
            "step, as a job": ("step", CALIBRATED),
            "step, captured": ("step", CAPTURED),
            "allocated": ("allocated", best),
            "reserved": ("reserved", best),
        }
        errors = {words: run.error_pct(*each) for words, each in asked.items()}
        known = {words: error for words, error in errors.items() if error is not None}
        if known:
            rows.append(RowErrors(run.name, known))
    if rows:
        draw_run_errors(rows, path, title, _BANDS_PCT)


def report(raw: Path, out: Path, profile: str, shipped: str | None = None) -> None:
    """Write ``raw.md`` and ``raw_steps.png`` of a folder with one raw file.

    Raises:
        InputError: There is not one raw file, or it says nothing of its device.
    """
    files = sorted(raw.glob("*.jsonl*"))
    if len(files) != 1:
        raise InputError.single("RAW", "must hold one *.jsonl or *.jsonl.gz file", str(raw))
    lines = read_raw_lines(files[0])
    device = next((line for line in lines if line["kind"] == "device"), None)
    if device is None:
        raise InputError.single("RAW", "does not say which device it is of", str(files[0]))
    profiles = {SHIPPED: shipped} if shipped else {}
    runs = compared_runs(lines, {**profiles, CALIBRATED: profile}, raw)
    left = {
        line["id"]: line["skipped"]
        for line in lines
        if line["id"].startswith("run: ") and "skipped" in line
    }
    write_whole(out / "raw.md", page(runs, device, left))
    draw(runs, out / "raw_steps.png", f"Training steps on {device['name']}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--profile", required=True, help="what predictions rest on")
    parser.add_argument("--shipped", help="a second profile to compare with")
    given = parser.parse_args(arguments)
    try:
        report(given.raw, given.out, given.profile, given.shipped)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return _REFUSED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
