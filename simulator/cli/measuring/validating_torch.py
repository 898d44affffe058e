"""clustersim validate torch: how far is a prediction from a real run on this machine?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from simulator.cli.completion import complete_profile
from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_table,
    progress,
    text_columns,
)
from simulator.cli.options import (
    TRACES,
    AsJson,
    BothTimelines,
    Changes,
    JobFile,
    file_to_write,
    note_doubts,
    option,
    parse_assignments,
    quantity,
    refuse_other_files,
)
from simulator.errors import InputError
from simulator.extras import require
from simulator.files import write_whole
from simulator.units import percent

if TYPE_CHECKING:
    from simulator.plots.measured_timeline import Rows
    from simulator.validate.torch_run.run_comparison import Pair, TorchReport

Backend = Literal["auto", "nccl", "gloo", "fake"]


def torch(
    job: JobFile,
    changes: Changes = None,
    *,
    profile: Annotated[
        str | None,
        option(
            "The system that runs the job: a shipped name or a .yaml file; by default the job's.",
            "NAME|FILE",
            autocompletion=complete_profile,
        ),
    ] = None,
    steps: Annotated[
        int, option("Number of steps to time, after three warm-up steps.", "N", min=1)
    ] = 10,
    backend: Annotated[
        Backend,
        option(
            "What carries messages: nccl between GPUs, gloo between CPUs, "
            "fake for one rank of many alone."
        ),
    ] = "auto",
    rank: Annotated[int, option("The rank to be with --backend fake.", "N", min=0)] = 0,
    shaped: Annotated[
        str | None,
        option(
            'Join ranks on this machine by links of that rate, such as "200 Mbit/s" (Linux, root).',
            "RATE",
        ),
    ] = None,
    sleep: Annotated[
        str | None,
        option(
            'Let every layer sleep that long in forward, such as "20 ms", and twice as '
            "long in backward, instead of computing (or besides, where layers exchange "
            "activations): overlap and bubbles without a GPU.",
            "TIME",
        ),
    ] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, option("Also write the report.", "FILE.json", name="--out")] = None,
    plot: BothTimelines = None,
    trace: Annotated[
        Path | None,
        file_to_write(
            "Keep what torch's profiler saw of rank 0, for clustersim trace compare.",
            *TRACES,
            metavar="FILE.json.gz",
        ),
    ] = None,
) -> None:
    """Train a job with torch on real hardware, and compare.

    It starts one rank per GPU of the job; under torchrun, it is one of the ranks. It runs DDP,
    FSDP2, tensor, sequence, context and expert parallelism, and torch's pipelines, on random
    data. With ``plan.precision: fp8`` the linear layers of blocks run in 8 bits, one
    scale for each operand.

    Example:  clustersim validate torch job.yaml --profile ours.yaml --plot timeline.png

    Example:  clustersim validate torch job.yaml --shaped "20 Mbit/s" --sleep "20 ms"
    """
    from simulator.api import load_job

    require("torch", "runs the job")
    from simulator.validate.torch_run.train_and_compare import validate_torch

    refuse_other_files(job)
    assigned = parse_assignments(changes or ())
    if profile is not None:
        assigned["cluster.profile"] = _found(profile)
    loaded = load_job(job, assigned)
    note_doubts(loaded)
    rate = None if shaped is None else quantity(shaped, "--shaped", "bytes_per_s")
    if rank >= loaded.cluster.gpus:
        rule = f"must be below the job's {loaded.cluster.gpus} ranks"
        raise InputError.single("--rank", rule, rank)
    with progress("steps", steps) as count:
        report = validate_torch(
            loaded,
            backend=backend,
            steps=steps,
            rank=rank,
            link_bytes_per_s=rate,
            layer_sleep_s=None if sleep is None else quantity(sleep, "--sleep", "s"),
            trace=None if trace is None else _trace_file(trace),
            on_step=count,
        )
    if report is None:
        return
    _show(report, as_json=as_json, out=out, plot=plot)


def _trace_file(path: Path) -> Path:
    """Where rank 0 may write, wherever it runs."""
    if not path.parent.is_dir():
        raise InputError.single("--trace", "is in a folder that does not exist", str(path))
    return path.resolve()


def _found(profile: str) -> str:
    """A shipped name, or a file as a path that holds from anywhere."""
    path = Path(profile)
    return str(path.resolve()) if path.suffix in {".yaml", ".yml"} else profile


def _show(report: TorchReport, *, as_json: bool, out: Path | None, plot: Path | None) -> None:
    if out is not None:
        # Before anything is shown: what reads along may stop reading.
        write_whole(out, json.dumps(report.to_dict(), indent=1) + "\n")
        note(f"wrote {out}")
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    for sentence in report.notes:
        note(sentence)
    if plot is not None:
        from simulator.plots.measured_timeline import draw_measured_timeline, predicted_rows

        predicted = predicted_rows(report.predicted.result)
        step_s = (report.predicted.step_s, report.measured.median_s)
        draw_measured_timeline(report.job.title, predicted, _measured_rows(report), step_s, plot)
        note(f"wrote {plot}")


def _measured_rows(report: TorchReport) -> Rows:
    """What the profiler saw of the first rank of every stage."""
    from simulator.plots.measured_timeline import Box
    from simulator.program.ir import Kind

    rows: dict[int, list[Box]] = {}
    for rank in report.measured.ranks:
        if rank.stage not in rows:
            rows[rank.stage] = [
                Box(Kind(span.kind), span.is_communication, span.start_s, span.end_s)
                for span in rank.spans
            ]
    return rows


def _print_report(report: TorchReport) -> None:
    from simulator.units import format_quantity, format_seconds

    def seconds(value: float | None) -> str:
        return "not measured" if value is None else format_seconds(value)

    def num_bytes(value: float | None) -> str:
        return "not measured" if value is None else format_quantity(float(f"{value:.4g}"), "bytes")

    measured = report.measured
    columns = text_columns("") + number_columns("measured", "predicted", "error")
    step = report.step
    rows = [("step", seconds(step.measured), seconds(step.predicted), _error(step))]
    rows += [
        (_name(p), seconds(p.measured), seconds(p.predicted), _error(p)) for p in report.phases
    ]
    facts = (measured.environment.get(name) for name in ("device", "backend", "link"))
    where = ", ".join(fact for fact in facts if fact)
    count = len(measured.step_s)
    title = (
        f"{report.job.title}: time on {where} (median of {count} steps, "
        f"half the interquartile range {percent(measured.spread)})"
    )
    print_table(title, columns, rows)
    memory: Sequence[Pair] = report.memory
    rows = [(_name(p), num_bytes(p.measured), num_bytes(p.predicted), _error(p)) for p in memory]
    print_table("memory at the peak", columns, rows)


def _name(pair: Pair) -> str:
    name = pair.name.replace("_", " ")
    return name if pair.stage < 0 else f"stage {pair.stage}: {name}"


def _error(pair: Pair) -> str:
    return "" if pair.error_pct is None else f"{pair.error_pct:+.1f} %"
