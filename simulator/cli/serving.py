"""clustersim serve: how fast, for how many, and at what price does a cluster serve a model?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.completion import complete_serving
from simulator.cli.console import note, number_columns, print_json, print_table, text_columns
from simulator.cli.options import (
    PAGES,
    TRACES,
    AsJson,
    file_to_write,
    parse_assignments,
    write_page_of,
)
from simulator.files import PICTURES

if TYPE_CHECKING:
    from simulator.serving.answers import Answers
    from simulator.serving.described import Objective, ServingJob

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
    html: Annotated[Path | None, file_to_write("Write a self-contained HTML page.", *PAGES)] = None,
    *,
    context: typer.Context,
) -> None:
    """Simulate serving: throughput, latency, goodput and cost.

    Exits with 1 if workload.objective is given and fewer requests meet it than its share.

    Example:  clustersim serve run llama3-70b-8xh100 --set deployment.tp=4
    """
    from simulator.serving.answers import answers_of
    from simulator.serving.cluster import serve

    job = _read(file, changes)
    is_kept = any(file is not None for file in (plot, trace, html))
    served = serve(job.deployment, job.workload, record=is_kept)
    answers = answers_of(served, job.deployment, job.workload)
    if plot is not None:
        from simulator.plots.serving import draw_serving

        draw_serving(_title(job), served.steps[0], plot)
        note(f"wrote {plot}")
    if trace is not None:
        from simulator.exporters.chrome_trace import write_serving_trace

        write_serving_trace(served, trace)
        note(f"wrote {trace}")
    if html is not None:
        from simulator.exporters.html.serving_page import serving_page

        write_page_of(
            serving_page(_title(job), served, answers, _lines(answers, job.workload.objective)),
            html,
            context,
        )
    if as_json:
        print_json(answers.to_dict())
    else:
        _print_answers(job, answers)
    objective = job.workload.objective
    if objective.is_asked and answers.good_share < objective.share:
        note(
            f"{100 * answers.good_share:.1f} % of the requests meet the objective, which asks for "
            f"{100 * objective.share:g} % (workload.objective)"
        )
        raise typer.Exit(_DOES_NOT_KEEP)


def _print_answers(job: ServingJob, answers: Answers) -> None:
    columns = [*text_columns(""), *number_columns("")]
    title = f"{_title(job)}\n{job.workload.title}"
    print_table(title, columns, _lines(answers, job.workload.objective))
    spreads = {"TTFT": answers.ttft_s, "TPOT": answers.tpot_s, "end to end": answers.end_to_end_s}
    names = list(answers.ttft_s)
    rows = [
        [name, *(_milliseconds(spread.get(key)) for key in names)]
        for name, spread in spreads.items()
    ]
    print_table("latency [ms]", [*text_columns(""), *number_columns(*names)], rows)


def sweep(
    file: ServingFile,
    rates: Annotated[
        str, typer.Option(metavar="R,R,…", help="Requests per second to try.")
    ] = "1,2,4,8,16,32",
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Predict latency and goodput over request rates.

    A trace is played faster or slower, and again until a minute has passed.

    Example:  clustersim serve sweep serving.yaml --rates 1,2,4,8
    """
    from simulator.serving.bearable_rate import at_rate

    job = _read(file, changes)
    tried = [(rate, at_rate(job.deployment, job.workload, rate)) for rate in _rates(rates)]
    if as_json:
        print_json({"rows": [{"rate": rate, **found.to_dict()} for rate, found in tried]})
        return
    columns = ["requests/s", "tokens/s", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "good"]
    rows = [[f"{rate:g}", *_cells(found)] for rate, found in tried]
    print_table(f"{_title(job)} [ms]", number_columns(*columns), rows)


def plan(file: ServingFile, changes: Changes = None, as_json: AsJson = False) -> None:
    """Rank every tp and pp by the request rate that it sustains.

    A trace is played faster or slower, and again until a minute has passed.

    Example:  clustersim serve plan serving.yaml --set workload.objective.ttft=1s
    """
    from simulator.serving.bearable_rate import ranked_splits

    job = _read(file, changes)
    choices = ranked_splits(job)
    if as_json:
        rows = [
            {
                **choice.settings,
                "rate": choice.rate,
                "launch": _launch_line(job, choice.settings),
                "reason": choice.reason,
                "answers": choice.answers and choice.answers.to_dict(),
            }
            for choice in choices
        ]
        print_json({"rows": rows})
    else:
        columns = [*number_columns("tp", "pp", "requests/s"), *text_columns("")]
        cells = [
            [str(c.settings["tp"]), str(c.settings["pp"]), f"{c.rate:.3g}", c.reason]
            for c in choices
        ]
        print_table(f"{_title(job)}: the largest rate of each tp and pp", columns, cells)
    if not choices[0].rate:
        raise typer.Exit(_DOES_NOT_KEEP)
    note(f"launch:  {_launch_line(job, choices[0].settings)}")


def capacity(
    file: ServingFile,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-6, metavar="R", help="Requests per second to serve."),
    ] = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest request rate, or the fewest GPUs for a rate.

    A trace is played faster or slower, and again until a minute has passed.

    Example:  clustersim serve capacity serving.yaml --rate 50
    """
    from simulator.serving.bearable_rate import largest_rate

    job = _read(file, changes)
    deployment = job.deployment
    unit = deployment.unit
    found = largest_rate(unit, job.workload)
    copies = deployment.all_gpus // unit.all_gpus
    wanted = None if rate is None or not found.rate else int(-(-rate // found.rate))
    document: dict[str, Any] = {
        "rate_per_replica": found.rate,
        "rate": found.rate * copies,
        "gpus_per_replica": unit.all_gpus,
        "gpus": None if wanted is None else wanted * unit.all_gpus,
        "answers_of_a_replica": found.answers and found.answers.to_dict(),
    }
    if as_json:
        print_json(document)
    else:
        lines = [
            ("requests/s that a replica sustains", f"{found.rate:.3g}"),
            ("GPUs per replica", str(unit.all_gpus)),
            (f"requests/s that {deployment.all_gpus} GPUs sustain", f"{document['rate']:.3g}"),
        ]
        if rate is not None:
            needed = document["gpus"]
            lines.append(
                (f"GPUs for {rate:g} requests/s", "none" if needed is None else f"{needed}")
            )
        print_table(_title(job), [*text_columns(""), *number_columns("")], lines)
    if not found.rate:
        note("one replica misses the objective at any rate: raise tp or relax the limits")
        raise typer.Exit(_DOES_NOT_KEEP)


def _launch_line(job: ServingJob, settings: Mapping[str, int]) -> str:
    """The command that starts a split; empty for engines that have none."""
    from simulator.serving.launch_lines import OPTIONS, launch_line

    chosen = job.deployment.model_copy(update={**settings, "attention_dp": 1})
    return launch_line(chosen, chosen.model.name) if chosen.engine in OPTIONS else ""


def _read(file: Path, changes: Sequence[str] | None) -> ServingJob:
    from simulator.serving.described import load_serving

    return load_serving(file, parse_assignments(changes or ()))


def _title(job: ServingJob) -> str:
    d = job.deployment
    pool = f" + {d.prefill.gpus} for prompts" if d.prefill else ""
    return f"{d.model.name} on {d.gpus}{pool} x {d.profile.name}, {d.engine}, tp {d.tp}, pp {d.pp}"


def _lines(answers: Answers, objective: Objective) -> list[tuple[str, str]]:
    price = answers.usd_per_million_tokens
    of_objective = [
        ("goodput [requests/s]", f"{answers.goodput_requests_per_s:.3g}"),
        ("requests that meet the objective", f"{100 * answers.good_share:.1f} %"),
    ]
    lines = [
        ("requests", f"{answers.requests:,}"),
        ("requests/s", f"{answers.requests_per_s:.3g}"),
        ("output tokens/s", f"{answers.output_tokens_per_s:,.0f}"),
        ("tokens/s", f"{answers.total_tokens_per_s:,.0f}"),
        *(of_objective if objective.is_asked else ()),
        ("tokens that fit in a replica's cache", f"{answers.cache_tokens:,}"),
        ("prompt tokens found in the cache", f"{100 * answers.cached_share:.1f} %"),
        ("preemptions", f"{answers.preemptions:,}"),
        ("engine steps", f"{answers.steps:,}"),
    ]
    return lines if price is None else [*lines, ("USD per million output tokens", f"{price:.3g}")]


def _cells(found: Answers) -> list[str]:
    spreads = (found.ttft_s, found.tpot_s)
    latencies = [_milliseconds(spread.get(key)) for spread in spreads for key in ("p50", "p95")]
    return [f"{found.output_tokens_per_s:.0f}", *latencies, f"{100 * found.good_share:.0f} %"]


def _rates(text: str) -> list[float]:
    from simulator.errors import InputError

    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or min(rates) <= 0:
        raise InputError.single("--rates", "must be positive numbers", text, "for example 1,2,4")
    return rates


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.1f}"
