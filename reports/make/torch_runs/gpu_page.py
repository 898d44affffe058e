"""What do the kept runs of a GPU say, as a page and a picture?"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.make.tables import markdown_table
from reports.make.torch_runs.gpu_grid import GridRun
from simulator.units import error_text, format_bytes, format_seconds
from simulator.validate.accuracy import error_pct

MEAN_PCT, WORST_PCT = 5.0, 10.0
"""Errors of the step time that are wanted, on average and at worst."""

ALLOCATED, RESERVED = "peak_allocated", "peak_reserved"


@dataclass(frozen=True, slots=True)
class KeptRun:
    """One run of the grid and what is kept of it.

    Attributes:
        run: The run.
        report: What ``validate torch`` wrote; empty if it did not come to that.
        reason: Why there is no report; empty if there is one.
    """

    run: GridRun
    report: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether there are numbers."""
        return bool(self.report)

    @property
    def step_s(self) -> tuple[float, float]:
        """Step time, measured and predicted [s]."""
        step = self.report["step"]
        return step["measured"], step["predicted"]

    @property
    def step_error_pct(self) -> float:
        """Signed error of the predicted step [%], positive where it is too long."""
        measured, predicted = self.step_s
        return error_pct(predicted, measured) or 0.0

    def peak_bytes(self, name: str) -> tuple[float, float] | None:
        """Peak of the fullest stage, measured and predicted [B]; None where nobody counted."""
        pairs = [
            (pair["measured"], pair["predicted"])
            for pair in self.report["memory_bytes"]
            if pair["name"] == name and pair["measured"]
        ]
        return max(pairs, default=None)

    def peak_error_pct(self, name: str) -> float | None:
        """Signed error of a predicted peak [%]."""
        pair = self.peak_bytes(name)
        return None if pair is None else error_pct(pair[1], pair[0])


def read_kept(folder: Path, run: GridRun) -> KeptRun:
    """What a folder keeps of a run."""
    report = folder / "runs" / f"{run.name}.json"
    if report.exists():
        return KeptRun(run, json.loads(report.read_text(encoding="utf-8")))
    reason = report.with_suffix(".txt")
    said = reason.read_text(encoding="utf-8").strip() if reason.exists() else "not run yet"
    return KeptRun(run, reason=said)


def page(kept: Sequence[KeptRun]) -> str:
    """The page, in Markdown."""
    measured = [run for run in kept if run.is_measured]
    lines = [
        "# Real training steps on one GPU against their predictions",
        "",
        "Made by `make gpu`: the GPU's kernels are measured (`profile.yaml`, drawn in",
        "`profile.kernels.png`), then every run of `grid.yaml` is trained with torch and predicted",
        f"on {_profiles(measured)}. No run is part of any fit. Raw measurements are in `runs/`;",
        "what `gpu_bundle.pyz` measured is in [raw.md](raw.md). Errors are",
        "of the prediction, positive where it is too large; times are medians over steps, the",
        "spread is half the distance of the quartiles. Peaks are torch.cuda.max_memory_allocated",
        "and max_memory_reserved.",
        "",
    ]
    if measured:
        lines += [_summary(measured), "", "![every run](steps.png)", "", *_table(measured), ""]
        lines += [_environment(measured), ""]
    else:
        lines += ["No run has been measured yet: `make gpu` on a machine with a GPU does it.", ""]
    left = [run for run in kept if not run.is_measured]
    if left:
        lines += ["## Runs without a measurement", ""]
        lines += [f"- {run.run.name}: {run.reason}" for run in left]
        lines += [""]
    return "\n".join(lines)


def _profiles(measured: Sequence[KeptRun]) -> str:
    jobs = (run.report.get("job") for run in measured)
    files = {Path(job["cluster"]["profile"]) for job in jobs if job}
    here = Path.cwd()
    names = {str(file.relative_to(here) if file.is_relative_to(here) else file) for file in files}
    return ", ".join(f"`{name}`" for name in sorted(names)) or "that profile"


def draw_page(kept: Sequence[KeptRun], path: Path) -> None:
    """Write the picture of all measured runs; none is drawn where there are none."""
    from reports.make.torch_runs.run_errors import RowErrors, draw_run_errors

    rows = [RowErrors(run.run.name, _errors_pct(run)) for run in kept if run.is_measured]
    if rows:
        title = "Training steps on one GPU against their predictions"
        draw_run_errors(rows, path, title, (MEAN_PCT, WORST_PCT))


def _errors_pct(run: KeptRun) -> dict[str, float]:
    peaks = {
        "peak allocated memory": run.peak_error_pct(ALLOCATED),
        "peak reserved memory": run.peak_error_pct(RESERVED),
    }
    known = {name: error for name, error in peaks.items() if error is not None}
    return {"step time": run.step_error_pct, **known}


def _summary(runs: Sequence[KeptRun]) -> str:
    sizes = [abs(run.step_error_pct) for run in runs]
    mean, worst = statistics.fmean(sizes), max(sizes)
    wanted = "as wanted" if mean <= MEAN_PCT and worst <= WORST_PCT else "above what is wanted"
    text = (
        f"{len(runs)} runs. Step time: mean error {mean:.1f} %, worst {worst:.1f} %, {wanted} "
        f"({MEAN_PCT:g} % and {WORST_PCT:g} %)."
    )
    for name, words in ((ALLOCATED, "allocated"), (RESERVED, "reserved")):
        errors = [abs(e) for run in runs if (e := run.peak_error_pct(name)) is not None]
        if errors:
            mean, worst = statistics.fmean(errors), max(errors)
            text += f" Peak {words} memory: mean error {mean:.1f} %, worst {worst:.1f} %."
    return text


def _table(runs: Sequence[KeptRun]) -> list[str]:
    names = ("run", "measured", "spread", "predicted", "error", "allocated", "error", "reserved",
             "error")  # fmt: skip
    rows = []
    for run in runs:
        measured, predicted = run.step_s
        cells = [
            f"{run.run.name}: {run.report['title']}",
            format_seconds(measured),
            f"{100 * run.report['spread']:.1f} %",
            format_seconds(predicted),
            error_text(run.step_error_pct),
        ]
        for name in (ALLOCATED, RESERVED):
            pair = run.peak_bytes(name)
            cells += ["" if pair is None else format_bytes(pair[0])]
            cells += [error_text(run.peak_error_pct(name))]
        rows.append(cells)
    return markdown_table(names, rows)


def _environment(runs: Sequence[KeptRun]) -> str:
    facts = [run.report["environment"] for run in runs]
    names = ("device", "torch", "python", "kernel", "date")
    stated = [", ".join(dict.fromkeys(str(each.get(n, "")) for each in facts)) for n in names]
    return "{}; torch {}, Python {}, Linux {}; {}.".format(*stated)
