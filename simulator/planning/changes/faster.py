"""Which single change would make training faster?

Gains are of one kind: both the changed job and the job itself are simulated, by the same engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.described.job import Job
from simulator.planning.changes.single_changes import Question, single_changes
from simulator.planning.changes.trials import OnTrial, Trials
from simulator.results.verdict import WhatIf


@dataclass(frozen=True)
class Knob:
    """One change of the best plan.

    Attributes:
        changes: Ready for :meth:`Job.replace`.
        gain: Share of the step that it saves.
        fits: Whether the changed job fits.
    """

    changes: Mapping[str, Any]
    gain: float
    fits: bool


@dataclass(frozen=True)
class Reasons:
    """What limits a plan, and what would help.

    Attributes:
        knobs: Changes of the plan that save time, the largest gain first.
        links: The same for links of twice the rate, which money buys.
    """

    knobs: tuple[Knob, ...]
    links: tuple[Knob, ...]


def what_ifs(job: Job, *, on_trial: OnTrial | None = None) -> tuple[WhatIf, ...]:
    """Changes on the GPUs there are, the largest gain first, replayed without contention.

    Doubling the microbatches also doubles the global batch, which decides what is learned; its
    gain says what the bubble and the reductions of a step cost.

    Args:
        job: Where to start from.
        on_trial: Called after each simulated change, for progress.

    Raises:
        InputError: The job itself cannot run.
    """
    trials = Trials(job, "replay", on_trial)
    found = [
        WhatIf(
            words=each.change.words,
            changes=each.fields,
            gain=each.tokens_per_s_per_gpu / trials.base.tokens_per_s_per_gpu - 1,
            step_time_s=each.step_time_s,
            peak_device_bytes=each.peak_device_bytes,
            fits=each.fits,
        )
        for each in trials.of(single_changes(job, Question.FASTER))
    ]
    return tuple(sorted(found, key=lambda each: -each.gain))


def reasons(job: Job, *, on_trial: OnTrial | None = None) -> Reasons:
    """What would make a plan faster that the search for plans found: other fields, faster links.

    Steps are simulated with contention.

    Args:
        job: With the best plan.
        on_trial: Called after each simulated change, for progress.

    Raises:
        InputError: The job cannot run.
    """
    trials = Trials(job, "des", on_trial)
    return Reasons(*(_knobs(trials, each) for each in (Question.UNSEARCHED, Question.LINKS)))


def _knobs(trials: Trials, question: Question) -> tuple[Knob, ...]:
    found = []
    for each in trials.of(single_changes(trials.job, question)):
        gain = 1 - each.step_time_s / trials.base.step_time_s
        if gain > 0:
            found.append(Knob(each.fields, gain, each.fits))
    return tuple(sorted(found, key=lambda knob: -knob.gain))
