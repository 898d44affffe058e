"""clustersim serve: how fast, for how many, and at what price does a cluster serve a model?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.compared_jobs import Variants, jobs_to_compare
from simulator.cli.completion import complete_serving
from simulator.cli.console import (
    amounts,
    counting,
    note,
    number_columns,
    print_answer_table,
    print_json,
    print_table,
    progress,
    steps,
    text_columns,
)
from simulator.cli.options import (
    TRACES,
    AsJson,
    PageFile,
    file_to_write,
    option,
    parse_assignments,
    write_page_of,
)
from simulator.files import PICTURES
from simulator.units import format_seconds, percent

if TYPE_CHECKING:
    from simulator.api import ServeAnswer
    from simulator.serving.described import ServingJob

ServingFile = Annotated[
    Path,
    typer.Argument(
        metavar="SERVING.yaml",
        help="A deployment and its workload: a YAML file, or the name of a shipped one.",
        autocompletion=complete_serving,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field, for example deployment.tp=4; may be repeated.",
    ),
]
_DOES_NOT_KEEP = 1


def run(
    file: ServingFile,
    changes: Changes = None,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        file_to_write("Draw batches, queue and cache of a replica over time.", *PICTURES),
    ] = None,
    trace: Annotated[
        Path | None,
        file_to_write(
            "Write the steps of all replicas and the life of each request for Perfetto.",
            *TRACES,
            metavar="FILE.json.gz",
        ),
    ] = None,
    html: PageFile = None,
    *,
    context: typer.Context,
) -> None:
    """Simulate serving: throughput, latency, goodput and cost.

    Exits with 1 if workload.objective is given and fewer requests meet it than its share.

    Example:  clustersim serve run llama3-70b-8xh100 --set deployment.tp=4
    """
    from simulator import api

    job = _read(file, changes)
    is_kept = any(file is not None for file in (plot, trace, html))
    with amounts("requests") as counted:
        answer = api.serve(job, record=is_kept, on_ended=counted)
    if plot is not None:
        note(f"wrote {answer.plot(plot)}")
    if trace is not None:
        note(f"wrote {answer.write_trace(trace)}")
    if html is not None:
        write_page_of(answer.page(), html, context)
    if as_json:
        print_json(answer.to_dict())
    else:
        _print_run(answer)
    if not answer.meets_objective:
        objective = job.workload.objective
        note(
            f"{percent(answer.result.good_share)} of the requests meet the objective, which asks "
            f"for {percent(objective.share, 0)} (workload.objective)"
        )
        raise typer.Exit(_DOES_NOT_KEEP)


def _print_run(answer: ServeAnswer) -> None:
    columns = [*text_columns(""), *number_columns("")]
    print_table(f"{answer.job.title}\n{answer.job.workload.title}", columns, answer.figures())
    found = answer.result
    spreads = {"TTFT": found.ttft_s, "TPOT": found.tpot_s, "end to end": found.end_to_end_s}
    names = list(found.ttft_s)
    rows = [
        [name, *(format_seconds(spread[key]) if key in spread else "" for key in names)]
        for name, spread in spreads.items()
    ]
    print_table("latency", [*text_columns(""), *number_columns(*names)], rows)


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="SERVING.yaml",
            help="Two or more serving jobs, or one with --variant.",
            autocompletion=complete_serving,
        ),
    ],
    *,
    variants: Variants = None,
    changes: Changes = None,
    largest_rates: Annotated[
        bool,
        option(
            "Also find the largest rate at which each meets its objective.", name="--largest-rates"
        ),
    ] = False,
    as_json: AsJson = False,
    html: PageFile = None,
) -> None:
    """Compare deployments, and show where the time goes.

    Every deployment is compared with the first one: throughput, latency, price, and the parts of
    the mean request's time. --set changes all of them.

    Exits with 1 if none of them meets its objective.

    Example:  clustersim serve compare a.yaml b.yaml --largest-rates

    Example:  clustersim serve compare llama3-70b-8xh100 --variant deployment.tp=8
    """
    from simulator import api

    jobs = jobs_to_compare(
        "SERVING.yaml",
        files,
        variants or (),
        lambda file: _read(file, changes),
        "deployment.tp=8",
    )
    with counting("runs") as counted:
        answer = api.serve_compare(jobs, largest_rates=largest_rates, on_trial=counted)
    for text in answer.doubts():
        note(text)
    if as_json:
        print_json(answer.to_dict())
    else:
        for table in answer.tables():
            print_answer_table(table.heading, table)
    if html is not None:
        note(f"wrote {answer.write_html(html)}")
    if not any(run.meets_objective for run in answer.runs):
        note("no deployment meets its objective (workload.objective)")
        raise typer.Exit(_DOES_NOT_KEEP)


def sweep(
    file: ServingFile,
    rates: Annotated[
        str, typer.Option(metavar="R,R,…", help="Requests per second to try.")
    ] = "1,2,4,8,16,32",
    changes: Changes = None,
    as_json: AsJson = False,
    html: PageFile = None,
    *,
    context: typer.Context,
) -> None:
    """Predict latency and goodput over request rates.

    A trace is played faster or slower, and again until a minute has passed.

    Example:  clustersim serve sweep serving.yaml --rates 1,2,4,8
    """
    from simulator import api

    job, asked = _read(file, changes), _rates(rates)
    with progress("rates", len(asked)) as counted:
        answer = api.serve_sweep(job, asked, on_trial=counted)
    if html is not None:
        write_page_of(answer.page(), html, context)
    if as_json:
        print_json(answer.to_dict())
    else:
        print_answer_table(_with_objective(job), answer.table())


def plan(
    file: ServingFile,
    changes: Changes = None,
    as_json: AsJson = False,
    html: PageFile = None,
    *,
    context: typer.Context,
) -> None:
    """Rank every tp and pp by the request rate that it sustains.

    A trace is played faster or slower, and again until a minute has passed.

    Exits with 1 if none sustains any rate.

    Example:  clustersim serve plan serving.yaml --set workload.objective.ttft=1s
    """
    from simulator import api

    job = _read(file, changes)
    with steps("splits") as counted:
        answer = api.serve_plan(job, on_split=counted)
    if html is not None:
        write_page_of(answer.page(), html, context)
    if as_json:
        print_json(answer.to_dict())
    else:
        title = f"{_with_objective(job)}\nthe largest rate of each tp and pp, and its latencies"
        print_answer_table(title, answer.table())
    if answer.best is None:
        raise typer.Exit(_DOES_NOT_KEEP)
    if launch := answer.launch_line(answer.choices[0]):
        note(f"launch:  {launch}")


def capacity(
    file: ServingFile,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-6, metavar="R", help="Requests per second to serve."),
    ] = None,
    changes: Changes = None,
    as_json: AsJson = False,
    html: PageFile = None,
    *,
    context: typer.Context,
) -> None:
    """Find the largest request rate, or the fewest GPUs for a rate.

    A trace is played faster or slower, and again until a minute has passed.

    Exits with 1 if no rate meets the objective.

    Example:  clustersim serve capacity serving.yaml --rate 50
    """
    from simulator import api
    from simulator.api.serving_rates import MISSES

    job = _read(file, changes)
    with counting("rates") as counted:
        answer = api.serve_capacity(job, rate, on_trial=counted)
    if html is not None:
        write_page_of(answer.page(), html, context)
    if as_json:
        print_json(answer.to_dict())
    else:
        columns = [*text_columns(""), *number_columns("")]
        print_table(_with_objective(job), columns, answer.figures())
    if not answer.rate:
        note(MISSES)
        raise typer.Exit(_DOES_NOT_KEEP)


def _with_objective(job: ServingJob) -> str:
    """The title of a job, with the objective on a second line where it has one."""
    from simulator.api.serving_answers import objective_text

    objective = job.workload.objective
    return f"{job.title}\n{objective_text(objective)}" if objective.is_asked else job.title


def _read(file: Path, changes: Sequence[str] | None) -> ServingJob:
    from simulator.serving.described import load_serving

    return load_serving(file, parse_assignments(changes or ()))


def _rates(text: str) -> list[float]:
    from simulator.errors import InputError

    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise InputError.single("--rates", "must be positive numbers", text, "for example 1,2,4")
    return rates
