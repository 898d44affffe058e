"""Which profile do own measured runs make of a system?

The runs are predicted, :mod:`simulator.results.own_runs` says what their errors tell, and they are
predicted once more with the numbers that follow, so that one sees what was learnt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simulator.calibrate.profile_text import SourcedValue, with_sourced_values
from simulator.described.job import Job
from simulator.described.load import load_profile, profile_file
from simulator.errors import InputError
from simulator.results.fit_probability import job_spread
from simulator.results.own_runs import (
    CONTRADICTS,
    Lesson,
    OwnRun,
    changes_of,
    implausible_step,
    lesson,
)
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.results.step_error import framework_of, job_error
from simulator.units import format_seconds

_FEWEST_TO_DISAGREE = 3
"""Runs of which one can contradict the others."""


@dataclass(frozen=True)
class Learnt:
    """A run before and after its system was calibrated.

    Attributes:
        run: As it was predicted before.
        after_s: The step, predicted after [s].
        band_before, band_after: Width of the band over the step, by time.
        contradicts: Whether it is far from what the other runs say.
    """

    run: OwnRun
    after_s: float
    band_before: float
    band_after: float
    contradicts: bool


@dataclass(frozen=True)
class OwnSystem:
    """What runs say of one system.

    Attributes:
        profile: Name or file of the profile that they were predicted with.
        framework: Whose runs they are.
        lesson: What they tell.
        fields: Numbers of the profile that say so, by path.
        runs: Each of them.
        skipped: Why rows of a table are not among them, by their name.
    """

    profile: str
    framework: str
    lesson: Lesson
    fields: dict[str, Any]
    runs: Sequence[Learnt]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def before(self) -> dict[str, Any]:
        """The same fields as the profile has them."""
        document = load_profile(self.profile).model_dump(mode="json", by_alias=True)
        return {path: _at(document, path) for path in self.fields}

    def text(self, reference: str) -> str:
        """The profile with what was learnt, each number with its source.

        Args:
            reference: Where the runs come from.

        Raises:
            InputError: The profile is laid out such that a value cannot be replaced alone.
        """
        file = profile_file(self.profile)
        numbers = {path: value for path, value in self.fields.items() if path != "own_runs"}
        values: dict[str, SourcedValue | str] = {
            path: SourcedValue(value, "fitted", reference) for path, value in numbers.items()
        }
        source = {"kind": "fitted", "reference": reference}
        values["own_runs"] = json.dumps({**self.fields["own_runs"], "source": source})
        return with_sourced_values(file.read_text(encoding="utf-8"), values, str(file))


def own_system(
    profile: str, jobs: Sequence[tuple[Job, OwnRun]], skipped: Mapping[str, str] | None = None
) -> OwnSystem:
    """What own runs say of a system; they are simulated once more.

    Args:
        profile: Name or file of the profile that they were predicted with.
        jobs: Each run with its job, at least one.
        skipped: Why other rows of their table are not among them, by name.

    Raises:
        InputError: The runs are of several frameworks, one is farther off than predictions are,
            or most contradict the others.
    """
    frameworks = Counter(framework_of(job) for job, _ in jobs)
    if len(frameworks) > 1:
        rule, hint = "runs of several frameworks", "calibrate a profile for each of them"
        raise InputError.single("framework", rule, ", ".join(frameworks), hint)
    (framework,) = frameworks
    first, runs = jobs[0][0], [run for _, run in jobs]
    _refuse_implausible(runs)
    prior = job_error(first)
    told = lesson(runs, prior, job_spread(first))
    _refuse_contradictory(runs, told)
    fields = told.fields(first.cluster.profile, framework, len(runs))
    learnt = [
        _learnt(job, run, changes_of(fields), misfit, can_disagree=len(runs) >= _FEWEST_TO_DISAGREE)
        for (job, run), misfit in zip(jobs, told.misfits, strict=True)
    ]
    return OwnSystem(profile, framework, told, fields, learnt, skipped or {})


def _refuse_implausible(runs: Sequence[OwnRun]) -> None:
    """A run that no error of a prediction explains is not what its job says."""
    found = (implausible_step(run.name, run.measured_s, run.predicted_s) for run in runs)
    if faults := [fault for fault in found if fault is not None]:
        raise InputError(faults)


def _refuse_contradictory(runs: Sequence[OwnRun], told: Lesson) -> None:
    """Of runs that do not agree, nobody can tell which are right."""
    apart = [abs(misfit) > CONTRADICTS for misfit in told.misfits]
    if len(runs) > 1 and 2 * sum(apart) > len(runs):
        rule = f"contradict one another: {'; '.join(f'{run.name} {_said(run)}' for run in runs)}"
        hint = "check their jobs and units, and leave out what is wrong"
        raise InputError.single("runs", rule, hint=hint)


def _said(run: OwnRun) -> str:
    measured, predicted = map(format_seconds, (run.measured_s, run.predicted_s))
    return f"took {measured} and is predicted to take {predicted}"


def _learnt(
    job: Job, run: OwnRun, changes: dict[str, Any], misfit: float, *, can_disagree: bool
) -> Learnt:
    before, after = run_step(job), run_step(job.replace(changes))
    contradicts = can_disagree and abs(misfit) > CONTRADICTS
    return Learnt(run, after.step_time_s, _width(before), _width(after), contradicts)


def _width(step: StepResult) -> float:
    """Width of the band of a step, over the step."""
    assert step.step_time_band_s is not None, "systems of one kind of GPUs have bands"
    low, high = step.step_time_band_s
    return (high - low) / step.step_time_s


def _at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[key]
    return document
