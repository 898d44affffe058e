"""clustersim advise and strategies: which ways to split this model suit this cluster?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import (
    need_one_that_fits,
    note,
    print_answer_table,
    print_json,
    print_table,
    progress,
    text_columns,
)
from simulator.cli.options import (
    AsJson,
    Changes,
    JobFile,
    PageFile,
    Picture,
    Risk,
    WrittenJob,
    option,
    read_job,
    refuse_to_write_over,
    whole_numbers,
    write_answer_page,
    write_job,
)
from simulator.cli.planning.plan import (
    Vary,
    has_valid_plan,
    read_job_to_search,
    search_status,
)
from simulator.cli.planning.sweep import Workers, parse_grid
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import counted

if TYPE_CHECKING:
    from simulator.api import AdviseAnswer
    from simulator.planning.compared_strategies import Comparison


def advise(
    context: typer.Context,
    job_file: JobFile,
    *,
    vary: Vary = None,
    changes: Changes = None,
    risk: Risk = DEFAULT_RISK,
    workers: Workers = None,
    write: WrittenJob = None,
    html: PageFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare DDP, ZeRO, TP, PP and their combinations.

    The plans are those that clustersim plan searches, so the best strategy's plan is the best
    plan. To search fewer plans: --vary plan.vpp=1 --vary plan.cp=1. "fits" is the probability
    of not running out of memory; clustersim plan shows the effect of the accepted risk.

    If no plan trains the whole model on one machine, it shows the usual remedies instead:
    recomputation, 8-bit states, adapters, 4-bit weights, host memory, shorter sequences.

    Exits with 1 if no strategy fits.

    Example:  clustersim advise job.yaml --set cluster.gpus=32 --write best.yaml
    """
    from simulator import api

    job = read_job_to_search(job_file, changes)
    refuse_to_write_over(job_file, write)
    with search_status() as show:
        found = api.advise(
            job,
            vary=parse_grid(vary or (), "--vary"),
            risk=risk,
            own=has_valid_plan(job_file, changes),
            workers=workers,
            on_progress=lambda name, progress: show(progress, name),
        )
    if as_json:
        print_json(found.to_dict())
    else:
        _print_answer(found)
    write_answer_page(found, html, context)
    write_job(found.best, write, found.best_step)
    if found.way_out is None:
        need_one_that_fits((each.choice is not None for each in found.strategies), "strategy")


def _print_answer(found: AdviseAnswer) -> None:
    from simulator.api.plan_sentences import how_it_shards
    from simulator.described.job import options_text
    from simulator.planning.changes.advice import way_out

    if found.way_out is not None:
        for line in way_out(found.way_out):
            typer.echo(line)
        return
    cluster = found.job.cluster
    title = f"{found.job.model.name} on {cluster.gpus} x {cluster.profile.name}"
    print_answer_table(title, found.table())
    best = found.strategies[0]
    if best.choice is not None:
        changes = best.choice.changes
        for line in (*found.faster_own_plan(), *how_it_shards(found.job, changes)):
            typer.echo(line)
        typer.echo(f"To use strategy 1: {options_text(changes)}")


def strategies(
    context: typer.Context,
    job_file: JobFile,
    *,
    changes: Changes = None,
    as_json: AsJson = False,
    plot: Picture = None,
    nodes: Annotated[
        str, option("Numbers of whole nodes to compare on.", "N,N,...", name="--nodes")
    ] = "1,8",
    html: PageFile = None,
) -> None:
    """Compare ways of data parallelism, from DDP to ZeRO-Infinity.

    Shown for each: step time, memory, traffic, and when to use it.
    The batch per GPU is the same on any number of nodes.

    Exits with 1 if no strategy fits.

    Example:  clustersim strategies job.yaml --nodes 1,8 --plot strategies.png
    """
    from simulator import api
    from simulator.planning.compared_strategies import known_strategies

    job, counts = read_job(job_file, changes), whole_numbers(nodes, "--nodes")
    with progress("strategies", len(known_strategies()) * len(counts)) as count:
        answer = api.strategies(job, counts, on_trial=count)
    found = answer.comparisons
    if as_json:
        print_json(answer.to_dict())
    else:
        for comparison in found:
            _print_comparison(comparison)
        _print_advice()
    if plot is not None:
        from simulator.planning.drawn_strategies import draw_comparisons

        draw_comparisons(found, plot)
        note(f"wrote {plot}")
    write_answer_page(answer, html, context)
    fit = (outcome.fits for comparison in found for outcome in comparison.outcomes)
    need_one_that_fits(fit, "strategy")


def _print_comparison(comparison: Comparison) -> None:
    from simulator.api.strategy_answers import comparison_table

    title = f"{comparison.job.title} ({counted(comparison.nodes, 'node')})"
    print_answer_table(title, comparison_table(comparison))


def _print_advice() -> None:
    from simulator.planning.compared_strategies import known_strategies

    rows = [(strategy.name, strategy.advice) for strategy in known_strategies()]
    print_table("when to use which", text_columns("", ""), rows)
    typer.echo("exposed: communication that delays the mean GPU, as a share of the step")
    typer.echo("traffic: through the links of the busiest GPU in a step, one direction")
    typer.echo("memory: what the driver shows on the fullest GPU, context and allocator included")
