"""How far were predictions from the real runs that are kept, as a page to read?

Run as ``python -m reports.make.torch_runs.torch_page FOLDER > PAGE.md``. The folder holds the
jobs (``jobs/``) and what ``clustersim validate torch --out`` measured of them (``runs/``); they
are predicted anew, so that the page shows the simulator as it is.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.make.tables import markdown_table
from simulator.described.load import job_from_document
from simulator.units import error_text, format_bytes, format_seconds
from simulator.validate.torch_run.predict import predict
from simulator.validate.torch_run.run_comparison import Measured, Pair, TorchReport

_LOOPBACK = "loopback"


@dataclass(frozen=True)
class KeptRun:
    """A report that was kept, with its prediction made anew.

    Attributes:
        name: Of the job's file.
        report: Both sides.
    """

    name: str
    report: TorchReport

    @property
    def link(self) -> str:
        """What joined the ranks."""
        return self.report.measured.environment.get("link", _LOOPBACK)

    @property
    def heading(self) -> str:
        """What runs like it have in common: what joins the ranks, and what layers do."""
        if self.link == _LOOPBACK:
            joined = "Ranks over the loopback device"
        else:
            joined = f"Ranks joined by links of {self.link} in network namespaces"
        sleep_s = self.report.measured.layer_sleep_s
        return joined if sleep_s is None else f"{joined}, layers that sleep"

    @property
    def peak(self) -> Pair | None:
        """Peak memory of the fullest stage; None where layers sleep, which keep nothing."""
        peaks = [pair for pair in self.report.memory if pair.name == "peak_allocated"]
        return max(peaks, key=lambda pair: pair.measured or 0.0, default=None)


def read_runs(folder: Path) -> list[KeptRun]:
    """Every kept run of a folder, by name of its file."""
    return [
        KeptRun(path.stem.rpartition("-")[0], kept_report(json.loads(text), folder))
        for path in sorted((folder / "runs").glob("*.json"))
        if (text := path.read_text(encoding="utf-8"))
    ]


def kept_report(document: Mapping[str, Any], folder: Path) -> TorchReport:
    """The report of a document that :meth:`TorchReport.to_dict` made.

    Args:
        document: What was kept.
        folder: Where the folder of the job's file is; its profile is found from there.
    """
    job = job_from_document(document["job"], source=str(folder / "jobs" / "job.yaml"))
    ranks = [{**rank, "spans": []} for rank in document["ranks"]]
    measured = Measured.from_dict({**document, "ranks": ranks})
    return TorchReport(
        job, measured, predict(job, layer_sleep_s=measured.layer_sleep_s), document["notes"]
    )


def page(runs: Sequence[KeptRun]) -> str:
    """The page, in Markdown."""
    lines = [
        "# Real torch runs against their predictions",
        "",
        "Made by `make torch-runs` from `reports/torch/runs/`; every run is repeated with",
        "`clustersim validate torch reports/torch/jobs/NAME.yaml`, over a shaped network with",
        '`--shaped "RATE"`. Errors are of the prediction, positive where it is too large. Step',
        "times are medians; the spread is half the distance of the quartiles over the median.",
        "",
    ]
    for heading in dict.fromkeys(run.heading for run in runs):
        own = [run for run in runs if run.heading == heading]
        lines += [f"## {heading}", "", *_table(own), "", _summary(own), ""]
        lines += [_environment(own), ""]
    return "\n".join(lines)


def _table(runs: Iterable[KeptRun]) -> list[str]:
    names = ("run", "measured", "spread", "predicted", "error", "forward", "backward",
             "peak memory")  # fmt: skip
    rows = []
    for run in runs:
        report, step = run.report, run.report.step
        rows += [[
            f"{run.name}: {report.job.title}{_sleep(report.measured)}",
            format_seconds(step.measured or 0.0),
            f"{100 * report.measured.spread:.1f} %",
            format_seconds(step.predicted),
            _error(step),
            _error(_largest(report.phases, "forward")),
            _error(_largest(report.phases, "backward")),
            ""
            if run.peak is None
            else f"{format_bytes(run.peak.measured or 0.0)}, {_error(run.peak)}",
        ]]  # fmt: skip
    return markdown_table(names, rows)


def _sleep(measured: Measured) -> str:
    sleep_s = measured.layer_sleep_s
    return "" if sleep_s is None else f", {format_seconds(sleep_s)} per layer"


def _largest(pairs: Sequence[Pair], name: str) -> Pair:
    """The phase of the stage that takes longest in it."""
    return max((pair for pair in pairs if pair.name == name), key=lambda p: p.measured or 0.0)


def _error(pair: Pair) -> str:
    return error_text(pair.error_pct)


def _summary(runs: Sequence[KeptRun]) -> str:
    errors = [abs(run.report.step.error_pct or 0.0) for run in runs]
    memory = [abs(run.peak.error_pct or 0.0) for run in runs if run.peak]
    step = f"Step time: {_mean_and_worst(errors)}."
    return f"{step} Peak memory: {_mean_and_worst(memory)}." if memory else step


def _mean_and_worst(errors: Sequence[float]) -> str:
    return f"mean size of the error {statistics.fmean(errors):.1f} %, at worst {max(errors):.1f} %"


def _environment(runs: Sequence[KeptRun]) -> str:
    facts = [run.report.measured.environment for run in runs]
    stated = {
        name: ", ".join(dict.fromkeys(str(each.get(name, "")) for each in facts))
        for name in ("device", "backend", "torch", "python", "kernel", "date")
    }
    loads = [float(each["load"]) for each in facts]
    return (
        f"{stated['device']}; {stated['backend']} of torch {stated['torch']}, Python "
        f"{stated['python']}, Linux {stated['kernel']}; {stated['date']}. Load of the machine "
        f"when the runs began: {min(loads):.1f} to {max(loads):.1f}."
    )


def main() -> None:
    """Print the page of a folder."""
    sys.stdout.write(page(read_runs(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
