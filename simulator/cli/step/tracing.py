"""clustersim trace: what does a real run's profile say of the prediction?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import note, number_column, print_json, print_table, text_column, working
from simulator.cli.options import AsJson, Changes, JobFile, read_job, written_as
from simulator.plots.formats import PICTURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.plots.measured.measured_timeline import Box
    from simulator.validate.measured_trace.account import Span
    from simulator.validate.measured_trace.trace_comparison import Gap, TraceComparison

_PIXELS = 2000
"""About the width of a picture."""


def build_group() -> typer.Typer:
    """The ``trace`` commands."""
    group = typer.Typer(name="trace", no_args_is_help=True, help="Profiles of real runs.")
    group.callback()(_trace)
    group.command("compare")(compare)
    return group


def _trace() -> None:
    """Profiles of real runs."""


def compare(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE.json.gz",
            help="One rank's profile: what export_chrome_trace of torch.profiler writes.",
        ),
    ],
    job_file: JobFile,
    changes: Changes = None,
    *,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="NUMBER",
            help="Which ProfilerStep; by default one of median length that another follows.",
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="NUMBER", help="Which rank the trace is of, where it does not say."
        ),
    ] = None,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=written_as(*PICTURES),
            help="Draw both timelines, one below the other (.png, .svg, .pdf).",
        ),
    ] = None,
) -> None:
    """Say where a profiled step and its prediction differ.

    Differences are told by phase and kind.

    Every moment is booked once: under the kernel that computes; else as communication that is
    not hidden; else as idle. Kernels of NCCL spin while they wait for other ranks, so such waits
    are communication in a profile, and idle time in a prediction. A profiler costs time itself,
    on a CPU much of it.

    On a GPU record ProfilerActivity.CPU, too: it tells backward from forward. Ranges named
    forward, backward and optimizer (torch.profiler.record_function) tell it better.

    Example:  clustersim trace compare rank0.json.gz job.yaml --plot gaps.png

    Example:  clustersim validate torch job.yaml --trace rank0.json.gz
    """
    from simulator.validate.measured_trace.trace_comparison import compare_trace

    job = read_job(job_file, changes)
    with working(f"reading {trace}"):
        found = compare_trace(trace, job, step=step, rank=rank)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_comparison(found)
    for sentence in found.notes:
        note(sentence)
    if plot is not None:
        from simulator.plots.measured.measured_timeline import draw_measured_timeline

        step_s = (found.result.step_time_s, found.step.step_s)
        boxes = [_boxes(spans, step_s) for spans in (found.predicted, found.step.spans)]
        predicted, measured = ({found.stage: each} for each in boxes)
        draw_measured_timeline(job.title, predicted, measured, step_s, plot, is_median=False)
        note(f"wrote {plot}")


def _boxes(spans: Sequence[Span], step_s: tuple[float, float]) -> list[Box]:
    """A timeline as it is drawn; what no pixel could show is merged."""
    from simulator.plots.measured.measured_timeline import Box
    from simulator.program.ir import Kind
    from simulator.validate.measured_trace.account import merged

    return [
        Box(Kind(span.phase) if span.computes else Kind(str(span.kind)), not span.computes,
            span.start_s, span.end_s)
        for span in merged((s for s in spans if s.kind is not None), max(step_s) / _PIXELS)
    ]  # fmt: skip


def _print_comparison(found: TraceComparison) -> None:
    columns = [
        text_column(""),
        *(number_column(name) for name in ("measured", "predicted", "gap", "of the step")),
    ]
    step_s = found.step.step_s
    where = f" on {found.step.device}" if found.step.device else ""
    title = f"{found.job.title}: rank {found.rank}{where}"
    print_table(title, columns, [_row(gap, step_s) for gap in found.gaps])
    if found.communication:
        rows = [_row(gap, step_s) for gap in found.communication]
        print_table("communication, hidden or not", columns, rows)


def _row(gap: Gap, step_s: float) -> tuple[str, ...]:
    from simulator.units import format_seconds, signed_percent, signed_seconds

    return (
        _name(gap),
        format_seconds(gap.measured_s),
        format_seconds(gap.predicted_s),
        signed_seconds(gap.gap_s),
        signed_percent(gap.gap_s / step_s),
    )


def _name(gap: Gap) -> str:
    if not gap.kind:
        return gap.phase or "step"
    return f"  {gap.kind}" if gap.phase else gap.kind
