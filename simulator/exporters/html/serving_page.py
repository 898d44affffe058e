"""What stands on the page of a serving run: rates, latencies, and a replica over time?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.described.job import job_yaml
from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Bar,
    Cell,
    Column,
    Meaning,
    Table,
    cells,
    columns,
)
from simulator.serving.answers import Answers
from simulator.serving.cluster import Served
from simulator.serving.described import ServingJob
from simulator.serving.engine import Step
from simulator.serving.workload import Objective
from simulator.units import format_seconds, percent

_SLICES = 24
_HEADLINE = 3


def serving_page(
    job: ServingJob, served: Served, answers: Answers, lines: Sequence[tuple[str, str]]
) -> AnswerPage:
    """The page of a run whose steps were recorded.

    Args:
        job: The deployment and its workload.
        served: The run.
        answers: Its numbers.
        lines: Names and values of those that come first.
    """
    spreads = {
        "time to the first token": answers.ttft_s,
        "time per further token": answers.tpot_s,
        "end to end": answers.end_to_end_s,
    }
    heads = list(answers.ttft_s)
    latencies = [
        cells([name, *(format_seconds(spread[head]) for head in heads if head in spread)])
        for name, spread in spreads.items()
        if spread
    ]
    tables = [
        Table("Rates", "Of the whole run", columns([""], [""]), [cells(line) for line in lines]),
        Table("Latencies", "Of all requests after the warm-up", columns([""], heads), latencies),
    ]
    for name, index in _shown(served):
        steps = served.steps[index]
        most = max((step.running for step in steps), default=0)
        waits = max((step.waiting for step in steps), default=0)
        caption = f"Means of slices of its time; at most {most} requests run and {waits} wait"
        tables.append(Table(f"{name} over time", caption, _COLUMNS, list(_slices(steps))))
    return AnswerPage(
        title=job.title,
        sentences=[f"{job.workload.title}.", *_verdict(job.workload.objective, answers)],
        tables=tables,
        headline=lines[:_HEADLINE],
        job_yaml=job_yaml(job),
        command="clustersim serve run job.yaml --html run.html",
    )


def _verdict(objective: Objective, answers: Answers) -> list[str]:
    """Whether the objective is met; nothing where there is none."""
    if not objective.is_asked:
        return []
    keeps = "meets" if answers.keeps_objective else "misses"
    good, asked = percent(answers.good_share), percent(objective.share, 0)
    return [
        f"{good} of the requests meet the objective, which asks for {asked}: the run {keeps} it."
    ]


_COLUMNS = [
    *columns((), ["from [s]", "to [s]"]),
    Column("requests in a step", "bars"),
    Column("waiting requests", "bars"),
    Column("cache in use", "bars"),
]


def _shown(served: Served) -> Iterator[tuple[str, int]]:
    """The first replica, and the first of those for prompts."""
    yield "A replica", 0
    if served.replicas[-1].scheduler.hands_over:
        yield "A replica for prompts", len(served.steps) - 1


def _slices(steps: Sequence[Step]) -> Iterator[list[Cell]]:
    if not steps:
        return
    end_s = steps[-1].end_s
    each_s = end_s / _SLICES
    rows: list[list[tuple[float, Step]]] = [[] for _ in range(_SLICES)]
    for step in steps:
        last = min(_SLICES - 1, int(step.end_s / each_s))
        for number in range(min(last, int(step.start_s / each_s)), last + 1):
            begin_s, close_s = number * each_s, (number + 1) * each_s
            inside_s = min(step.end_s, close_s) - max(step.start_s, begin_s)
            rows[number].append((max(0.0, inside_s), step))
    means = [[_mean(row, name) for name in ("running", "waiting", "used_share")] for row in rows]
    most = [max(1e-9, *(mean[k] for mean in means)) for k in (0, 1)] + [1.0]
    for number, mean in enumerate(means):
        span = cells([f"{number * each_s:.1f}", f"{(number + 1) * each_s:.1f}"])
        texts = (f"{mean[0]:.0f}", f"{mean[1]:.0f}", f"{100 * mean[2]:.0f} %")
        bars = [
            Cell(bars=(Bar(text, Meaning.NUMBER, value / whole),))
            for text, value, whole in zip(texts, mean, most, strict=True)
        ]
        yield [*span, *bars]


def _mean(inside: Sequence[tuple[float, Step]], name: str) -> float:
    """Over the time in which steps run, with the seconds of each that lie in the slice."""
    spans = sum(seconds for seconds, _ in inside)
    held = sum(getattr(step, name) * seconds for seconds, step in inside)
    return held / spans if spans else 0.0
