"""clustersim plan: which plan has the shortest step, of all that fit?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    counting,
    note,
    number_columns,
    percent,
    print_json,
    print_table,
    status_line,
    text_columns,
)
from simulator.cli.options import (
    AsJson,
    Changes,
    JobFile,
    Risk,
    file_to_write,
    note_doubts,
    parse_assignments,
    whole_numbers,
)
from simulator.cli.planning.sweep import Workers, parse_grid, worker_pool
from simulator.described.job import degrees_text, options_text
from simulator.errors import InputError
from simulator.files import PICTURES
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from simulator.described.job import Job
    from simulator.planning.changes.faster import Reasons
    from simulator.planning.changes.fitting import FitSearch
    from simulator.planning.changes.trials import Trial
    from simulator.planning.search.search import PlanChoice, PlanSearch, Progress
    from simulator.planning.search.space import Axes
    from simulator.program.ir import Category


Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="FIELD=VALUE,VALUE,…",
        help="Values of a field to try in place of the default ones, for example "
        "plan.schedule=1f1b,zb-h1 or plan.zero=1; may be repeated.",
    ),
]
_OTHER_RISKS = (0.01, 0.2)
"""Risks whose price is told beside the plans of the one that is asked."""
_SMALLEST_LOSS, _SMALLEST_GAIN = 0.01, 0.001
"""Smaller shares of a step are not printed."""


@contextlib.contextmanager
def search_status() -> Iterator[Callable[..., None]]:
    """Show where a search stands, on a terminal only.

    Yields a function of a :class:`Progress`, and of what is searched for where that is more than
    one thing.
    """
    with status_line() as show:
        show("bounding the step and the memory of every valid plan")
        yield lambda progress, what="": show(_progress_text(progress, what))


def _progress_text(progress: Progress, what: str) -> str:
    name = f"{what}: " if what else ""
    best = "" if progress.best_s == float("inf") else f"; best {format_seconds(progress.best_s)}"
    return (
        f"{name}{progress.replayed} plans replayed, {progress.simulated} simulated{best}; "
        f"{progress.open} could still be faster"
    )


def read_job_to_search(path: Path, assignments: Sequence[str] | None) -> Job:
    """The job of a file; a plan that breaks a rule is no obstacle, because others are searched.

    Raises:
        InputError: The file or an assignment is wrong.
    """
    from simulator.api import load_job
    from simulator.planning.search.space import searchable_job

    given = parse_assignments(assignments or ())
    job = searchable_job(lambda changes: load_job(path, {**given, **changes}))
    note_doubts(job)
    return job


def plan(
    job_file: JobFile,
    *,
    vary: Vary = None,
    changes: Changes = None,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Plans to find, fastest first.")
    ] = 10,
    risk: Risk = DEFAULT_RISK,
    max_tp: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Largest tensor-parallel degree.")
    ] = None,
    global_batch: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…", help="Global batches to choose from; ranked by time per token."
        ),
    ] = None,
    pareto: Annotated[
        Path | None,
        file_to_write(
            "Draw plans that none beats in time and memory.", *PICTURES, metavar="FILE.png"
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--gpus", metavar="N,N,…", help="With --pareto: numbers of GPUs to draw."),
    ] = None,
    why: Annotated[
        bool, typer.Option(help="Simulate what would make the fastest plan faster still.")
    ] = True,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest plans that fit.

    They are proven to be what the full simulation of all plans would find. A plan fits where it
    runs out of memory with a probability of no more than --risk; what more or less would cost or
    gain is told.
    Varied are tp, pp, vpp, cp, ep, ZeRO, recomputation and the microbatch; everything else
    stays as the job has it.

    Example:  clustersim plan job.yaml --top 5 --vary plan.recompute=none,selective
    """
    from simulator.planning.changes.faster import reasons
    from simulator.planning.changes.fitting import nearest_fit

    job = read_job_to_search(job_file, changes)
    if sizes and pareto is None:
        raise InputError.single("--gpus", "belongs to --pareto", sizes, "add --pareto FILE.png")
    if pareto is not None and global_batch is not None:
        rule = "draws plans of one global batch"
        raise InputError.single("--pareto", rule, hint="set it: --set batch.global=N")
    with search_status() as show, worker_pool(workers) as (executor, processes):
        settings = {
            "vary": _axes(job, vary, max_tp),
            "executor": executor,
            "at_a_time": processes,
            "on_progress": show,
        }
        found = _search(job, top, global_batch, {**settings, "risk": risk})
        prices = _prices(job, risk, global_batch, settings) if why and found.choices else {}
        if pareto is not None:
            counts = whole_numbers(sizes, "--gpus") if sizes else [job.cluster.gpus]
            _draw_pareto(job, counts, {**settings, "risk": risk}, pareto)
    nearest = None
    if found.smallest is not None:
        nearest = nearest_fit(job.replace(found.smallest), risk)
    causes = None
    if why and found.choices:
        with counting("knobs") as count:
            best = job.replace(found.choices[0].changes)
            causes = reasons(best, risk=risk, on_trial=count)
    if as_json:
        print_json({"risk": risk, **_document(job, found, nearest, causes, prices)})
    else:
        _print_choices(job, found)
        _print_reasons(found, causes)
        _print_prices(job, found, prices)
        if found.choices:
            typer.echo(f"To use plan 1: {options_text(found.choices[0].changes)}")
        note(_pruned_text(found))
    if not found.choices:
        note(_nothing_fits_text(found, nearest))
        raise typer.Exit(1)


def _search(job: Job, top: int, global_batch: str | None, settings: dict[str, Any]) -> PlanSearch:
    from simulator.planning.search.search import merged_searches, search_plans

    if global_batch is None:
        return search_plans(job, top=top, **settings)
    batches = whole_numbers(global_batch, "--global-batch")
    searches = {size: search_plans(_with_batch(job, size), top=top, **settings) for size in batches}
    return merged_searches(searches, top)


def _prices(
    job: Job, asked: float, global_batch: str | None, settings: dict[str, Any]
) -> dict[float, PlanSearch]:
    """The fastest plan at other risks than the one that is asked."""
    from simulator.planning.search.search import merged_searches, search_risks

    risks = [risk for risk in _OTHER_RISKS if risk != asked]
    if global_batch is None:
        return search_risks(job, risks, **settings)
    batches = whole_numbers(global_batch, "--global-batch")
    found = {size: search_risks(_with_batch(job, size), risks, **settings) for size in batches}
    return {
        risk: merged_searches({size: each[risk] for size, each in found.items()}, 1)
        for risk in risks
    }


def _print_prices(job: Job, found: PlanSearch, prices: Mapping[float, PlanSearch]) -> None:
    """What another risk of running out of memory costs or gains."""
    for risk, search in prices.items():
        at = f"At a risk of {percent(risk, 0)}"
        if not search.choices:
            typer.echo(f"{at} no plan fits.")
            continue
        best = search.choices[0]
        gain = _tokens_per_s(job, best) / _tokens_per_s(job, found.choices[0]) - 1
        if best.changes == found.choices[0].changes:
            typer.echo(f"{at} the first one stays the fastest.")
        else:
            speed = f"{percent(abs(gain))} {'faster' if gain >= 0 else 'slower'}"
            typer.echo(f"{at} the fastest is {speed}: {options_text(best.changes)}")


def _axes(job: Job, vary: Sequence[str] | None, max_tp: int | None) -> Axes:
    """Values by field: those of ``--vary``, and the degrees that ``--max-tp`` leaves."""
    from simulator.planning.search.space import default_axes

    axes: dict[str, Sequence[Any]] = dict(parse_grid(vary or (), "--vary"))
    if max_tp is not None:
        degrees = axes.get("plan.tp") or default_axes(job).get("plan.tp", [1])
        axes["plan.tp"] = [tp for tp in degrees if tp <= max_tp]
    return axes


def _with_batch(job: Job, size: int) -> Job:
    """The job with another global batch, whether or not its own plan divides it."""
    batch = job.batch.model_copy(update={"global_batch": size})
    return job.model_copy(update={"batch": batch})


def _with_gpus(job: Job, gpus: int) -> Job:
    cluster = job.cluster.model_copy(update={"gpus": gpus})
    return job.model_copy(update={"cluster": cluster})


def _draw_pareto(job: Job, gpu_counts: Sequence[int], settings: dict[str, Any], path: Path) -> None:
    from simulator.planning.search.search import pareto_front
    from simulator.plots.style import save
    from simulator.plots.sweep import build_pareto_figure

    fronts = {gpus: pareto_front(_with_gpus(job, gpus), **settings) for gpus in gpu_counts}
    points = {
        gpus: [(each.step_time_s, each.peak_device_bytes, _short_name(each)) for each in front]
        for gpus, front in fronts.items()
    }
    title = f"plans of {job.model.name} on {job.cluster.profile.name}"
    save(build_pareto_figure(title, points, job.cluster.profile.device.memory_bytes), path)


def _short_name(choice: PlanChoice) -> str:
    degrees = {name: choice.changes.get(f"plan.{name}", 1) for name in ("tp", "pp", "cp", "ep")}
    return degrees_text(degrees, choice.dp)


def _document(
    job: Job,
    found: PlanSearch,
    nearest: FitSearch | None,
    causes: Reasons | None,
    prices: Mapping[float, PlanSearch],
) -> dict[str, Any]:
    def choices(search: PlanSearch) -> list[dict[str, Any]]:
        return [
            {**asdict(choice), "tokens_per_s_per_gpu": _tokens_per_s(job, choice)}
            for choice in search.choices
        ]

    way_out = nearest.nearest if nearest is not None else None
    return {
        "job": job.title,
        "plans": found.plans,
        "replayed": found.replayed,
        "simulated": found.simulated,
        "choices": choices(found),
        "other_risks": [
            {"risk": risk, "choices": choices(search)} for risk, search in prices.items()
        ],
        "pruned": asdict(found.pruned),
        "reasons": None
        if causes is None
        else {"knobs": [*map(_knob, causes.knobs)], "links": [*map(_knob, causes.links)]},
        "nearest": None
        if way_out is None
        else {
            "changes": {**(found.smallest or {}), **way_out.changes},
            "step_time_s": way_out.step_time_s,
            "peak_device_bytes": way_out.peak_device_bytes,
            "fits_probability": way_out.fits_probability,
        },
    }


def _knob(trial: Trial) -> dict[str, Any]:
    return {"changes": trial.changes, "gain": trial.saved_share, "fits": trial.fits}


def _tokens_per_s(job: Job, choice: PlanChoice) -> float:
    batch = choice.changes.get("batch.global", job.batch.global_batch)
    return float(batch * job.batch.seq_len / choice.step_time_s / job.cluster.gpus)


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
            f"{_tokens_per_s(job, choice):,.1f}",
            format_bytes(choice.peak_device_bytes),
            percent(choice.fits_probability),
            _losses_text(choice.breakdown_s),
        ]
        for number, choice in enumerate(found.choices, start=1)
    ]
    columns = (
        number_columns("#")
        + text_columns(*(path.partition(".")[2] for path in varied), "dp")
        + number_columns("step time", "tokens/s per GPU", "fullest GPU", "fits")
        + text_columns("lost to")
    )
    cluster = job.cluster
    title = f"fastest plans of {job.model.name} on {cluster.gpus} x {cluster.profile.name}"
    print_table(title, columns, rows)


def _losses_text(breakdown_s: Mapping[Category, float]) -> str:
    from simulator.results.difference import losses

    largest = [(name, share) for name, share in losses(breakdown_s)[:2] if share >= _SMALLEST_LOSS]
    return ", ".join(f"{name.value} {percent(share, 0)}" for name, share in largest) or "nothing"


def _print_reasons(found: PlanSearch, causes: Reasons | None) -> None:
    from simulator.results.difference import difference_s

    if len(found.choices) > 1:
        best, second = found.choices[:2]
        more_s = difference_s(second.breakdown_s, best.breakdown_s)
        largest = sorted(more_s.items(), key=lambda item: -abs(item[1]))[:3]
        parts = ", ".join(f"{name.value} {_signed(seconds)}" for name, seconds in largest)
        behind_s = second.step_time_s - best.step_time_s
        if abs(behind_s) < _SMALLEST_GAIN * best.step_time_s:
            typer.echo("Plan 2 is as fast as plan 1, within 0.1 %.")
        else:
            typer.echo(f"Plan 2 takes {_signed(behind_s)} against plan 1: {parts}")
    if causes is None:
        return
    for what, knobs in (("knob outside the search", causes.knobs), ("link", causes.links)):
        fitting = [knob for knob in knobs if knob.fits and knob.saved_share >= _SMALLEST_GAIN]
        for knob in fitting[:2]:
            typer.echo(
                f"Next {what}: {options_text(knob.changes)} saves {percent(knob.saved_share)}"
            )
    known = (*causes.knobs, *causes.links)
    if not any(knob.fits and knob.saved_share >= _SMALLEST_GAIN for knob in known):
        typer.echo("No knob outside the search, and no link of twice the rate, saves 0.1 %.")


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "-") + format_seconds(abs(seconds))


def _pruned_text(found: PlanSearch) -> str:
    pruned = found.pruned
    lines = [f"{found.plans} valid plans, {found.replayed} replayed, {found.simulated} simulated."]
    reasons = {
        "over the accepted risk of running out of memory, by their lower bound": pruned.too_large,
        "over the accepted risk of running out of memory, simulated": pruned.too_large_simulated,
        "slower, by their lower bound": pruned.slower_bound,
        "slower, replayed": pruned.slower_replay,
        "slower, simulated": pruned.slower_simulation,
    }
    lines += [f"  {reason}: {count}" for reason, count in reasons.items() if count]
    refused = ", ".join(f"{field} {count}" for field, count in pruned.refused.items())
    if refused:
        lines.append(f"Combinations that break a rule, by field: {refused}.")
    return "\n".join(lines)


def _nothing_fits_text(found: PlanSearch, nearest: FitSearch | None) -> str:
    if found.smallest is None:
        return "No combination is a valid plan."
    text = f"No plan fits. The one that needs least memory: {options_text(found.smallest)}"
    if nearest is None or nearest.nearest is None:
        return f"{text}\nNo change of it that was tried fits either."
    way_out = nearest.nearest
    return (
        f"{text}\nNearest to it that fits: {options_text({**found.smallest, **way_out.changes})}\n"
        f"With it a step takes {format_seconds(way_out.step_time_s)} "
        f"and the fullest GPU holds {format_bytes(way_out.peak_device_bytes)}."
    )
