"""Which of several deployments serves better, and what does a request spend its time on?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.api.comparison import comparison_dict, named_jobs
from simulator.api.serving_answers import flat, latencies, need_serving, objective_text
from simulator.errors import DoesNotFitError
from simulator.exporters.html.answer_tables import AnswerPage, Table, cells, columns
from simulator.serving.described import ServingJob
from simulator.units import format_seconds, percent, signed_percent, signed_seconds

if TYPE_CHECKING:
    import pandas as pd

    from simulator.serving.answers import Answers

_PARTS = {
    "wait": "waiting for the first step",
    "prompt": "prompt, until the first token",
    "answer": "further tokens",
}


@dataclass(frozen=True)
class ServedRun:
    """A deployment that is compared.

    Attributes:
        name: How people know it.
        job: What was served.
        result: Rates, latencies and money of the workload.
        largest_rate: The largest rate that meets the objective [requests/s]; None if not asked for.
        usd_per_million_tokens: Price of a million output tokens at the largest rate.
    """

    name: str
    job: ServingJob
    result: Answers
    largest_rate: float | None = None
    usd_per_million_tokens: float | None = None

    @property
    def meets_objective(self) -> bool:
        """Whether as many requests meet the objective as it asks for; so if none is given."""
        return self.result.keeps_objective or not self.job.workload.objective.is_asked


@dataclass(frozen=True, repr=False)
class ServeCompareAnswer(Answer):
    """Deployments beside each other; each is compared with the first.

    Attributes:
        runs: The deployments with what came of them.
    """

    runs: Sequence[ServedRun]

    def to_dict(self) -> dict[str, Any]:
        """Every run, and its difference from the first."""
        first, *others = self.runs
        numbers = (
            {
                "title": run.job.title,
                "gpus": run.job.deployment.all_gpus,
                **run.result.to_dict(),
                "largest_rate": run.largest_rate,
                "usd_per_million_tokens_at_largest_rate": run.usd_per_million_tokens,
            }
            for run in self.runs
        )
        changes = (
            {
                "difference_s": _mean_s(other) - _mean_s(first),
                "by_part_s": {
                    part: other.result.mean_parts_s[part] - first.result.mean_parts_s[part]
                    for part in _PARTS
                },
            }
            for other in others
        )
        return comparison_dict(self.runs, numbers, changes)

    def to_frame(self) -> pd.DataFrame:
        """One row per deployment: rates, latencies and prices."""
        return frame(
            [
                {
                    "run": run.name,
                    "gpus": run.job.deployment.all_gpus,
                    **flat(run.result),
                    "largest_rate_per_s": run.largest_rate,
                }
                for run in self.runs
            ]
        )

    def tables(self) -> list[Table]:
        """Numbers of all deployments, then the mean time of a request of each of the others."""
        names = [run.name for run in self.runs]
        rows = [cells(row) for row in self._rows()]
        first, *others = self.runs
        return [
            Table(self._heading(), "", columns(("",), names), rows),
            *(_parts_table(first, other) for other in others),
        ]

    def doubts(self) -> list[str]:
        """Why a comparison may mislead: the same job twice, or other traffic."""
        first, *others = self.runs
        found = []
        for other in others:
            if other.job == first.job:
                found.append(f"{other.name} is the same job as {first.name}")
            elif other.job.workload != first.job.workload:
                found.append(f"{other.name} serves other traffic than {first.name}")
        return found

    def page(self) -> AnswerPage:
        """Numbers beside each other, and where the time of a request goes."""
        first, *others = self.runs
        return AnswerPage(
            title=f"{first.name} against {', '.join(run.name for run in others)}",
            sentences=[
                *(difference_text(first, other) for other in others),
                *(f"{doubt}." for doubt in self.doubts()),
            ],
            tables=self.tables(),
        )

    def _heading(self) -> str:
        """The traffic, where it is that of all."""
        titles = {run.job.workload.title for run in self.runs}
        return titles.pop() if len(titles) == 1 else "Deployments"

    def _rows(self) -> list[tuple[str, ...]]:
        runs = self.runs
        found = [run.result for run in runs]
        times = list(zip(*(latencies(each) for each in found), strict=True))
        rows = [
            ("GPUs", *(str(run.job.deployment.all_gpus) for run in runs)),
            ("requests/s", *(f"{each.requests_per_s:.3g}" for each in found)),
            ("output tokens/s", *(f"{each.output_tokens_per_s:,.0f}" for each in found)),
            ("output tokens/s per GPU", *(f"{_per_gpu(run):,.0f}" for run in runs)),
            ("TTFT p50", *times[0]),
            ("TTFT p95", *times[1]),
            ("TPOT p50", *times[2]),
            ("TPOT p95", *times[3]),
            ("preemptions", *(f"{each.preemptions:,}" for each in found)),
            ("tokens in a replica's cache", *(f"{each.cache_tokens:,}" for each in found)),
        ]
        rows += self._of_objective()
        prices = [each.usd_per_million_tokens for each in found]
        rows += _known("USD per million output tokens", prices)
        rates = [run.largest_rate for run in runs]
        rows += _known("largest rate [requests/s]", rates)
        at_it = [run.usd_per_million_tokens for run in runs]
        return rows + _known("USD per million output tokens at it", at_it)

    def _of_objective(self) -> list[tuple[str, ...]]:
        """How many meet their objective; a row of its own, of limits, where these differ."""
        objectives = [run.job.workload.objective for run in self.runs]
        if not any(each.is_asked for each in objectives):
            return []
        texts = [objective_text(each) if each.is_asked else "none" for each in objectives]
        shares = [
            percent(run.result.good_share) if each.is_asked else ""
            for run, each in zip(self.runs, objectives, strict=True)
        ]
        met = ("requests that meet the objective", *shares)
        return [met] if len(set(texts)) == 1 else [("objective", *texts), met]


def _known(name: str, numbers: Sequence[float | None]) -> list[tuple[str, ...]]:
    """A row of numbers; none where nobody has one."""
    if all(number is None for number in numbers):
        return []
    return [(name, *("unknown" if number is None else f"{number:.3g}" for number in numbers))]


def _per_gpu(run: ServedRun) -> float:
    return run.result.output_tokens_per_s / run.job.deployment.all_gpus


def _mean_s(run: ServedRun) -> float:
    return run.result.end_to_end_s["mean"]


def difference_text(first: ServedRun, other: ServedRun) -> str:
    """A sentence on the mean time of a request and on throughput."""
    time = signed_percent(_mean_s(other) / _mean_s(first) - 1)
    tokens = signed_percent(_per_gpu(other) / _per_gpu(first) - 1)
    return f"{other.name}: {time} time per request, {tokens} output tokens/s per GPU."


def _parts_table(first: ServedRun, other: ServedRun) -> Table:
    """Parts of the mean request that sum to its time, in both deployments."""
    before, after = first.result.mean_parts_s, other.result.mean_parts_s
    pairs = [(text, before[part], after[part]) for part, text in _PARTS.items()]
    whole = ("mean request", _mean_s(first), _mean_s(other))
    rows = [
        cells(
            [
                name,
                format_seconds(old),
                format_seconds(new),
                signed_seconds(new - old),
                signed_percent((new - old) / _mean_s(first)),
            ]
        )
        for name, old, new in [*pairs, whole]
    ]
    heads = columns(
        ("time of a request",), (first.name, other.name, "difference", "of the request")
    )
    return Table(difference_text(first, other), "The parts sum to the mean request", heads, rows)


def serve_compare(
    jobs: Mapping[str, ServingJob] | Sequence[tuple[str, ServingJob]],
    *,
    largest_rates: bool = False,
    on_trial: Callable[[], None] | None = None,
) -> ServeCompareAnswer:
    """Compare deployments: throughput, latency, price, and what a request spends its time on.

    Args:
        jobs: Two or more serving jobs by name; in pairs, names may repeat.
        largest_rates: Whether to also find the largest rate at which each meets its objective.
        on_trial: Called after each run.

    Raises:
        InputError: There are fewer than two jobs, or one cannot run.
        DoesNotFitError: A model leaves no room for a cache; it says which.
    """
    from simulator.serving.bearable_rate import need_a_limit

    pairs = named_jobs(jobs)
    for _, job in pairs:
        need_serving(job)
        if largest_rates:
            need_a_limit(job.workload)
    return ServeCompareAnswer(
        [_run(name, job, largest_rates=largest_rates, on_trial=on_trial) for name, job in pairs]
    )


def _run(
    name: str, job: ServingJob, *, largest_rates: bool, on_trial: Callable[[], None] | None
) -> ServedRun:
    from simulator.serving.answers import answers_of
    from simulator.serving.bearable_rate import largest_rate
    from simulator.serving.cluster import serve

    deployment, workload = job.deployment, job.workload
    try:
        result = answers_of(serve(deployment, workload), deployment, workload)
    except DoesNotFitError as error:
        raise DoesNotFitError(f"{name}: {error}") from error
    if on_trial is not None:
        on_trial()
    if not largest_rates:
        return ServedRun(name, job, result)
    unit = deployment.unit
    bearable = largest_rate(unit, workload, on_trial)
    price = None if bearable.answers is None else bearable.answers.usd_per_million_tokens
    rate = bearable.rate * (deployment.all_gpus // unit.all_gpus)
    return ServedRun(name, job, result, rate, price)
