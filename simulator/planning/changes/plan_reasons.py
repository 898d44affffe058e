"""What limits the fastest plan of a search, and what would help: other fields, faster links?

The search has simulated that plan, so only its changes are; processes simulate some of them each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from simulator.described.job import Job
from simulator.planning.changes.single_changes import Change, Question, single_changes
from simulator.planning.changes.trials import Baseline, Comparison, OnTrial, Trial, Trials
from simulator.planning.search.search import PlanChoice
from simulator.results.fit_probability import DEFAULT_RISK


class Reasons(NamedTuple):
    """What limits a plan, and what would help.

    Attributes:
        knobs: Changes of the plan that save time, the largest gain first.
        links: The same for links of twice the rate, which money buys.
    """

    knobs: tuple[Trial, ...]
    links: tuple[Trial, ...]


def reasons(job: Job, *, risk: float = DEFAULT_RISK, on_trial: OnTrial | None = None) -> Reasons:
    """What would make a plan faster that the search for plans found: other fields, faster links.

    Steps are simulated with contention. ``risk`` decides which of them fit.

    Raises:
        InputError: The job cannot run.
    """
    return _reasons(Trials(job, "des", on_trial, risk))


def begin_reasons(
    job: Job,
    found: PlanChoice,
    risk: float,
    executor: Executor | None,
    parts: int = 1,
    on_trial: OnTrial | None = None,
) -> Callable[[], Reasons]:
    """The same, simulated by an executor from now on, or else when they are asked for.

    Args:
        job: Whose plan was searched.
        found: What the search says about it.
        risk: Decides which changes fit.
        executor: Simulates them; this process if None.
        parts: How many it simulates at a time.
        on_trial: Called after each; where an executor simulates them once, when it is waited for.
    """
    job = job.replace(found.changes)
    baseline = Baseline(
        step_time_s=found.step_time_s,
        tokens_per_s_per_gpu=job.batch.tokens / found.step_time_s / job.cluster.gpus,
        peak_device_bytes=found.peak_device_bytes,
    )
    if executor is None:
        return partial(_reasons, Comparison(job, baseline, "des", on_trial, risk))
    # Links are known at once; to find the other changes takes a while.
    links = _begin(job, baseline, risk, Question.LINKS, executor, parts=1)
    knobs = _begin(job, baseline, risk, Question.UNSEARCHED, executor, parts)

    def answered() -> Reasons:
        if on_trial:
            on_trial()
        return Reasons(knobs(), links())

    return answered


def _reasons(trials: Comparison) -> Reasons:
    return Reasons(_answer(trials, Question.UNSEARCHED), _answer(trials, Question.LINKS))


def _answer(trials: Comparison, question: Question) -> tuple[Trial, ...]:
    changes = [*single_changes(trials.job, question)]
    return _sorted(trials.shorter(changes), changes)


def _begin(
    job: Job, baseline: Baseline, risk: float, question: Question, executor: Executor, parts: int
) -> Callable[[], tuple[Trial, ...]]:
    """The same, in turn in each of several parts."""
    changes = [*single_changes(job, question)]
    begun = [
        executor.submit(_shorter, job, baseline, risk, changes[number::parts])
        for number in range(min(parts, len(changes)))
    ]
    return lambda: _sorted((trial for part in begun for trial in part.result()), changes)


def _shorter(job: Job, baseline: Baseline, risk: float, changes: Sequence[Change]) -> list[Trial]:
    return [*Comparison(job, baseline, "des", risk=risk).shorter(changes)]


def _sorted(found: Iterable[Trial], changes: Sequence[Change]) -> tuple[Trial, ...]:
    """Changes that save time, the largest saving first; of equal ones the first of the list."""
    place = {change.words: number for number, change in enumerate(changes)}
    return tuple(sorted(found, key=lambda each: (-each.saved_share, place[each.words])))
