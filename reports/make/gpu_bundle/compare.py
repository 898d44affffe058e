"""How far are predictions from the training runs of raw files, as a page and a picture?

Run as ``python -m reports.make.gpu_bundle.compare RAW_FOLDER OUT_FOLDER --profile FILE``;
RAW_FOLDER holds one ``*.jsonl`` of one device. No run is part of any fit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from reports.make.gpu_bundle.device.training_runs import Network, TrainingRun
from reports.make.gpu_bundle.jobs import job_document
from reports.make.torch_runs.run_errors import RowErrors, draw_run_errors
from simulator.api import simulate
from simulator.calibrate.gpu.raw_file import read_raw_lines
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.files import write_whole
from simulator.units import format_bytes, format_seconds
from simulator.validate.accuracy import error_pct

STEP_PCT = (4.0, 10.0)
"""Mean and worst error of the step that are wanted."""
MEMORY_PCT = {"allocated": 1.0, "reserved": 4.0, "device": 4.0}
"""Mean errors of peaks that are wanted."""
_REFUSED = 2


@dataclass(frozen=True)
class ComparedRun:
    """One run, measured and predicted.

    Attributes:
        name: Of the run.
        measured: Seconds ``step``, bytes ``allocated``, ``reserved`` and ``device``.
        predicted: The same.
        ran_out: Whether it ran out of memory.
        fits: Whether it is predicted to fit.
    """

    name: str
    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    ran_out: bool
    fits: bool

    def error_pct(self, name: str) -> float | None:
        """Signed error [%], positive where the prediction is too large; None where none is."""
        measured = self.measured.get(name)
        return error_pct(self.predicted[name], measured) if measured and not self.ran_out else None


def compared_runs(lines: Sequence[Mapping[str, Any]], profile: str) -> list[ComparedRun]:
    """Every run of the lines that came to a step or ran out of memory."""
    return [_compared(line, profile) for line in lines if _is_run(line)]


def _is_run(line: Mapping[str, Any]) -> bool:
    return line["kind"] == "run" and "out_of_memory" in line


def _compared(line: Mapping[str, Any], profile: str) -> ComparedRun:
    run = _run_of(line["run"])
    result = simulate(job_from_document(job_document(run, profile)))
    memory = max(result.memory, key=lambda stage: stage.peak_device_bytes)
    others = line.get("taken_before_bytes", 0)
    measured = {
        "allocated": line["allocated_bytes"],
        "reserved": line["reserved_bytes"],
        "device": max(0, line["device_bytes"] - others),
    }
    if not line["out_of_memory"]:
        measured["step"] = statistics.median(line["step_s"])
    predicted = {
        "step": result.step_time_s,
        "allocated": memory.peak_allocated_bytes,
        "reserved": memory.peak_reserved_bytes,
        "device": memory.peak_device_bytes,
    }
    return ComparedRun(run.name, measured, predicted, line["out_of_memory"], result.fits)


def _run_of(document: Mapping[str, Any]) -> TrainingRun:
    known = {field.name for field in fields(TrainingRun)} - {"network"}
    own = {name: value for name, value in document.items() if name in known}
    return TrainingRun(network=Network(**document["network"]), **own)


def page(
    runs: Sequence[ComparedRun],
    others: Sequence[ComparedRun],
    device: Mapping[str, Any],
    left: Mapping[str, str],
) -> str:
    """The page, in Markdown.

    Args:
        runs: On the profile that was measured.
        others: The same runs on the shipped profile; empty if there is none.
        device: The line of the device.
        left: Runs without numbers, and why.
    """
    lines = [
        f"# Training steps on {device['name']} against their predictions",
        "",
        "Made by `make gpu-report RAW=DIR` from what `gpu_bundle.pyz` measured. No run is part",
        "of any fit. Errors are of the prediction, positive where it is too large; steps are",
        "medians.",
        f"torch {device['torch']}, {device['date']}.",
        "",
        *_summary("calibrated profile", runs),
        *(_summary("shipped profile", others) if others else []),
        "",
        "![every run](raw_steps.png)",
        "",
        "| run | step | predicted | error | allocated | error | reserved | error | device "
        "| error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(_row(run) for run in runs if not run.ran_out),
        "",
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


def _summary(title: str, runs: Sequence[ComparedRun]) -> list[str]:
    text = []
    for name in ("step", *MEMORY_PCT):
        errors = [abs(e) for run in runs if (e := run.error_pct(name)) is not None]
        if not errors:
            continue
        mean, worst = statistics.fmean(errors), max(errors)
        if name == "step":
            wanted = f"wanted {STEP_PCT[0]:g} % and {STEP_PCT[1]:g} %"
        else:
            wanted = f"wanted {MEMORY_PCT[name]:g} %"
        text.append(f"- {title}, {name}: mean {mean:.1f} %, worst {worst:.1f} % ({wanted})")
    return text


def _row(run: ComparedRun) -> str:
    cells = [run.name, format_seconds(run.measured["step"]), format_seconds(run.predicted["step"])]
    cells += [_percent(run.error_pct("step"))]
    for name in MEMORY_PCT:
        cells += [format_bytes(run.measured[name]) if run.measured[name] else ""]
        cells += [_percent(run.error_pct(name))]
    return f"| {' | '.join(cells)} |"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1f} %"


def draw(runs: Sequence[ComparedRun], path: Path, title: str) -> None:
    """Write the picture of all runs that came to a step; none where there are none."""
    names = {"step": "step time", **{name: f"{name} memory" for name in MEMORY_PCT}}
    rows = []
    for run in runs:
        errors = {words: run.error_pct(name) for name, words in names.items()}
        known = {words: error for words, error in errors.items() if error is not None}
        if known:
            rows.append(RowErrors(run.name, known))
    if rows:
        draw_run_errors(rows, path, title, STEP_PCT)


def report(raw: Path, out: Path, profile: str, shipped: str | None = None) -> None:
    """Write ``raw.md`` and ``raw_steps.png`` of a folder with one raw file.

    Raises:
        InputError: There is not one raw file, or it says nothing of its device.
    """
    files = sorted(raw.glob("*.jsonl"))
    if len(files) != 1:
        raise InputError.single("RAW", "must hold one *.jsonl file", str(raw))
    lines = read_raw_lines(files[0])
    device = next((line for line in lines if line["kind"] == "device"), None)
    if device is None:
        raise InputError.single("RAW", "does not say which device it is of", str(files[0]))
    runs = compared_runs(lines, profile)
    others = compared_runs(lines, shipped) if shipped else []
    left = {
        line["id"]: line["skipped"]
        for line in lines
        if line["id"].startswith("run: ") and "skipped" in line
    }
    write_whole(out / "raw.md", page(runs, others, device, left))
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
