"""clustersim distribution: how do the steps of a job spread?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_spreads,
    print_table,
    working,
    write_picture,
)
from simulator.cli.options import AsJson, Changes, JobFile, file_to_write, option, read_job
from simulator.cli.planning.sweep import Dask, DaskSecurity, cluster_asked
from simulator.files import PICTURES
from simulator.results.fit_probability import EVEN
from simulator.units import format_seconds, percent

if TYPE_CHECKING:
    from simulator.planning.distribution.sampled_steps import StepDistribution


def distribution(
    job_file: JobFile,
    *,
    changes: Changes = None,
    samples: Annotated[int, option("Number of steps to sample.", "N", min=1)] = 1000,
    seed: Annotated[int | None, option("Random seed; by default the job's.", "N", min=0)] = None,
    plot: Annotated[
        Path | None,
        file_to_write(
            "Draw the distribution, and how the mean grows with the number of GPUs.",
            *PICTURES,
            metavar="FILE.png",
        ),
    ] = None,
    dask: Dask = None,
    dask_security: DaskSecurity = None,
    as_json: AsJson = False,
) -> None:
    """Sample many steps and show how their times spread.

    GPUs, links, expert loads and lengths vary as the job's variation and batch.lengths say.
    With --json, every sampled step is printed as well.

    Example:  clustersim distribution job.yaml --set 'variation={compute: {sigma: 0.03}}'

    Example:  clustersim distribution job.yaml --set
    'variation={slow: {rate: 0.001, slowdown: 0.2}, links: {sigma: 0.1}}' --samples 5000
    """
    from simulator.planning.distribution.sampled_steps import step_distribution

    job = read_job(job_file, changes)
    with cluster_asked(dask, dask_security, None) as executor, working("sampling steps"):
        found = step_distribution(job, samples, seed, executor)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if plot is not None:
        from simulator.plots.distribution import build_distribution_figure

        figure = build_distribution_figure(
            found.title,
            found.steps_s,
            found.typical_step_s,
            [(each.gpus, each.amplification) for each in found.stragglers],
        )
        write_picture(figure, plot)
    if found.out_of_memory_probability > 1 - EVEN:
        note("The job does not fit into memory; clustersim run shows what would.")
        raise typer.Exit(1)


def _print(found: StepDistribution) -> None:
    title = f"{found.title}: {found.samples:,} steps"
    print_spreads(title, found.step_time_s, found.peak_device_bytes)
    typer.echo(
        f"the step without variation takes {format_seconds(found.typical_step_s)}; the mean "
        f"is {found.amplification:.3f} times that"
    )
    longer = (f"{percent(p)} in {n:,}" for n, p in found.out_of_memory_in_steps.items())
    once = percent(found.out_of_memory_probability)
    typer.echo(f"out of memory with a probability of {once} in a step, {', '.join(longer)}\n")
    scales = [
        (f"{each.gpus:,}", format_seconds(each.mean_step_s), f"{each.amplification:.3f}")
        for each in found.stragglers
    ]
    columns = number_columns(
        "GPUs that wait for each other", "mean step", "relative to uniform GPUs"
    )
    print_table("stragglers", columns, scales)
    control = found.control
    note(
        f"check: {control.steps} of the steps are simulated in full: {control.mean_ratio:.4f} "
        f"times as long on average, at most {percent(control.largest_difference, 2)} off"
    )
