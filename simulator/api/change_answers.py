"""How far may a job grow until memory ends, and which hardware number does it depend on?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.described.job import Job, job_yaml
from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Cell,
    Column,
    Meaning,
    Table,
    around_zero,
    cells,
    columns,
)
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.results.simulation import Engine
from simulator.units import (
    chance,
    format_bytes,
    percent,
    signed_percent,
)

if TYPE_CHECKING:
    import pandas as pd

    from simulator.planning.changes.profile_numbers import Sensitivity
    from simulator.planning.limits import Limit

_SMALLEST_EFFECT = 1e-6
"""Shares of a step below this are none."""
_MATTERS = 0.005
"""Shares of a step from which on a number that was never measured is worth a calibration."""
_ROUGH = ("assumed", "default")


@dataclass(frozen=True, repr=False)
class LimitsAnswer(Answer):
    """The largest microbatch, sequence and depth that fit, each raised alone."""

    job: Job
    risk: float
    limits: Sequence[Limit]

    def to_dict(self) -> dict[str, Any]:
        """Each limit."""
        return {"title": self.job.title, "limits": [asdict(limit) for limit in self.limits]}

    def to_frame(self) -> pd.DataFrame:
        """One row per field: now, largest, largest_even, step, peak_device_bytes."""
        return frame([asdict(limit) for limit in self.limits])

    def table(self) -> Table:
        """Each limit with what it takes."""
        numbers = (
            "now", "largest that fits", "in steps of", "device memory with it", "probability",
            "50 % likely to fit",
        )  # fmt: skip
        rows = [cells(_limit_row(limit)) for limit in self.limits]
        return Table("Limits", "Each is raised alone", columns(("field",), numbers), rows)

    def page(self) -> AnswerPage:
        """Each limit with what it takes."""
        sentences = [_limit_text(limit) for limit in self.limits if not limit.obstacle]
        return AnswerPage(
            title=f"What still fits: {self.job.title}",
            sentences=[
                *sentences,
                f"Accepted risk of running out of memory: {percent(self.risk)}.",
            ],
            tables=[self.table()],
            job_yaml=job_yaml(self.job),
            command="clustersim limits job.yaml",
        )


def _limit_text(limit: Limit) -> str:
    if not limit.largest:
        return f"No value of {limit.field} fits."
    most = "more than" if limit.is_open else "at most"
    return f"{limit.field} may be {most} {limit.largest:,}."


def _limit_row(limit: Limit) -> tuple[str, ...]:
    if limit.obstacle:
        return limit.field, str(limit.now), "cannot be changed", "", "", "", ""
    now, step, even = str(limit.now), str(limit.step), str(limit.largest_even or "none")
    if not limit.largest:
        return limit.field, now, "none", step, "", "", even
    largest = f"more than {limit.largest}" if limit.is_open else str(limit.largest)
    held, probability = format_bytes(limit.peak_device_bytes), chance(limit.fits_probability)
    return limit.field, now, largest, step, held, probability, even


def limits(
    job: Job, *, risk: float = DEFAULT_RISK, on_trial: Callable[[], None] | None = None
) -> LimitsAnswer:
    """Find the largest microbatch, sequence length and number of layers that fit, each alone.

    Args:
        job: The job to enlarge.
        risk: Accepted probability of running out of memory.
        on_trial: Called after each simulation.

    Raises:
        InputError: The job itself cannot run.
    """
    from simulator.planning.limits import limits as limits_of

    return LimitsAnswer(job, risk, limits_of(job, risk=risk, on_trial=on_trial))


@dataclass(frozen=True, repr=False)
class SensitivityAnswer(Answer):
    """Effect of every number of the hardware profile on the step, largest first.

    Attributes:
        job: The job.
        share: Relative change of each number, down and up.
        numbers: All numbers that were changed.
    """

    job: Job
    share: float
    numbers: Sequence[Sensitivity]

    def largest(self, count: int) -> list[Sensitivity]:
        """The numbers with the largest effects, without those that have none."""
        return [each for each in self.numbers[:count] if each.effect > _SMALLEST_EFFECT]

    def to_dict(self) -> dict[str, Any]:
        """Every number with its two effects."""
        numbers = [asdict(each) for each in self.numbers]
        return {"job": self.job.title, "share": self.share, "numbers": numbers}

    def to_frame(self) -> pd.DataFrame:
        """One row per number: field, value, source, lower and higher (shares of the step)."""
        return frame([asdict(each) for each in self.numbers])

    def count_text(self) -> str:
        """How many numbers were changed, and how many of them had no effect."""
        without = sum(each.effect <= _SMALLEST_EFFECT for each in self.numbers)
        return f"{len(self.numbers)} numbers changed, {without} of them without effect on this job."

    def to_calibrate(self, top: int = 15) -> Sensitivity | None:
        """The most important number that was never measured."""
        return next((each for each in self.largest(top) if each.source in _ROUGH), None)

    def calibration_text(self, top: int = 15) -> str:
        """What to calibrate first, or that it is not worth it; empty if all is measured."""
        rough = self.to_calibrate(top)
        if rough is None:
            return ""
        moves = f"moves the step by up to {percent(rough.effect, 2)}"
        if rough.effect < _MATTERS:
            return f"No assumed number matters: {rough.field} ({rough.source}) only {moves}."
        return f"Calibrate first: {rough.field} ({rough.source}), which {moves}."

    def page(self) -> AnswerPage:
        """A bar to either side for every number, and what to calibrate first."""
        shown = self.largest(30)
        most = max((each.effect for each in shown), default=0.0)
        rows = [
            [
                Cell(each.field),
                Cell(each.source),
                Cell(value_text(each)),
                Cell(change_text(each.lower)),
                around_zero(each.lower, most, "less"),
                Cell(change_text(each.higher)),
                around_zero(each.higher, most, "more"),
            ]
            for each in shown
        ]
        less, more = f"{percent(self.share, 0)} less", f"{percent(self.share, 0)} more"
        heads = [*columns(("number", "source"), ("value", less))]
        heads += [Column("", "bars"), Column(more, "number"), Column("", "bars")]
        table = Table(
            "Change of the step time",
            f"The dashed line is no change; each side spans {percent(most, 2)}",
            heads,
            rows,
            (("shorter step", Meaning.GAIN), ("longer step", Meaning.LOSS)),
            (self.count_text(),),
        )
        return AnswerPage(
            title=f"Most important numbers of the profile: {self.job.title}",
            sentences=list(self._sentences(shown)),
            tables=[table],
            job_yaml=job_yaml(self.job),
            command="clustersim sensitivity job.yaml --html sensitivity.html",
        )

    def _sentences(self, shown: Sequence[Sensitivity]) -> list[str]:
        if not shown:
            return ["No number of the profile has an effect on this job."]
        first = shown[0]
        found = [
            f"{first.field} matters most: a change of {percent(self.share, 0)} moves the step by "
            f"up to {percent(first.effect, 1)}."
        ]
        measured = "Every number with an effect has a source better than an assumption."
        return [*found, self.calibration_text(30) or measured]


def value_text(found: Sensitivity) -> str:
    """The number as files have it."""
    return found.value if isinstance(found.value, str) else f"{found.value:.4g}"


def change_text(change: float | None) -> str:
    """A change of the step time as people read it."""
    return "not valid" if change is None else signed_percent(change, 2)


def sensitivity(
    job: Job,
    *,
    share: float = 0.1,
    engine: Engine = "des",
    on_trial: Callable[[int, int], None] | None = None,
) -> SensitivityAnswer:
    """Find the numbers of the hardware profile that matter most for the job.

    Args:
        job: The job to analyse.
        share: Relative change of each number, down and up.
        engine: ``replay`` is faster, without contention.
        on_trial: Called with the count of finished numbers and their total.

    Raises:
        InputError: The job cannot run.
    """
    from simulator.planning.changes.profile_numbers import sensitivities

    found = sensitivities(job, share=share, engine=engine, on_trial=on_trial)
    return SensitivityAnswer(job, share, found)
