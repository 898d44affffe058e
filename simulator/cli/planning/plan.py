"""clustersim plan: which plan has the shortest step, of all that fit?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    note,
    print_answer_table,
    print_json,
    status_line,
)
from simulator.cli.options import (
    AsJson,
    Changes,
    JobFile,
    PageFile,
    Risk,
    WrittenJob,
    file_to_write,
    note_doubts,
    option,
    parse_assignments,
    refuse_other_files,
    refuse_to_write_over,
    whole_numbers,
    write_answer_page,
    write_job,
)
from simulator.cli.planning.sweep import Dask, DaskSecurity, Workers, cluster_asked, parse_grid
from simulator.errors import InputError
from simulator.files import PICTURES
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import counted, format_seconds, percent

if TYPE_CHECKING:
    from simulator.api import PlanAnswer
    from simulator.described.job import Job
    from simulator.planning.search.search import Progress
    from simulator.planning.search.space import Axes


Vary = Annotated[
    list[str] | None,
    option(
        "Values of a field to search instead of the default ones, for example "
        "plan.schedule=1f1b,zb-h1 or plan.zero=1; may be repeated. With cluster.gpus=64,128 the "
        "plans of each number of GPUs are found.",
        "FIELD=VALUE,VALUE,…",
        name="--vary",
    ),
]


@contextlib.contextmanager
def search_status() -> Iterator[Callable[..., None]]:
    """Show where a search stands, on a terminal only.

    Yields a function of a :class:`Progress` or a text, and of what is searched for where that is
    more than one thing.
    """
    with status_line() as show:
        show("computing bounds of step time and memory for every valid plan")
        yield lambda progress, what="": show(_progress_text(progress, what))


def _progress_text(progress: Progress | str, what: str) -> str:
    if isinstance(progress, str):
        return progress
    name = f"{what}: " if what else ""
    best = "" if progress.best_s == float("inf") else f"; best {format_seconds(progress.best_s)}"
    reached = f"{counted(progress.replayed, 'plan')} replayed, {progress.simulated} simulated"
    return f"{name}{reached}{best}{_open_text(progress)}"


def _open_text(progress: Progress) -> str:
    """How many plans could still be faster, and by how much; empty where none could."""
    if progress.open is None:
        return "; computing bounds of all"
    gap = percent(progress.gap_share)
    if not progress.open or gap == percent(0.0):
        return ""
    by = f", by up to {gap}" if progress.gap_share < 1 else ""
    return f"; {progress.open} could still be faster{by}"


def read_job_to_search(path: Path, assignments: Sequence[str] | None) -> Job:
    """The job of a file; a plan that breaks a rule is no obstacle, because others are searched.

    Raises:
        InputError: The file or an assignment is wrong.
    """
    refuse_other_files(path)
    return job_to_search(path, parse_assignments(assignments or ()))


def job_to_search(path: Path, changes: Mapping[str, Any]) -> Job:
    """The same with changes by path, of a file that is known to be none of another kind."""
    from simulator.api import load_job
    from simulator.planning.search.space import searchable_job

    job = searchable_job(lambda found: load_job(path, {**changes, **found}))
    note_doubts(job)
    return job


def has_valid_plan(path: Path, assignments: Sequence[str] | None) -> bool:
    """Whether the file's own plan keeps all rules, so that it can be compared with others."""
    from simulator.api import load_job

    with contextlib.suppress(InputError):
        load_job(path, parse_assignments(assignments or ()))
        return True
    return False


def plan(
    context: typer.Context,
    job_file: JobFile,
    *,
    vary: Vary = None,
    changes: Changes = None,
    top: Annotated[int, option("Number of plans to show, fastest first.", "N", min=1)] = 10,
    risk: Risk = DEFAULT_RISK,
    within: Annotated[
        float,
        option(
            "Answer as soon as no step can be shorter by more than this share; 0 finds the "
            "fastest.",
            "SHARE",
            min=0.0,
            max=0.99,
        ),
    ] = 0.0,
    max_tp: Annotated[int | None, option("Largest tensor-parallel degree.", "N", min=1)] = None,
    global_batch: Annotated[
        str | None,
        option("Global batch sizes to search; plans are ranked by time per token.", "N,N,…"),
    ] = None,
    pareto: Annotated[
        Path | None,
        file_to_write(
            "Draw the Pareto front of step time and memory.", *PICTURES, metavar="FILE.png"
        ),
    ] = None,
    sizes: Annotated[
        str | None, option("With --pareto: numbers of GPUs to draw.", "N,N,…", name="--gpus")
    ] = None,
    why: Annotated[
        bool,
        option("Also simulate changes outside the search that would make the fastest plan faster."),
    ] = True,
    workers: Workers = None,
    dask: Dask = None,
    dask_security: DaskSecurity = None,
    write: WrittenJob = None,
    html: PageFile = None,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest plans that fit.

    The result is proven to equal that of a full simulation of all plans. A plan fits if its
    probability of running out of memory is at most --risk; the effect of a higher or lower risk
    is shown.
    The search varies tp, pp, vpp, cp, ep, ZeRO, recomputation and the microbatch; everything else
    stays as in the job.

    Exits with 1 if no plan fits.

    Example:  clustersim plan job.yaml --top 5 --vary plan.recompute=none,selective

    Example:  clustersim plan job.yaml --write best.yaml --html plan.html
    """
    from simulator import api
    from simulator.planning.search.best_plans import GPUS

    job = read_job_to_search(job_file, changes)
    refuse_to_write_over(job_file, write)
    if sizes and pareto is None:
        raise InputError.single("--gpus", "is for --pareto", sizes, "add --pareto FILE.png")
    axes = _axes(job, vary, max_tp)
    if pareto is not None and GPUS in axes:
        rule = "draws the numbers of GPUs that --gpus names"
        raise InputError.single("--pareto", rule, hint="write --gpus in place of --vary")
    if pareto is not None and global_batch is not None:
        rule = "draws plans of a single global batch size"
        raise InputError.single("--pareto", rule, hint="set it: --set batch.global=N")
    with cluster_asked(dask, dask_security, workers) as executor, search_status() as show:
        found = api.plan(
            job,
            vary=axes,
            top=top,
            risk=risk,
            within=within,
            executor=executor,
            global_batches=whole_numbers(global_batch, "--global-batch") if global_batch else (),
            why=why,
            own=why and has_valid_plan(job_file, changes),
            workers=workers,
            on_progress=show,
            on_trial=lambda: show("simulating what would make it faster"),
        )
        if pareto is not None:
            counts = whole_numbers(sizes, "--gpus") if sizes else [job.cluster.gpus]
            _draw_pareto(job, counts, axes, risk, workers, pareto)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_choices(found)
        if found.choices:
            for line in found.explanation():
                typer.echo(line)
        note(found.pruned_text())
    write_answer_page(found, html, context)
    write_job(found.best, write, next(iter(found.choices), None))
    if not found.choices:
        note(found.nothing_fits())
        raise typer.Exit(1)


def _axes(job: Job, vary: Sequence[str] | None, max_tp: int | None) -> Axes:
    """Values by field: those of ``--vary``, and the degrees that ``--max-tp`` leaves."""
    from simulator.planning.search.best_plans import GPUS
    from simulator.planning.search.sized_jobs import with_gpus
    from simulator.planning.search.space import default_axes

    axes: dict[str, Sequence[Any]] = dict(parse_grid(vary or (), "--vary"))
    if max_tp is not None:
        jobs = [with_gpus(job, gpus) for gpus in axes.get(GPUS, ())] or [job]
        every = {tp for each in jobs for tp in default_axes(each).get("plan.tp", [1])}
        degrees = axes.get("plan.tp") or sorted(every)
        axes["plan.tp"] = [tp for tp in degrees if tp <= max_tp]
    return axes


def _draw_pareto(
    job: Job,
    gpu_counts: Sequence[int],
    axes: Axes,
    risk: float,
    workers: int | None,
    path: Path,
) -> None:
    from simulator.described.job import plan_text
    from simulator.planning.executors import worker_pool
    from simulator.planning.search.search import pareto_front
    from simulator.planning.search.sized_jobs import with_gpus
    from simulator.plots.style import save
    from simulator.plots.sweep import build_pareto_figure

    jobs = {gpus: with_gpus(job, gpus) for gpus in gpu_counts}
    with worker_pool(workers) as (executor, processes):
        settings: dict[str, Any] = {"executor": executor, "at_a_time": processes, "risk": risk}
        fronts = {gpus: pareto_front(each, vary=axes, **settings) for gpus, each in jobs.items()}
    points = {
        gpus: [
            (each.step_time_s, each.peak_device_bytes, plan_text(jobs[gpus].replace(each.changes)))
            for each in front
        ]
        for gpus, front in fronts.items()
    }
    title = f"plans of {job.model.name} on {job.cluster.profile.name}"
    save(build_pareto_figure(title, points, job.cluster.profile.device.memory_bytes), path)


def _print_choices(found: PlanAnswer) -> None:
    if found.choices:
        title = f"fastest plans of {found.job.model.name} on {found.cluster_text}"
        print_answer_table(title, found.table())
