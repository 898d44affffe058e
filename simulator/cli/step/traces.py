"""clustersim trace and replay: what does the trace of a real step say?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.completion import complete_profile
from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
    working,
)
from simulator.cli.options import (
    AsJson,
    BothTimelines,
    Changes,
    JobFile,
    file_to_write,
    note_doubts_on,
    option,
    read_job,
)
from simulator.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.chakra.to_program import TracedStep
    from simulator.described.job import Job
    from simulator.plots.measured_timeline import Box
    from simulator.validate.measured_trace.account import Span
    from simulator.validate.measured_trace.trace_comparison import Gap, TraceComparison

_PIXELS = 2000
"""About the width of a picture."""


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACES",
            help="A folder of Chakra traces NAME.RANK.et (or .json), or such files.",
        ),
    ],
    profile: Annotated[
        str,
        option(
            "Hardware profile with the links to use.", "NAME|FILE", autocompletion=complete_profile
        ),
    ] = "h100-sxm-80gb",
    *,
    contention: Annotated[
        bool, option("Let communications share links and slow computation.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Replay Chakra execution traces on a cluster's links.

    Computation takes as long as recorded; communication is predicted for the cluster's links.

    Example:  clustersim replay traces/ --profile a100-sxm-80gb
    """
    from simulator.chakra.to_program import replay_traces
    from simulator.chakra.trace_files import read_traces
    from simulator.described.load import load_profile

    links = load_profile(profile)
    note_doubts_on(links)
    with working("reading and replaying traces"):
        read = read_traces(traces)
        step = replay_traces(read, links, contention=contention)
    document = _document(step, links.name)
    if as_json:
        print_json(document)
        return
    rows = [("step time", format_seconds(step.step_time_s))]
    if step.recorded_step_s is not None:
        rows.append(("as recorded", format_seconds(step.recorded_step_s)))
        if step.recorded_step_s:
            ratio = step.step_time_s / step.recorded_step_s
            rows.append(("of the recorded step", f"{ratio:.3f}"))
    rows.append(("computation of the busiest rank", format_seconds(step.computation_s)))
    rows += [
        (f"its communication: {kind}", format_seconds(seconds))
        for kind, seconds in step.communication_s.items()
    ]
    title = f"{len(read)} traced ranks on the links of {links.name}"
    print_table(title, text_columns("") + number_columns(""), rows)
    note("ranks without a file are assumed to behave like those with one")


def _document(step: TracedStep, profile: str) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "profile": profile,
        "ranks": [c.first_rank for c in step.timeline.program.classes],
        "operations": len(step.timeline.program.operations),
        "step_time_s": step.step_time_s,
        "recorded_step_time_s": step.recorded_step_s,
        "computation_s": step.computation_s,
        "communication_s": dict(step.communication_s),
    }


def compare(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE.json.gz",
            help="One rank's profile: what export_chrome_trace of torch.profiler writes, or "
            "nsys export --type sqlite.",
        ),
    ],
    job_file: JobFile,
    changes: Changes = None,
    *,
    step: Annotated[
        int | None,
        option(
            "Number of the ProfilerStep; by default one of median length that another follows.",
            "NUMBER",
            min=0,
        ),
    ] = None,
    rank: Annotated[
        int | None, option("Rank of the trace, if the trace does not state it.", "NUMBER", min=0)
    ] = None,
    as_json: AsJson = False,
    plot: BothTimelines = None,
    calibrate: Annotated[
        Path | None,
        file_to_write(
            "Also fit the job's profile to products and attention of the trace, which must have "
            "been recorded with record_shapes=True, and write it.",
            ".yaml",
        ),
    ] = None,
) -> None:
    """Show where a profiled step and its prediction differ.

    Differences are listed by phase and kind.

    Every moment is booked once: under the kernel that computes; else as communication that is
    not hidden; else as a wait for the host or its data loader; else as idle. Kernels of NCCL
    spin while they wait for other ranks, so such waits are communication in a profile, and idle
    time in a prediction. A profiler costs time itself, on a CPU much of it.

    On a GPU, record ProfilerActivity.CPU as well: it separates backward from forward. Ranges named
    forward, backward and optimizer (torch.profiler.record_function) separate them better.

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
        from simulator.plots.measured_timeline import draw_measured_timeline

        step_s = (found.result.step_time_s, found.step.step_s)
        boxes = [_boxes(spans, step_s) for spans in (found.predicted, found.step.spans)]
        predicted, measured = ({found.stage: each} for each in boxes)
        draw_measured_timeline(job.title, predicted, measured, step_s, plot, is_median=False)
        note(f"wrote {plot}")
    if calibrate is not None:
        _calibrate(trace, job, calibrate)


def _calibrate(trace: Path, job: Job, out: Path) -> None:
    from simulator.calibrate.gpu.traced_kernels import calibrate_from_trace
    from simulator.files import write_whole

    with working(f"fitting to the kernels of {trace}"):
        found = calibrate_from_trace(trace, job.cluster.profile.name, out.stem)
    for key, before in found.before.families.items():
        after = found.after.families[key]
        if before.mape is not None and after.mape is not None:
            errors = f"{before.mape:.1f} % before, {after.mape:.1f} % now"
            note(f"{key[-1]}: {after.n} kernels, mean error {errors}")
    for sentence in found.notes:
        note(sentence)
    write_whole(out, found.text)
    note(f"wrote {out}")


def _boxes(spans: Sequence[Span], step_s: tuple[float, float]) -> list[Box]:
    """A timeline as it is drawn; what no pixel could show is merged."""
    from simulator.plots.measured_timeline import Box
    from simulator.program.ir import Kind
    from simulator.validate.measured_trace.account import merged

    return [
        Box(Kind(span.phase) if span.computes else Kind(str(span.kind)), not span.computes,
            span.start_s, span.end_s)
        for span in merged(spans, max(step_s) / _PIXELS)
    ]  # fmt: skip


def _print_comparison(found: TraceComparison) -> None:
    columns = text_columns("") + number_columns("measured", "predicted", "gap", "of the step")
    step_s = found.step.step_s
    where = f" on {found.step.device}" if found.step.device else ""
    title = f"{found.job.title}: rank {found.rank}{where}"
    print_table(title, columns, [_row(gap, step_s) for gap in found.gaps])
    if found.communication:
        rows = [_row(gap, step_s) for gap in found.communication]
        print_table("communication, hidden or not", columns, rows)
    typer.echo(found.verdict)


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
