"""Why do steps of several jobs differ: by cause, in money, and in what was changed?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.api.comparison import comparison_dict, named_jobs
from simulator.api.one_step import simulate
from simulator.described.job import Job
from simulator.exporters.html.answer_tables import AnswerPage, Table, cells, columns
from simulator.results.simulation import Engine
from simulator.results.views.plain_data import fit_to_dict
from simulator.units import format_seconds, percent, signed_percent, signed_seconds

if TYPE_CHECKING:
    import pandas as pd

    from simulator.exporters.html.run_report import Run
    from simulator.results.ratio_error import GainError
    from simulator.results.views.difference import Difference

_SMALLEST_CHANGE = 1e-5
"""Shares of a step below this are no difference to print, where both times read the same."""
_SURE = 0.99
"""Higher probabilities are not told apart."""

PRICE_NAME = "USD per billion tokens"


@dataclass(frozen=True, repr=False)
class CompareAnswer(Answer):
    """Why steps differ, by causes that sum to the difference.

    Attributes:
        runs: Jobs by name, with their results; each is compared with the first.
        differences: One for each of the others.
        gains: How sure the gain of each of the others is; None where nothing is known of it: of
            several kinds of GPUs, and of the same job.
    """

    runs: Sequence[Run]
    differences: Sequence[Difference]
    gains: Sequence[GainError | None]

    def usd_per_billion_tokens(self, run: Run) -> float | None:
        """What a billion tokens cost at the prices of the job's campaign; None without [USD]."""
        from simulator.planning.campaign.training_run import gpu_usd_per_s

        price = gpu_usd_per_s(run.job)
        return None if price is None else 1e9 * price / run.result.tokens_per_s_per_gpu

    def price_row(self) -> list[str]:
        """The same of every run as text; empty where no run has a price."""
        prices = [self.usd_per_billion_tokens(run) for run in self.runs]
        if all(price is None for price in prices):
            return []
        return ["unknown" if price is None else f"{price:,.2f}" for price in prices]

    def to_dict(self) -> dict[str, Any]:
        """Every run, and its difference from the first."""
        numbers = (
            {
                "title": run.result.title,
                "step_time_s": run.result.step_time_s,
                "tokens_per_s_per_gpu": run.result.tokens_per_s_per_gpu,
                "mfu": run.result.mfu,
                "usd_per_billion_tokens": self.usd_per_billion_tokens(run),
                "peak_device_bytes": run.result.peak_device_bytes,
                **fit_to_dict(run.result),
                "breakdown_s": {c.value: s for c, s in run.result.breakdown_s.items()},
            }
            for run in self.runs
        )
        changes = (
            {
                "gain": each.gain,
                "gain_interval": gain and gain.interval,
                "faster_probability": gain and gain.faster_probability,
                "tokens_ratio": each.tokens_ratio,
                "difference_s": each.difference_s,
                "by_cause_s": {c.category.value: c.difference_s for c in each.causes},
            }
            for each, gain in zip(self.differences, self.gains, strict=True)
        )
        return comparison_dict(self.runs, numbers, changes)

    def to_frame(self) -> pd.DataFrame:
        """One row per cause and run: first_s, second_s, difference_s."""
        return frame(
            [
                {
                    "run": other.name,
                    "cause": cause.category.value,
                    "first_s": cause.first_s,
                    "second_s": cause.second_s,
                    "difference_s": cause.difference_s,
                }
                for other, each in zip(self.runs[1:], self.differences, strict=True)
                for cause in each.causes
            ]
        )

    def page(self) -> AnswerPage:
        """What a notebook shows; :meth:`write_html` writes the page with timelines."""
        first, *others = self.runs
        pairs = list(zip(others, self.differences, strict=True))
        surely = [gain_text(gain) for gain in self.gains]
        return AnswerPage(
            title=f"{first.name} against {', '.join(run.name for run in others)}",
            sentences=[
                f"{other.name}: {signed_percent(each.gain)} tokens/s per GPU{sure}."
                for (other, each), sure in zip(pairs, surely, strict=True)
            ],
            tables=[
                *self._price_tables(),
                *(_causes_table(first, other, each) for other, each in pairs),
            ],
        )

    def _price_tables(self) -> list[Table]:
        if not self.price_row():
            return []
        rows = [
            cells(row) for row in zip((r.name for r in self.runs), self.price_row(), strict=True)
        ]
        heads = columns(("run",), (PRICE_NAME,))
        return [Table("Money", "At the prices of the jobs' campaigns", heads, rows)]

    def write_html(self, path: str | Path) -> Path:
        """Write the page with waterfalls and timelines; returns its path."""
        from simulator.exporters.html.run_report import write_compare_report

        odds = [gain_text(gain) for gain in self.gains]
        write_compare_report(self.runs, path, prices=self.price_row(), odds=odds)
        return Path(path)


def gain_text(gain: GainError | None) -> str:
    """How sure a gain is, to follow it in a sentence; empty where nothing is known of it."""
    if gain is None:
        return ""
    low, high = gain.interval
    interval = f"(80 % interval: {signed_percent(low)} to {signed_percent(high)})"
    if gain.sure_sign:
        return f", cannot be {'slower' if gain.sure_sign > 0 else 'faster'} {interval}"
    odds = max(gain.faster_probability, 1 - gain.faster_probability)
    likely = f"over {percent(_SURE, 0)}" if odds > _SURE else percent(odds, 0)
    sure = f"{likely} likely {'faster' if gain.log_gain >= 0 else 'slower'}"
    return f", {sure} {interval}"


def _causes_table(first: Run, other: Run, found: Difference) -> Table:
    rows = [cells(row) for row in cause_rows(found)]
    heads = columns(("cause",), (first.name, other.name, "difference", "of the step"))
    return Table(
        f"{other.name} against {first.name}", "The rows sum to the difference", heads, rows
    )


def cause_rows(found: Difference) -> list[tuple[str, ...]]:
    """Texts of every cause, the largest first: as :func:`time_row` has them."""
    causes = sorted(found.causes, key=lambda cause: -abs(cause.difference_s))
    return [time_row(found, each.category.value, each.first_s, each.second_s) for each in causes]


def time_row(found: Difference, name: str, before_s: float, after_s: float) -> tuple[str, ...]:
    """Texts of a time in both steps: its difference, also as a share of the first step."""
    change_s = after_s - before_s
    times = format_seconds(before_s), format_seconds(after_s)
    if abs(change_s) < _SMALLEST_CHANGE * found.first_s and times[0] == times[1]:
        change_s = 0.0
    return name, *times, signed_seconds(change_s), signed_percent(change_s / found.first_s)


def compare(
    jobs: Mapping[str, Job] | Sequence[tuple[str, Job]], *, engine: Engine = "des"
) -> CompareAnswer:
    """Explain why steps differ; every job is compared with the first.

    If jobs train different numbers of tokens per GPU, times are scaled to the tokens of the first.

    Args:
        jobs: Two or more jobs by name; in pairs, names may repeat.
        engine: Engine that simulates the steps.

    Raises:
        InputError: There are fewer than two jobs, or one cannot run.
    """
    from simulator.exporters.html.run_report import Run
    from simulator.results.views.difference import difference

    runs = [Run(name, simulate(job, engine=engine), job) for name, job in named_jobs(jobs)]
    first, *others = runs
    differences = [difference(first.result, other.result) for other in others]
    gains = [
        _gain_error(first, other, each.gain)
        for other, each in zip(others, differences, strict=True)
    ]
    return CompareAnswer(runs, differences, gains)


def _gain_error(first: Run, second: Run, gain: float) -> GainError | None:
    from simulator.planning.changes.slower_hardware import is_on_slower_hardware
    from simulator.results.ratio_error import compared_step, gain_error

    before, after = (
        compared_step(run.job, run.result.step_time_s, run.result.breakdown_s)
        for run in (first, second)
    )
    if before is None or after is None or first.job == second.job:
        return None
    found = gain_error(before, after, gain)
    if is_on_slower_hardware(second.job, first.job):
        return found._replace(sure_sign=-1)
    if is_on_slower_hardware(first.job, second.job):
        return found._replace(sure_sign=1)
    return found
