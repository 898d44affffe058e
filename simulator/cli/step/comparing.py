"""clustersim compare: why is one job faster than another?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.compared_jobs import Variants, jobs_to_compare
from simulator.cli.console import (
    need_one_that_fits,
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
    write_picture,
)
from simulator.cli.options import (
    PAGES,
    AsJson,
    Changes,
    file_to_write,
    note_doubts,
    read_job,
)
from simulator.files import PICTURES
from simulator.units import chance, format_bytes, format_seconds, percent, signed_percent

if TYPE_CHECKING:
    from simulator.api import CompareAnswer
    from simulator.exporters.html.run_report import Run
    from simulator.results.ratio_error import GainError
    from simulator.results.views.difference import Difference


def compare(
    job_files: Annotated[
        list[Path],
        typer.Argument(metavar="JOB.yaml", help="Two or more jobs, or one with --variant."),
    ],
    *,
    variants: Variants = None,
    changes: Changes = None,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        file_to_write("Draw the differences as waterfall charts.", *PICTURES),
    ] = None,
    html: Annotated[
        Path | None,
        file_to_write("Write a self-contained HTML page with differences and timelines.", *PAGES),
    ] = None,
) -> None:
    """Explain the difference between steps, cause by cause.

    Every job is compared with the first one. --set changes all of them. If jobs train different
    numbers of tokens per GPU, their times are scaled to the tokens of the first job.

    Exits with 1 if none of the jobs fits.

    Example:  clustersim compare a.yaml b.yaml --html difference.html

    Example:  clustersim compare job.yaml --variant plan.tp=2 --variant 'plan.tp=1 plan.pp=8'
    """
    from simulator import api

    jobs = jobs_to_compare(
        "JOB.yaml", job_files, variants or (), lambda file: read_job(file, changes), "plan.tp=2"
    )
    for _, variant in jobs[len(job_files) :]:
        note_doubts(variant)
    answer = api.compare(jobs)
    runs, found = answer.runs, answer.differences
    first, *others = runs
    if len({run.job.cluster.name for run in runs}) > 1 and not answer.price_row():
        system = first.job.cluster.profile.name
        note(f"no price is given: --set campaign.systems.{system}.on_demand='… USD/h'")
    for other in others:
        if other.job == first.job:
            note(
                f"{other.name} is the same job as {first.name}; --set changes all jobs, --variant "
                "makes another one"
            )
    if as_json:
        print_json(answer.to_dict())
    else:
        _print_headlines(answer)
        for other, each, gain in zip(others, found, answer.gains, strict=True):
            _print_difference(first, other, each, gain)
    if plot is not None:
        from simulator.plots.comparison import build_differences_figure

        write_picture(build_differences_figure(found, [run.name for run in runs]), plot)
    if html is not None:
        note(f"wrote {answer.write_html(html)}")
    need_one_that_fits((run.result.fits for run in runs), "job")


def _print_headlines(answer: CompareAnswer) -> None:
    from simulator.api.step_comparison import PRICE_NAME

    runs = answer.runs
    results = [run.result for run in runs]
    rows = [
        ("step time", *(format_seconds(r.step_time_s) for r in results)),
        ("tokens/s per GPU", *(f"{r.tokens_per_s_per_gpu:,.1f}" for r in results)),
        ("MFU", *(percent(r.mfu) for r in results)),
        ("pipeline bubble", *(percent(r.bubble_fraction) for r in results)),
        ("fullest GPU", *(format_bytes(r.peak_device_bytes) for r in results)),
        ("likely to fit", *(chance(r.fits_probability) for r in results)),
    ]
    if prices := answer.price_row():
        rows.append((PRICE_NAME, *prices))
    gpus = [run.job.cluster.gpus for run in runs]
    if len(set(gpus)) > 1:
        totals = (r.tokens_per_s_per_gpu * count for r, count in zip(results, gpus, strict=True))
        rows.insert(2, ("tokens/s of all GPUs", *(f"{total:,.0f}" for total in totals)))
        rows.insert(0, ("GPUs", *map(str, gpus)))
    columns = text_columns("") + number_columns(*(run.name for run in runs))
    titles = [result.title for result in results]
    if len(set(titles)) > 1:
        titles = [f"{run.name}: {title}" for run, title in zip(runs, titles, strict=True)]
    print_table("\n".join(dict.fromkeys(titles)), columns, rows)


def _print_difference(first: Run, other: Run, found: Difference, gain: GainError | None) -> None:
    from simulator.api.step_comparison import cause_rows, gain_text, time_row

    rows = [*cause_rows(found), time_row(found, "step", found.first_s, found.second_s)]
    columns = text_columns("time by cause") + number_columns(
        first.name, other.name, "difference", "of the step"
    )
    title = f"{other.name}: {signed_percent(found.gain)} tokens/s per GPU{gain_text(gain)}"
    if found.tokens_ratio != 1:
        ratio = f"{found.tokens_ratio:.4g}"
        title += f" (its times divided by {ratio}: as many tokens per GPU as {first.name})"
    print_table(title, columns, rows)
