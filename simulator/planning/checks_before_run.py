"""Which hidden changes would move a prediction most, before anything has run?

The list is that of :mod:`simulator.planning.run_diagnosis`. Ignores that two may happen together.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.described.job import Job
from simulator.planning.changes.single_changes import Change
from simulator.planning.observed_run import StepNumbers
from simulator.planning.run_diagnosis import Suspect
from simulator.results.step import StepResult


@dataclass(frozen=True)
class Check:
    """Something to settle before a prediction is relied on.

    Attributes:
        words: What may be otherwise than the job says, in the middle one of its sizes.
        how_often: How often runs that surprise have it: often, sometimes or seldom (assumption).
        check: What settles it.
        change: The new fields, ready for :meth:`Job.replace`.
        is_stated: Whether the job's own document gives one of those fields, so that its author
            has thought of it.
        result: What the step of the changed job says.
        step_change_share: How much longer its step is, as a share of the predicted one.
        weight: Its odds times the mean logarithm of the ratio of steps over all its sizes, without
            sign: checks are ranked by it.
    """

    words: str
    how_often: str
    check: str
    change: Change
    is_stated: bool
    result: StepNumbers
    step_change_share: float
    weight: float


def checks_before_run(job: Job, before: StepResult, tried: Sequence[Suspect]) -> tuple[Check, ...]:
    """Every hidden change that a job may have, the one that is most worth a check first.

    Args:
        job: What is to run.
        before: Its prediction.
        tried: What may be hidden, simulated.
    """
    found = [_check(job, each, before) for each in tried]
    return tuple(sorted(found, key=lambda each: (-each.weight, each.words)))


def _check(job: Job, suspect: Suspect, before: StepResult) -> Check:
    by_effect = sorted(suspect.sizes, key=lambda size: _moved(size[2], before))
    change, _, result = by_effect[(len(by_effect) - 1) // 2]
    effect = statistics.fmean(_moved(each, before) for _, _, each in suspect.sizes)
    return Check(
        words=change.words,
        how_often=suspect.hidden.how_often,
        check=suspect.hidden.check,
        change=change,
        is_stated=any(_is_stated(job.document, path.split(".")) for path in change.fields),
        result=result,
        step_change_share=result.step_time_s / before.step_time_s - 1,
        weight=suspect.hidden.odds * effect,
    )


def _is_stated(document: Mapping[str, Any], path: Sequence[str]) -> bool:
    inner: Any = document
    for name in path:
        if not isinstance(inner, Mapping) or name not in inner:
            return False
        inner = inner[name]
    return True


def _moved(result: StepNumbers, before: StepResult) -> float:
    return abs(math.log(result.step_time_s / before.step_time_s))
