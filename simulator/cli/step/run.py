"""clustersim run: what does one training step cost, and where does its time go?"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import (
    counting,
    note,
    number_columns,
    print_json,
    print_spreads,
    print_table,
    text_columns,
)
from simulator.cli.options import (
    PAGES,
    TRACES,
    AsJson,
    AskedRisk,
    Changes,
    Gpus,
    JobOrCapture,
    ProfileName,
    Yes,
    file_to_write,
    folder_of_pictures,
    option,
    read_job,
    whole_numbers,
)
from simulator.cli.step.capturing import (
    cluster_changes,
    end_captured,
    print_captured,
    print_dearest,
    read_captured,
)
from simulator.cli.step.memory import end_if_riskier, note_misfit, print_peaks
from simulator.errors import InputError
from simulator.results.fit_probability import fit_text
from simulator.units import format_bytes, format_seconds, format_seconds_range, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simulator.api import Result
    from simulator.capture.result import CaptureResult
    from simulator.planning.drawn_lengths import DrawnSteps
    from simulator.results.step import StepResult

_MOSTLY_COUNTED = 0.75
"""Below this share of MFU, what a causal mask leaves of it is shown as well."""
_MOST_GROUPS = 20


def run(
    job_file: JobOrCapture,
    *,
    changes: Changes = None,
    profile: ProfileName = None,
    gpus: Gpus = None,
    as_json: AsJson = False,
    plot: Annotated[Path | None, folder_of_pictures("Draw the step into this folder.")] = None,
    trace: Annotated[
        Path | None,
        file_to_write(
            "Write a trace for Perfetto or chrome://tracing.", *TRACES, metavar="FILE.json.gz"
        ),
    ] = None,
    trace_ranks: Annotated[
        str | None, option("Ranks whose classes the trace shows; by default all.", "RANK,RANK,…")
    ] = None,
    trace_events: Annotated[
        int,
        option(
            "Largest number of events in the trace; beyond it, whole classes are left out.",
            "N",
            min=1,
        ),
    ] = 2_000_000,
    trace_kernels: Annotated[
        bool, option("Also show the kernels of each operation.", name="--trace-kernels")
    ] = False,
    html: Annotated[
        Path | None,
        file_to_write(
            "Write a self-contained HTML page with verdict, timeline and what-ifs.", *PAGES
        ),
    ] = None,
    risk: AskedRisk = None,
    unfolded: Annotated[
        bool, option("Simulate every GPU, not one of each class; slow.", name="--unfolded")
    ] = False,
    yes: Yes = False,
) -> None:
    """Simulate one training step.

    Exits with 1 if the job does not fit, or if --risk is exceeded.

    Example:  clustersim run job.yaml --set plan.tp=4 --plot pictures --trace trace.json.gz

    Example:  clustersim run job.yaml --html report.html

    Example:  clustersim run job.yaml --risk 0.05

    Example:  clustersim run job.yaml --set 'perturbations=[{gpu: 5, slowdown: 0.2}]'

    Example:  clustersim run job.yaml --set
    'cluster={pools: [{profile: a100-sxm-80gb, gpus: 64}, {profile: h100-sxm-80gb, gpus: 64}]}'

    Example:  clustersim run job.yaml --set plan.stack=deepspeed --set plan.zero=2
    --set plan.offload.optimizer=cpu
    """
    from simulator.api import simulate

    captured = read_captured(job_file, changes, profile, gpus)
    if captured is not None:
        _refuse_for_captures({"--unfolded": unfolded, "--trace-ranks": trace_ranks})
        _show_captured(captured, plot, trace, html, kernels=trace_kernels, as_json=as_json)
        end_if_riskier(captured, risk)
        return
    changes = cluster_changes(changes, profile, gpus)
    ranks = None if trace_ranks is None else whole_numbers(trace_ranks, "--trace-ranks", 0)
    result = simulate(read_job(job_file, changes, unfolded=unfolded, yes=yes), unfolded=unfolded)
    drawn = _drawn(result)
    if as_json:
        print_json({**result.to_dict(), **({"drawn_steps": asdict(drawn)} if drawn else {})})
    else:
        _print_result(result)
        if drawn:
            _print_drawn(drawn)
    for file in _write_files(result, plot, html):
        note(f"wrote {file}")
    if trace is not None:
        result.write_trace(trace, ranks=ranks, max_events=trace_events, kernels=trace_kernels)
        note(f"wrote {trace}")
    if not result.fits:
        note_misfit(result, yes=yes)
        raise typer.Exit(1)
    end_if_riskier(result, risk)


def _refuse_for_captures(options: Mapping[str, object]) -> None:
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise InputError.single(given, "is for jobs, and this is a capture", hint="remove it")


def _drawn(result: Result) -> DrawnSteps | None:
    """Steps with lengths that are drawn, where the job says how; the step itself is the longest."""
    if result.job.batch.lengths is None:
        return None
    from simulator.planning.drawn_lengths import drawn_steps

    return drawn_steps(result.job)


def _print_drawn(drawn: DrawnSteps) -> None:
    title = f"{drawn.steps} steps with sampled lengths"
    print_spreads(title, drawn.step_time_s, drawn.peak_device_bytes)
    typer.echo(f"{percent(drawn.filled_share)} of the tokens belong to a sequence, not to padding")


def _show_captured(
    result: CaptureResult,
    plot: Path | None,
    trace: Path | None,
    html: Path | None,
    *,
    kernels: bool,
    as_json: bool,
) -> None:
    """Show a captured step and draw it, as a job's."""
    if as_json:
        print_json(result.to_dict())
    else:
        print_captured(result)
        _print_breakdown(result)
        _print_exposed_communication(result)
        print_dearest(result)
        print_peaks(result)
    drawn = [] if plot is None else result.plot_all(plot)
    written = [] if trace is None else [result.write_trace(trace, kernels=kernels)]
    pages = [] if html is None else [result.write_html(html)]
    for file in (*drawn, *written, *pages):
        note(f"wrote {file}")
    end_captured(result)


def _write_files(result: Result, plot: Path | None, html: Path | None) -> Iterator[Path]:
    if plot is not None:
        yield from result.plot_all(plot)
    if html is not None:
        with counting("what-ifs") as count:
            yield result.write_html(html, on_trial=count)


def _print_result(result: Result) -> None:
    _print_headline(result)
    _print_asynchrony(result)
    _print_class_groups(result)
    _print_expert_load(result)
    _print_breakdown(result)
    _print_remarks(result)
    _print_exposed_communication(result)
    print_peaks(result)
    _print_sources(result)


def _print_headline(result: Result) -> None:
    from simulator.results.views.plain_data import setup_text

    rows = [
        ("step time", format_seconds(result.step_time_s)),
        *_error_band(result),
        *_without_perturbations(result),
        ("tokens/s per GPU", f"{result.tokens_per_s_per_gpu:,.1f}"),
        ("model TFLOP/s per GPU", f"{result.model_tflops_per_gpu:.1f}"),
        ("MFU", percent(result.mfu)),
        *_causal_use(result),
        ("HFU", percent(result.hfu)),
        ("pipeline bubble", percent(result.bubble_fraction)),
        ("memory", fit_text(result.fits_probability)),
    ]
    title = f"{result.title}\n{setup_text(result.job)}"
    print_table(title, text_columns("") + number_columns(""), rows)
    if result.mfu > 1:
        note("MFU counts six operations per parameter and token, those of frozen weights too")


def _causal_use(result: Result) -> Iterator[tuple[str, str]]:
    """Of long sequences: MFU counts scores that a causal mask skips, and so may near 100 %."""
    if result.mfu_causal is not None and result.mfu_causal < _MOSTLY_COUNTED * result.mfu:
        yield "MFU without masked attention", percent(result.mfu_causal)


def _error_band(result: Result) -> Iterator[tuple[str, str]]:
    from simulator.results.unseen_runs import unseen_runs_of

    if result.step_time_band_s is not None:
        yield "80 % prediction interval", format_seconds_range(*result.step_time_band_s)
        seen = unseen_runs_of(result.job)
        yield f"unseen runs of {seen.framework}", seen.words


def _print_asynchrony(result: Result) -> None:
    """What training that is not synchronous costs in addition to time; nothing for any other."""
    from simulator.program.ir import Owner
    from simulator.results.views.rank_classes import fullest_of_each_stage

    found = result.asynchrony
    if found is None:
        return
    stages = fullest_of_each_stage(result.memory)
    stashed = [stage.by_owner.get(Owner.STASHED_WEIGHTS, 0.0) for stage in stages]
    per_stage = zip(found.weight_versions, found.staleness_updates, stashed, strict=True)
    rows = [
        (str(stage), str(versions), str(updates), format_bytes(num_bytes))
        for stage, (versions, updates, num_bytes) in enumerate(per_stage)
    ]
    heads = ("stage", "weight versions", "staleness (updates)", "stashed weights")
    print_table(found.statement, number_columns(*heads), rows)
    each = found.microbatches_per_update
    typer.echo(f"weights change after every {f'{each} microbatches' if each > 1 else 'microbatch'}")


def _without_perturbations(result: Result) -> Iterator[tuple[str, str]]:
    cost = result.perturbation_cost
    if cost is not None:
        step = format_seconds(cost.step_time_without_s)
        lost = percent(cost.lost_share)
        why = ": nothing waits for them" if lost == percent(0.0) else ""
        yield "without perturbations", f"{step} (they cost {lost}{why})"
        if why:
            yield from _slack(result)


def _slack(result: Result) -> Iterator[tuple[str, str]]:
    """How long the stages of slow GPUs idle, which is why nothing waits for these."""
    from simulator.results.views.rank_classes import bubble_where_perturbed

    stages, idle = bubble_where_perturbed(result.job, result)
    if idle:
        word = "stage" if len(stages) == 1 else "stages"
        yield (
            f"slack of {word} {_stages_text(stages)}",
            f"at most {percent(idle)} of a step, its bubble",
        )


def _print_class_groups(result: Result) -> None:
    """Which GPUs are perturbed, and who waits for them."""
    from simulator.results.views.rank_classes import classes_by_cause

    found = classes_by_cause(result.timeline.program.classes)
    if not found:
        return
    rows = [
        (
            each.cause,
            _stages_text(each.stages),
            str(each.classes),
            f"{each.ranks:,}",
            str(each.first_rank),
        )
        for each in found[:_MOST_GROUPS]
    ]
    left = found[_MOST_GROUPS:]
    if left:
        classes, ranks = (sum(getattr(each, n) for each in left) for n in ("classes", "ranks"))
        rows.append((f"{len(left)} more (see --json)", "", str(classes), f"{ranks:,}", ""))
    columns = text_columns("ranks that behave the same", "stages") + number_columns(
        "classes", "ranks", "first rank"
    )
    print_table(_why_ranks_differ(result), columns, rows)


def _why_ranks_differ(result: Result) -> str:
    if result.job.perturbations:
        return "perturbations"
    if result.job.cluster.pools:
        return "pools of GPUs"
    if result.job.choices.data_parallelism.is_one_process:
        return "one process for all GPUs"
    return "uneven experts"


def _stages_text(stages: Sequence[int]) -> str:
    """Ascending numbers, runs of them as first-last."""
    runs: list[list[int]] = []
    for stage in stages:
        if runs and runs[-1][-1] == stage - 1:
            runs[-1][1:] = [stage]
        else:
            runs.append([stage])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _print_expert_load(result: Result) -> None:
    from simulator.results.views.plain_data import expert_load_sentence

    sentence = expert_load_sentence(result, result.job)
    if sentence:
        typer.echo(f"{sentence}\n")


def _print_breakdown(result: StepResult) -> None:
    step_s = result.step_time_s
    rows = [
        (category.value, format_seconds(seconds), percent(seconds / step_s if step_s else 0.0))
        for category, seconds in result.breakdown_s.items()
        if seconds
    ]
    total = math.fsum(result.breakdown_s.values())
    rows.append(("step", format_seconds(total), percent(total / step_s if step_s else 0.0)))
    columns = text_columns("where the time goes") + number_columns("time", "share")
    print_table("breakdown", columns, rows)


def _print_remarks(result: Result) -> None:
    from simulator.results.views.remarks import remarks

    for sentence in remarks(result, result.job):
        typer.echo(f"{sentence}\n")


def _print_exposed_communication(result: StepResult) -> None:
    rows = [
        (category.value, format_seconds(seconds))
        for category, seconds in result.exposed_comm_s.items()
        if seconds
    ]
    columns = text_columns("kind") + number_columns("time")
    print_table("exposed communication", columns, rows or [("none", "0 s")])


def _print_sources(result: Result) -> None:
    from simulator.results.views.plain_data import source_counts

    rows = [(kind, str(count)) for kind, count in source_counts(result.job).items()]
    columns = text_columns("source") + number_columns("numbers")
    kinds = result.job.cluster.kinds
    names = " and ".join(dict.fromkeys(kind.profile.name for kind in kinds))
    print_table(f"hardware numbers of {names}", columns, rows)
    table = result.job.cluster.profile.kernels.table
    if table is not None and not result.job.cluster.pools:
        from simulator.program.price.roofline import measured_share

        share = percent(measured_share(result.job))
        typer.echo(f"{share} of the time of layers' kernels is from the products in {table.file}")
