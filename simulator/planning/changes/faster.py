"""Which single change would make training faster?

Gains are of one kind: both the changed job and the job itself are simulated, by the same engine.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.described.job import Job
from simulator.planning.changes.single_changes import Question, single_changes
from simulator.planning.changes.trials import OnTrial, Trial, Trials
from simulator.results.fit_probability import DEFAULT_RISK


class Reasons(NamedTuple):
    """What limits a plan, and what would help.

    Attributes:
        knobs: Changes of the plan that save time, the largest gain first.
        links: The same for links of twice the rate, which money buys.
    """

    knobs: tuple[Trial, ...]
    links: tuple[Trial, ...]


def what_ifs(job: Job, *, on_trial: OnTrial | None = None) -> tuple[Trial, ...]:
    """Changes on the GPUs there are, the largest gain first, replayed without contention.

    Doubling the microbatches also doubles the global batch, which decides what is learned; its
    gain says what the bubble and the reductions of a step cost.

    Raises:
        InputError: The job itself cannot run.
    """
    found = Trials(job, "replay", on_trial).of(single_changes(job, Question.FASTER))
    return tuple(sorted(found, key=lambda each: -each.gain))


def reasons(job: Job, *, risk: float = DEFAULT_RISK, on_trial: OnTrial | None = None) -> Reasons:
    """What would make a plan faster that the search for plans found: other fields, faster links.

    Steps are simulated with contention. ``risk`` decides which of them fit.

    Raises:
        InputError: The job cannot run.
    """
    trials = Trials(job, "des", on_trial, risk)

    def shorter(question: Question) -> tuple[Trial, ...]:
        found = trials.of(single_changes(job, question))
        saving = (each for each in found if each.saved_share > 0)
        return tuple(sorted(saving, key=lambda each: -each.saved_share))

    return Reasons(shorter(Question.UNSEARCHED), shorter(Question.LINKS))
