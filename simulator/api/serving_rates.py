"""Which rates does a deployment sustain: over rates, split by split, and with how many GPUs?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.api.serving_answers import flat, latencies, need_serving
from simulator.described.job import job_yaml
from simulator.errors import InputError
from simulator.exporters.html.answer_tables import AnswerPage, Table, cells, columns
from simulator.serving.described import ServingJob
from simulator.units import percent

if TYPE_CHECKING:
    import pandas as pd

    from simulator.serving.answers import Answers
    from simulator.serving.bearable_rate import Bearable, Choice

RATES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Requests per second that a sweep tries by default."""
MISSES = "One replica misses the objective at any rate: raise tp or relax the limits."


@dataclass(frozen=True, repr=False)
class ServeSweepAnswer(Answer):
    """Latencies and goodput over request rates.

    Attributes:
        job: What was served.
        runs: Rates [requests/s] with what came of each.
    """

    job: ServingJob
    runs: Sequence[tuple[float, Answers]]

    def to_dict(self) -> dict[str, Any]:
        """One row per rate."""
        return {"rows": [{"rate": rate, **found.to_dict()} for rate, found in self.runs]}

    def to_frame(self) -> pd.DataFrame:
        """One row per rate; percentiles in columns such as ``ttft_p95_s``."""
        return frame([{"rate_per_s": rate, **flat(found)} for rate, found in self.runs])

    def table(self) -> Table:
        """Each rate with its throughput and latencies."""
        is_asked = self.job.workload.objective.is_asked
        heads = [
            "requests/s", "output tokens/s", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95",
            *(["meet the objective"] if is_asked else []),
        ]  # fmt: skip
        rows = [
            cells(
                [
                    f"{rate:g}",
                    f"{found.output_tokens_per_s:,.0f}",
                    *latencies(found),
                    *([percent(found.good_share)] if is_asked else []),
                ]
            )
            for rate, found in self.runs
        ]
        return Table("Request rates", "At least a minute of each", columns((), heads), rows)

    def page(self) -> AnswerPage:
        """Each rate with its throughput and latencies."""
        return AnswerPage(
            title=f"{self.job.title}: other request rates",
            sentences=self._sentences(),
            tables=[self.table()],
            job_yaml=job_yaml(self.job),
            command="clustersim serve sweep job.yaml",
        )

    def _sentences(self) -> list[str]:
        objective = self.job.workload.objective
        if not objective.is_asked:
            return [f"{len(self.runs)} request rates; the job sets no objective."]
        met = [rate for rate, found in self.runs if found.keeps_objective]
        if not met:
            return ["None of the rates meets the objective."]
        return [f"The largest of the rates that meets the objective is {max(met):g} requests/s."]


def serve_sweep(
    job: ServingJob, rates: Sequence[float] = RATES, *, on_trial: Callable[[], None] | None = None
) -> ServeSweepAnswer:
    """Serve a workload at several mean rates, each for at least a minute.

    A trace is played faster or slower, gamma arrivals stay bursty, all others are Poisson.

    Args:
        job: The deployment and its workload.
        rates: Mean rates to try [requests/s].
        on_trial: Called after each rate.

    Raises:
        InputError: There is no rate, or one is not positive.
    """
    from simulator.serving.bearable_rate import at_rate

    need_serving(job)
    if not rates or not all(0 < rate < math.inf for rate in rates):
        hint = "for example 1,2,4"
        raise InputError.single("rates", "must be positive numbers", list(rates), hint)
    runs = []
    for rate in rates:
        runs.append((rate, at_rate(job.deployment, job.workload, rate)))
        if on_trial is not None:
            on_trial()
    return ServeSweepAnswer(job, runs)


@dataclass(frozen=True, repr=False)
class ServePlanAnswer(Answer):
    """Every split of the GPUs, the one that sustains the largest rate first.

    Attributes:
        job: What was split.
        choices: Splits: ``settings``, ``rate`` [requests/s], ``answers`` at it, and the ``reason``
            of one that sustains none.
    """

    job: ServingJob
    choices: Sequence[Choice]

    @property
    def best(self) -> ServingJob | None:
        """The job with the best split; None if none sustains any rate."""
        if not self.choices[0].rate:
            return None
        return self.job.replace(
            {f"deployment.{name}": value for name, value in self.choices[0].settings.items()}
        )

    def launch_line(self, choice: Choice) -> str:
        """The command that starts a split; empty where its engine has none that says it all."""
        from simulator.serving.launch.launch_commands import launch_line

        chosen = self.job.deployment.model_copy(update={**choice.settings, "attention_dp": 1})
        try:
            return launch_line(chosen, chosen.model.name)
        except InputError:
            return ""

    def to_dict(self) -> dict[str, Any]:
        """One row per split, with the command that starts it."""
        return {
            "rows": [
                {
                    **choice.settings,
                    "rate": choice.rate,
                    "launch": self.launch_line(choice),
                    "reason": choice.reason,
                    "answers": choice.answers and choice.answers.to_dict(),
                }
                for choice in self.choices
            ]
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per split: tp, pp, rate_per_s, latencies at that rate, reason."""
        return frame(
            [
                {
                    **choice.settings,
                    "rate_per_s": choice.rate,
                    **(flat(choice.answers) if choice.answers else {}),
                    "reason": choice.reason,
                }
                for choice in self.choices
            ]
        )

    def table(self) -> Table:
        """Each split with the largest rate that it sustains, and its latencies there."""
        heads = ("tp", "pp", "replicas", "requests/s", "TTFT p95", "TPOT p95")
        rows = [cells(self._row(choice)) for choice in self.choices]
        caption = "The largest rate of each, and its latencies there"
        return Table("Splits", caption, [*columns((), heads), *columns(("",))], rows)

    def _row(self, choice: Choice) -> list[str]:
        tp, pp = choice.settings["tp"], choice.settings["pp"]
        times = latencies(choice.answers)[1::2] if choice.answers else ["", ""]
        replicas = self.job.deployment.gpus // (tp * pp)
        return [str(tp), str(pp), str(replicas), f"{choice.rate:.3g}", *times, choice.reason]

    def page(self) -> AnswerPage:
        """Every split with its largest rate."""
        best = self.choices[0]
        found = f"tp {best.settings['tp']}, pp {best.settings['pp']}"
        first = f"Best: {found}, which sustains {best.rate:.3g} requests/s."
        launch = self.launch_line(best)
        return AnswerPage(
            title=f"{self.job.title}: the largest rate of each tp and pp",
            sentences=[first, *([f"Launch: {launch}"] if launch else [])]
            if best.rate
            else [MISSES],
            tables=[self.table()],
            job_yaml=job_yaml(self.job),
            command="clustersim serve plan job.yaml",
        )


def serve_plan(
    job: ServingJob, *, on_split: Callable[[int], None] | None = None
) -> ServePlanAnswer:
    """Rank every tp and pp by the request rate that it sustains.

    Args:
        job: The deployment, its workload, and an objective to keep to.
        on_split: Called after each split with the number of all.

    Raises:
        InputError: The objective sets no limit.
    """
    from simulator.serving.bearable_rate import need_a_limit, ranked_splits

    need_serving(job)
    need_a_limit(job.workload)
    return ServePlanAnswer(job, ranked_splits(job, on_split))


@dataclass(frozen=True, repr=False)
class ServeCapacityAnswer(Answer):
    """The largest rate that a deployment sustains, and the GPUs for another.

    Attributes:
        job: What was asked about.
        unit: The largest rate of one replica [requests/s], and the run at it.
        wanted_rate: The rate to serve [requests/s]; None if none was given.
    """

    job: ServingJob
    unit: Bearable
    wanted_rate: float | None

    @property
    def rate(self) -> float:
        """The largest rate of all GPUs of the deployment [requests/s]."""
        deployment = self.job.deployment
        return self.unit.rate * (deployment.all_gpus // deployment.unit.all_gpus)

    @property
    def gpus(self) -> int | None:
        """The fewest GPUs for the wanted rate; None if there is none, or no number suffices."""
        if self.wanted_rate is None or not self.unit.rate:
            return None
        return math.ceil(self.wanted_rate / self.unit.rate) * self.job.deployment.unit.all_gpus

    @property
    def usd_per_hour(self) -> float | None:
        """Price of these GPUs; None without a price, or without a rate."""
        price = self.job.deployment.usd_per_gpu_hour
        return None if price is None or self.gpus is None else price * self.gpus

    def to_dict(self) -> dict[str, Any]:
        """Rates, GPUs, and the run of one replica at its largest rate."""
        return {
            "rate_per_replica": self.unit.rate,
            "rate": self.rate,
            "gpus_per_replica": self.job.deployment.unit.all_gpus,
            "gpus": self.gpus,
            "usd_per_hour": self.usd_per_hour,
            "answers_of_a_replica": self.unit.answers and self.unit.answers.to_dict(),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row: the rates, the GPUs, and the latencies of a replica at its largest rate."""
        plain = {
            "rate_per_replica_per_s": self.unit.rate,
            "rate_per_s": self.rate,
            "gpus": self.gpus,
            "usd_per_hour": self.usd_per_hour,
        }
        return frame([{**plain, **(flat(self.unit.answers) if self.unit.answers else {})}])

    def figures(self) -> list[tuple[str, str]]:
        """Names, with their units, and values."""
        deployment, found = self.job.deployment, self.unit.answers
        lines = [
            ("requests/s that a replica sustains", f"{self.unit.rate:.3g}"),
            ("GPUs per replica", str(deployment.unit.all_gpus)),
            (f"requests/s that {deployment.all_gpus} GPUs sustain", f"{self.rate:.3g}"),
        ]
        if self.wanted_rate is not None:
            needed = "none" if self.gpus is None else str(self.gpus)
            lines.append((f"GPUs for {self.wanted_rate:g} requests/s", needed))
        if self.usd_per_hour is not None:
            lines.append(("USD per hour for them", f"{self.usd_per_hour:,.2f}"))
        if found is not None and found.usd_per_million_tokens is not None:
            price = f"{found.usd_per_million_tokens:.3g}"
            lines.append(("USD per million output tokens at the largest rate", price))
        return lines

    def page(self) -> AnswerPage:
        """The largest rate, and the GPUs for the wanted one."""
        enough = self.gpus is not None
        answer = f"{self.gpus} GPUs serve {self.wanted_rate or 0:g} requests/s." if enough else ""
        largest = f"A replica sustains {self.unit.rate:.3g} requests/s."
        return AnswerPage(
            title=f"Capacity: {self.job.title}",
            sentences=[*([answer] if answer else []), largest if self.unit.rate else MISSES],
            tables=[
                Table("Capacity", "", columns(("",), ("",)), [cells(f) for f in self.figures()])
            ],
            job_yaml=job_yaml(self.job),
            command="clustersim serve capacity job.yaml",
        )


def serve_capacity(
    job: ServingJob, rate: float | None = None, *, on_trial: Callable[[], None] | None = None
) -> ServeCapacityAnswer:
    """Find the largest request rate, and the fewest GPUs for a rate.

    Args:
        job: The deployment, its workload, and an objective to keep to.
        rate: Rate to serve [requests/s].
        on_trial: Called after each rate that is tried.

    Raises:
        InputError: The objective sets no limit, or every rate keeps to it.
    """
    from simulator.serving.bearable_rate import largest_rate

    need_serving(job)
    if rate is not None and not 0 < rate < math.inf:
        raise InputError.single("rate", "must be a positive number", rate, "for example 50")
    unit = largest_rate(job.deployment.unit, job.workload, on_trial)
    return ServeCapacityAnswer(job, unit, rate)
