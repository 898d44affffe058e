"""clustersim plan: which plan has the shortest step, of all that fit?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    note,
    number_column,
    print_json,
    print_table,
    status_line,
    text_column,
)
from simulator.cli.options import AsJson, Changes, JobFile, read_job
from simulator.cli.sweep import parse_grid
from simulator.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from simulator.planning.nearest_fit import FitSearch
    from simulator.planning.search import PlanSearch, Progress
    from simulator.spec.job import Job


def plan(
    job_file: JobFile,
    *,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE,VALUE,…",
            help="Values of a field to try in place of the default ones, for example "
            "plan.schedule=1f1b,zb-h1 or plan.zero=1; may be repeated.",
        ),
    ] = None,
    changes: Changes = None,
    top: Annotated[int, typer.Option(min=1, help="Plans to find, fastest first.")] = 10,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Processes that simulate; by default one per core."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest plans that fit, proven so under the full simulation of all plans.

    Varied are tp, pp, vpp, cp, ep, ZeRO, recomputation and the microbatch; everything else
    stays as the job has it.

    Example:  clustersim plan job.yaml --top 5 --vary plan.recompute=none,selective
    """
    from simulator.planning.nearest_fit import nearest_fit
    from simulator.planning.search import search_plans
    from simulator.planning.tasks import core_count

    job = read_job(job_file, changes)
    processes = workers or core_count()
    with status_line() as show, _executor(processes) as executor:
        found = search_plans(
            job,
            parse_grid(vary or (), "--vary"),
            top=top,
            executor=executor,
            at_a_time=processes,
            on_progress=lambda progress: show(_progress_text(progress)),
        )
    nearest = None
    if found.smallest is not None:
        nearest = nearest_fit(job.replace(found.smallest))
    if as_json:
        print_json(_document(job, found, nearest))
    else:
        _print_choices(job, found)
        note(_pruned_text(found))
    if not found.choices:
        note(_nothing_fits_text(found, nearest))
        raise typer.Exit(1)


@contextlib.contextmanager
def _executor(processes: int) -> Iterator[Executor | None]:
    if processes == 1:
        yield None
        return
    with ProcessPoolExecutor(processes) as executor:
        yield executor


def _progress_text(progress: Progress) -> str:
    best = "" if progress.best_s == float("inf") else f"; best {format_seconds(progress.best_s)}"
    return (
        f"{progress.replayed} plans replayed, {progress.simulated} simulated{best}; "
        f"{progress.open} could still be faster"
    )


def _document(job: Job, found: PlanSearch, nearest: FitSearch | None) -> dict[str, Any]:
    choices = [
        {**asdict(choice), "tokens_per_s_per_gpu": _tokens_per_s(job, choice.step_time_s)}
        for choice in found.choices
    ]
    way_out = nearest.nearest if nearest is not None else None
    return {
        "job": job.title,
        "plans": found.plans,
        "replayed": found.replayed,
        "simulated": found.simulated,
        "choices": choices,
        "pruned": asdict(found.pruned),
        "nearest": None
        if way_out is None
        else {**asdict(way_out), "changes": {**(found.smallest or {}), **way_out.changes}},
    }


def _tokens_per_s(job: Job, step_time_s: float) -> float:
    return job.batch.tokens / step_time_s / job.cluster.gpus


def _print_choices(job: Job, found: PlanSearch) -> None:
    if not found.choices:
        return
    varied = list(found.choices[0].changes)
    rows = [
        [
            str(number),
            *(str(choice.changes[path]) for path in varied),
            str(choice.dp),
            format_seconds(choice.step_time_s),
            f"{_tokens_per_s(job, choice.step_time_s):,.1f}",
            format_bytes(choice.peak_device_bytes),
        ]
        for number, choice in enumerate(found.choices, start=1)
    ]
    columns = [
        number_column("#"),
        *(text_column(path.partition(".")[2]) for path in varied),
        text_column("dp"),
        number_column("step time"),
        number_column("tokens/s per GPU"),
        number_column("fullest GPU"),
    ]
    cluster = job.cluster
    title = f"fastest plans of {job.model.name} on {cluster.gpus} x {cluster.profile.name}"
    print_table(title, columns, rows)
    best = found.choices[0].changes
    typer.echo(f"The first one: {_options(best)}")


def _pruned_text(found: PlanSearch) -> str:
    pruned = found.pruned
    lines = [f"{found.plans} valid plans, {found.replayed} replayed, {found.simulated} simulated."]
    reasons = {
        "need more memory than there is, by their lower bound": pruned.too_large,
        "need more memory than there is, simulated": pruned.too_large_simulated,
        "are slower by their lower bound": pruned.slower_bound,
        "are slower when replayed": pruned.slower_replay,
        "are slower when simulated": pruned.slower_simulation,
    }
    lines += [f"  {count} {reason}" for reason, count in reasons.items() if count]
    refused = ", ".join(f"{field} {count}" for field, count in pruned.refused.items())
    if refused:
        lines.append(f"Combinations that break a rule, by its field: {refused}.")
    return "\n".join(lines)


def _nothing_fits_text(found: PlanSearch, nearest: FitSearch | None) -> str:
    if found.smallest is None:
        return "No combination is a valid plan."
    text = f"No plan fits. The one that needs least memory: {_options(found.smallest)}"
    if nearest is None or nearest.nearest is None:
        return f"{text}\nNo change of it that was tried fits either."
    way_out = nearest.nearest
    return (
        f"{text}\nNearest to it that fits: {_options({**found.smallest, **way_out.changes})}\n"
        f"With it a step takes about {format_seconds(way_out.step_time_s)} "
        f"and the fullest GPU holds {format_bytes(way_out.peak_device_bytes)}."
    )


def _options(changes: Mapping[str, Any]) -> str:
    return " ".join(f"--set {path}={value}" for path, value in changes.items())
