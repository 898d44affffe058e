"""clustersim strategies: what does each way of data parallelism cost for this model?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    need_one_that_fits,
    note,
    number_column,
    percent,
    print_json,
    print_table,
    progress,
    text_column,
)
from simulator.cli.options import AsJson, Changes, JobFile, Picture, read_job, whole_numbers
from simulator.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.described.job import Job
    from simulator.planning.data_parallel_variants import Comparison, Outcome

_SCHEMA_VERSION = 1
_BIGGEST = 2


def strategies(
    job_file: JobFile,
    changes: Changes = None,
    as_json: AsJson = False,
    plot: Picture = None,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="N,N,...", help="On how many whole nodes to compare.")
    ] = "1,8",
) -> None:
    """Compare ways of data parallelism, from DDP to ZeRO-Infinity.

    Said of each: step time, memory, what it moves, and when to take it.
    Every GPU keeps its share of the batch on any number of nodes.

    Example:  clustersim strategies job.yaml --nodes 1,8 --plot strategies.png
    """
    from simulator.planning.data_parallel_variants import STRATEGIES, compare_strategies

    job, counts = read_job(job_file, changes), whole_numbers(nodes, "--nodes")
    with progress("strategies", len(STRATEGIES) * len(counts)) as count:
        found = compare_strategies(job, counts, on_trial=count)
    if as_json:
        print_json(_document(found))
    else:
        for comparison in found:
            _print_comparison(comparison)
        _print_advice()
    if plot is not None:
        from simulator.planning.data_parallel_variants import draw_comparisons

        draw_comparisons(found, plot)
        note(f"wrote {plot}")
    fit = (outcome.fits for comparison in found for outcome in comparison.outcomes)
    need_one_that_fits(fit, "strategy")


def _print_comparison(comparison: Comparison) -> None:
    columns = [
        text_column("strategy"),
        text_column("shards"),
        number_column("step time"),
        number_column("tokens/s per GPU"),
        number_column("exposed"),
        number_column("moved per GPU"),
        number_column("memory"),
        text_column("fits"),
        text_column("held most by"),
    ]
    count = comparison.nodes
    title = f"{comparison.job.title} ({count} node{'' if count == 1 else 's'})"
    print_table(title, columns, [_row(outcome) for outcome in comparison.outcomes])


def _row(outcome: Outcome) -> Sequence[str]:
    step, strategy = outcome.step, outcome.strategy
    if step is None:
        return strategy.name, strategy.shards, "", "", "", "", "", "no", f"{outcome.refusal}"
    fullest = outcome.fullest
    owners = sorted(fullest.by_owner.items(), key=lambda item: -item[1])[:_BIGGEST]
    most = ", ".join(f"{owner.value} {format_bytes(size)}" for owner, size in owners)
    where = f"{fullest.role}: " if fullest.role else ""
    return (
        strategy.name,
        strategy.shards,
        format_seconds(step.step_time_s),
        f"{step.tokens_per_s_per_gpu:,.0f}",
        percent(outcome.exposed_s / step.step_time_s),
        format_bytes(outcome.moved_bytes),
        format_bytes(fullest.peak_device_bytes),
        "yes" if outcome.fits else "no",
        where + most,
    )


def _print_advice() -> None:
    from simulator.planning.data_parallel_variants import STRATEGIES

    rows = [(strategy.name, strategy.advice) for strategy in STRATEGIES]
    print_table("when to take which", [text_column(""), text_column("")], rows)
    typer.echo("exposed: communication that delays the mean GPU, as a share of the step")
    typer.echo("moved: through the links of the busiest GPU in a step, one direction")
    typer.echo("memory: what the driver shows on the fullest GPU, context and allocator included")


def _document(found: Sequence[Comparison]) -> dict[str, Any]:
    return {
        "schema_version": _SCHEMA_VERSION,
        "comparisons": [
            {
                "nodes": comparison.nodes,
                "title": comparison.job.title,
                "gpus": comparison.job.cluster.gpus,
                "global_batch": comparison.job.batch.global_batch,
                "strategies": [
                    _outcome_document(outcome, comparison.job) for outcome in comparison.outcomes
                ],
            }
            for comparison in found
        ],
    }


def _outcome_document(outcome: Outcome, job: Job) -> dict[str, Any]:
    strategy, step = outcome.strategy, outcome.step
    document: dict[str, Any] = {
        "name": strategy.name,
        "shards": strategy.shards,
        "advice": strategy.advice,
        "changes": strategy.changes_of(job),
        "fits": outcome.fits,
        "refused": outcome.refusal or None,
    }
    if step is None:
        return document
    fullest = outcome.fullest
    return document | {
        "step_time_s": step.step_time_s,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "breakdown_s": {category.value: s for category, s in step.breakdown_s.items()},
        "exposed_comm_s": outcome.exposed_s,
        "moved_bytes_per_gpu": outcome.moved_bytes,
        "peak_device_bytes": fullest.peak_device_bytes,
        "capacity_bytes": step.capacity_bytes,
        "by_owner": {owner.value: size for owner, size in fullest.by_owner.items()},
        "fullest": fullest.role or "every GPU",
    }
