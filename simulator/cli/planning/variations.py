"""clustersim balance, limits, sensitivity and distribution: what do changes of one job give?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import (
    counting,
    note,
    number_columns,
    print_answer_table,
    print_json,
    print_spreads,
    print_table,
    status_line,
    text_columns,
    working,
    write_picture,
)
from simulator.cli.options import (
    AsJson,
    Changes,
    JobFile,
    PageFile,
    Picture,
    Risk,
    file_to_write,
    option,
    read_job,
    write_answer_page,
)
from simulator.cli.planning.sweep import Dask, DaskSecurity, cluster_asked
from simulator.files import PICTURES
from simulator.results.fit_probability import DEFAULT_RISK, EVEN
from simulator.units import chance, format_seconds, percent

if TYPE_CHECKING:
    from simulator.planning.changes.balance import Balance
    from simulator.planning.changes.profile_numbers import Sensitivity
    from simulator.planning.distribution.sampled_steps import StepDistribution


def balance(job_file: JobFile, changes: Changes = None, as_json: AsJson = False) -> None:
    """Find the layers per stage that give the shortest step.

    Shows what the best layout gains over an even one, and the options that select it.

    Exits with 1 if no layout fits.

    Example:  clustersim balance job.yaml --set plan.pp=8
    """
    from simulator.planning.changes.balance import balance, simulated_in_full

    job = read_job(job_file, changes)
    with working("simulating layouts"):
        found = simulated_in_full(balance(job), job)
    if as_json:
        print_json({**asdict(found), "saved_share": found.saved_share, "is_even": found.is_even})
    else:
        _print_layouts(found, job.title)
    if not found.fits:
        note("No simulated layout fits into memory.")
        raise typer.Exit(1)


def _print_layouts(found: Balance, title: str) -> None:
    from simulator.planning.changes.balance import layout_text

    layouts = [("even", found.even_layout, found.even_step_time_s, found.even_fits)]
    if not found.is_even:
        layouts.append(("balanced", found.layout, found.step_time_s, found.fits))
    rows = [
        (name, layout_text(layout), format_seconds(step_time_s), "yes" if fits else "no")
        for name, layout, step_time_s, fits in layouts
    ]
    columns = (
        text_columns("layout", "layers per virtual stage")
        + number_columns("step time")
        + text_columns("fits")
    )
    print_table(title, columns, rows)
    typer.echo(_verdict(found))


def _verdict(found: Balance) -> str:
    from simulator.results.views.verdict import LEAST_SHARE

    if found.is_even and found.tried == 1:
        return "The even layout is the best; no other one was worth a simulation."
    if found.is_even:
        return f"The even layout is the best of the {found.tried} that were simulated."
    if 0 <= found.saved_share < LEAST_SHARE:
        return f"None of the {found.tried} simulated layouts is worth the change."
    options = " ".join(f"--set '{path}={_as_yaml(new)}'" for path, new in found.changes.items())
    kind = "shorter" if found.saved_share >= 0 else "longer, but it fits"
    gain = f"The balanced step is {percent(abs(found.saved_share), digits=2)} {kind}"
    return f"{gain} ({found.tried} layouts simulated). To take it:\n{options}"


def _as_yaml(value: object) -> str:
    return str(value).replace(" ", "").lower()


def limits(
    job_file: JobFile,
    changes: Changes = None,
    risk: Risk = DEFAULT_RISK,
    as_json: AsJson = False,
) -> None:
    """Find the largest microbatch, sequence and depth that fit.

    Each is raised alone, but batch.global grows with batch.micro. Depth is the number of layers.
    The column "50 % likely to fit" shows what a higher risk would allow.

    Exits with 1 if the job itself exceeds the risk.

    Example:  clustersim limits job.yaml --set plan.recompute=full --risk 0.01
    """
    from simulator import api

    job = read_job(job_file, changes)
    with counting("simulations") as count:
        answer = api.limits(job, risk=risk, on_trial=count)
    found = answer.limits
    if as_json:
        print_json(answer.to_dict())
    else:
        print_answer_table(job.title, answer.table())
    for limit in found:
        if limit.obstacle:
            note(f"{limit.field}: {limit.obstacle}")
        elif limit.field == "batch.micro" and limit.largest > limit.now:
            sequences = job.batch.global_batch // limit.now * limit.largest
            note(
                "For as many microbatches as now, "
                f"batch.micro={limit.largest} goes with batch.global={sequences}"
            )
    if any(not limit.obstacle and limit.largest < limit.now for limit in found):
        note(f"The job as it is runs out of memory with a probability above {percent(risk)}.")
        raise typer.Exit(1)


def sensitivity(
    context: typer.Context,
    job_file: JobFile,
    *,
    changes: Changes = None,
    share: Annotated[
        float,
        option("Relative change of each number.", "SHARE", name="--share", min=0.001, max=0.9),
    ] = 0.1,
    top: Annotated[int, option("How many numbers to show, largest effect first.", "N", min=1)] = 15,
    replay: Annotated[
        bool, option("Simulate without contention, which is faster.", name="--replay")
    ] = False,
    plot: Picture = None,
    html: PageFile = None,
    as_json: AsJson = False,
) -> None:
    """Find the numbers of the hardware profile that matter most.

    Each number is changed by 10 % in both directions, and the step is simulated again.
    The number to calibrate first is the most important one that was never measured.

    Example:  clustersim sensitivity job.yaml --plot tornado.png
    """
    from simulator import api

    job = read_job(job_file, changes)
    with status_line() as show:
        found = api.sensitivity(
            job,
            share=share,
            engine="replay" if replay else "des",
            on_trial=lambda done, count: show(f"{done} of {count} numbers changed"),
        )
    shown = found.largest(top)
    write_answer_page(found, html, context)
    if plot is not None:
        from simulator.plots.goodput import build_tornado_figure

        rows = [(each.field, each.lower or 0.0, each.higher or 0.0) for each in shown]
        write_picture(build_tornado_figure(job.title, rows, share), plot)
    if as_json:
        print_json(found.to_dict())
        return
    columns = text_columns("number", "value", "source") + number_columns(
        f"{percent(share, 0)} less", f"{percent(share, 0)} more"
    )
    print_table(f"step time of {job.title}", columns, map(_parameter_row, shown))
    note(found.count_text())
    calibration = found.calibration_text(top)
    if calibration:
        note(calibration)


def _parameter_row(found: Sensitivity) -> tuple[str, ...]:
    from simulator.api.change_answers import change_text, value_text

    lower, higher = change_text(found.lower), change_text(found.higher)
    return found.field, value_text(found), found.source, lower, higher


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
    longer = (f"{chance(p)} in {n:,}" for n, p in found.out_of_memory_in_steps.items())
    once = chance(found.out_of_memory_probability)
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
