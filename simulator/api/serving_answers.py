"""How does a deployment serve its workload, and how are such runs told?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.errors import InputError
from simulator.exporters.html.answer_tables import AnswerPage
from simulator.serving.described import ServingJob
from simulator.serving.workload import Objective
from simulator.units import format_seconds, percent

if TYPE_CHECKING:
    import pandas as pd

    from simulator.serving.answers import Answers
    from simulator.serving.cluster import Served


@dataclass(frozen=True, repr=False)
class ServeAnswer(Answer):
    """A workload as a deployment serves it.

    Attributes:
        job: What was served.
        served: Requests and replicas.
        result: Rates, latencies and money: ``result.ttft_s["p95"]``.
    """

    job: ServingJob
    served: Served
    result: Answers

    @cached_property
    def recorded(self) -> Served:
        """The run with every engine step; served again if the steps were not kept."""
        from simulator.serving.cluster import serve as serve_once

        if any(self.served.steps):
            return self.served
        return serve_once(self.job.deployment, self.job.workload, record=True)

    @property
    def meets_objective(self) -> bool:
        """Whether as many requests meet the objective as it asks for; so if none is given."""
        return self.result.keeps_objective or not self.job.workload.objective.is_asked

    def to_dict(self) -> dict[str, Any]:
        """The deployment and the traffic in words, rates, percentiles of latencies [s], price."""
        titles = {"title": self.job.title, "workload": self.job.workload.title}
        return {**titles, **self.result.to_dict()}

    def to_frame(self) -> pd.DataFrame:
        """One row per request: when it came, its lengths, and its latencies."""
        return frame(
            [
                {
                    "number": request.number,
                    "arrival_s": request.arrival_s,
                    "prompt_tokens": request.prompt_tokens,
                    "output_tokens": request.output_tokens,
                    "cached_tokens": max(0, request.cached_tokens),
                    "preemptions": request.preemptions,
                    "wait_s": request.scheduled_s - request.arrival_s,
                    "ttft_s": request.ttft_s,
                    "tpot_s": request.tpot_s,
                    "end_to_end_s": request.end_to_end_s,
                }
                for request in self.served.requests
            ]
        )

    def figures(self) -> list[tuple[str, str]]:
        """Names, with their units, and values of the numbers that people read first."""
        return figures_of(self.result, self.job.workload.objective)

    def page(self) -> AnswerPage:
        """Rates, latencies, and a replica over time."""
        from simulator.exporters.html.serving_page import serving_page

        return serving_page(self.job, self.recorded, self.result, self.figures())

    def plot(self, path: str | Path) -> Path:
        """Draw batches, queue and cache of a replica over time; returns the picture's path."""
        from simulator.plots.serving import draw_serving

        replicas = self.job.deployment.replicas
        draw_serving(self.job.title, self.recorded.steps[0], path, replicas=replicas)
        return Path(path)

    def write_trace(self, path: str | Path) -> Path:
        """Write engine steps and the life of each request for Perfetto; returns the path."""
        from simulator.exporters.chrome_trace import write_serving_trace

        write_serving_trace(self.recorded, Path(path))
        return Path(path)


def figures_of(found: Answers, objective: Objective) -> list[tuple[str, str]]:
    """Names, with their units, and values of a run's numbers."""
    price = found.usd_per_million_tokens
    of_objective = [
        ("goodput [requests/s]", f"{found.goodput_requests_per_s:.3g}"),
        ("requests that meet the objective", percent(found.good_share)),
    ]
    lines = [
        ("requests", f"{found.requests:,}"),
        ("requests/s", f"{found.requests_per_s:.3g}"),
        ("output tokens/s", f"{found.output_tokens_per_s:,.0f}"),
        ("prompt and output tokens/s", f"{found.total_tokens_per_s:,.0f}"),
        *(of_objective if objective.is_asked else ()),
        ("tokens that fit in a replica's cache", f"{found.cache_tokens:,}"),
        ("prompt tokens found in the cache", percent(found.cached_share)),
        ("preemptions", f"{found.preemptions:,}"),
        ("engine steps", f"{found.steps:,}"),
    ]
    return lines if price is None else [*lines, ("USD per million output tokens", f"{price:.3g}")]


def serve(
    job: ServingJob, *, record: bool = False, on_ended: Callable[[int, int], None] | None = None
) -> ServeAnswer:
    """Serve a workload to its last token.

    Args:
        job: The deployment and its workload, from :func:`load_serving`.
        record: Whether to keep every engine step, for pictures, traces and pages. They serve again
            if it was not kept.
        on_ended: Called with how many more requests ended, and the number of all.

    Raises:
        InputError: A request is longer than the cache, or there are too many blocks to simulate.
        DoesNotFitError: The model leaves no room for a cache.
    """
    from simulator.serving.answers import answers_of
    from simulator.serving.cluster import serve as serve_once

    need_serving(job)
    served = serve_once(job.deployment, job.workload, record=record, on_ended=on_ended)
    return ServeAnswer(job, served, answers_of(served, job.deployment, job.workload))


def need_serving(job: object) -> None:
    """Refuse what is no serving job.

    Raises:
        InputError: It is none.
    """
    if not isinstance(job, ServingJob):
        hint = 'sim.load_serving("serving.yaml"), or a shipped name'
        raise InputError.single("job", "must be a ServingJob; load one first", job, hint)


def latencies(found: Answers) -> list[str]:
    """Texts of TTFT and TPOT, median and 95th percentile; empty where there are none."""
    spreads = (found.ttft_s, found.tpot_s)
    return [
        format_seconds(spread[key]) if key in spread else ""
        for spread in spreads
        for key in ("p50", "p95")
    ]


def flat(found: Answers) -> dict[str, Any]:
    """Numbers of a run as columns that end in their unit."""
    plain = found.to_dict()
    spreads = {"ttft_s", "tpot_s", "end_to_end_s"}
    return {
        "requests": found.requests,
        "requests_per_s": found.requests_per_s,
        "output_tokens_per_s": found.output_tokens_per_s,
        "good_share": found.good_share,
        **{
            f"{name.removesuffix('_s')}_{key}_s": value
            for name in sorted(spreads)
            for key, value in plain[name].items()
        },
        "preemptions": found.preemptions,
        "usd_per_million_tokens": found.usd_per_million_tokens,
    }


def objective_text(objective: Objective) -> str:
    """The limits of an objective: ``TTFT 1.00 s, TPOT 50.0 ms for 95 %``."""
    limits: Mapping[str, float | None] = {
        "TTFT": objective.ttft_s,
        "TPOT": objective.tpot_s,
        "end to end": objective.end_to_end_s,
    }
    texts = [f"{name} {format_seconds(s)}" for name, s in limits.items() if s is not None]
    return f"{', '.join(texts)} for {percent(objective.share, 0)}"
