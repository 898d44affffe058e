"""clustersim advise: which parallel strategy suits this model on this cluster?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from simulator.cli.console import (
    need_one_that_fits,
    number_column,
    print_json,
    print_table,
    text_column,
)
from simulator.cli.options import AsJson, Changes, JobFile
from simulator.cli.planning.searching import (
    Headroom,
    Vary,
    note_tightness,
    read_job_to_search,
    search_status,
)
from simulator.cli.planning.sweep import parse_grid
from simulator.cli.planning.workers import Workers, worker_pool
from simulator.described.plan_text import options_text
from simulator.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from simulator.planning.parallelism_kinds import FamilyResult


def advise(
    job_file: JobFile,
    *,
    vary: Vary = None,
    changes: Changes = None,
    headroom: Headroom = 0.0,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Compare DDP, ZeRO, TP, PP and combinations, each at its best.

    The plans are those that clustersim plan searches, so the best strategy's plan is the best
    plan. Fewer of them are quicker to search: --vary plan.vpp=1 --vary plan.cp=1.

    Example:  clustersim advise job.yaml --set cluster.gpus=32
    """
    from simulator.planning.parallelism_kinds import compare_families

    job = read_job_to_search(job_file, changes)
    with search_status() as show, worker_pool(workers) as (executor, processes):
        results = compare_families(
            job,
            parse_grid(vary or (), "--vary"),
            headroom=headroom,
            executor=executor,
            at_a_time=processes,
            on_progress=lambda name, progress: show(progress, name),
        )
    if as_json:
        print_json({"job": job.title, "strategies": [asdict(result) for result in results]})
    else:
        columns = [
            text_column("strategy"),
            number_column("step time"),
            number_column("against the best"),
            number_column("fullest GPU"),
            text_column("its best plan"),
            text_column("what it does"),
        ]
        cluster = job.cluster
        title = f"{job.model.name} on {cluster.gpus} x {cluster.profile.name}"
        print_table(title, columns, [_row(result, results[0]) for result in results])
        best = results[0].choice
        if best is not None:
            typer.echo(f"The first one: {options_text(best.changes)}")
            note_tightness(job, best)
    need_one_that_fits((result.choice is not None for result in results), "strategy")


def _row(result: FamilyResult, best: FamilyResult) -> tuple[str, ...]:
    name, choice = result.family.name, result.choice
    if choice is None or best.choice is None:
        return name, "", "", "", result.obstacle, result.family.idea
    ratio = choice.step_time_s / best.choice.step_time_s
    step, held = format_seconds(choice.step_time_s), format_bytes(choice.peak_device_bytes)
    return name, step, f"{ratio:.2f} x", held, result.plan_text, result.family.idea
