"""How far off were runs of a framework that were predicted before anybody here had seen them?"""

from __future__ import annotations

from typing import NamedTuple

from simulator.described.job import Job
from simulator.facts import shipped_facts
from simulator.results.step_error import framework_of


class UnseenRuns(NamedTuple):
    """What became of predictions at first sight.

    Attributes:
        framework: Whose runs they are: a stack, or :data:`simulator.results.step_error.EAGER`.
        runs: How many, of grade A and A-.
        sources: Where they are published.
        median_error: How far off the median one is, as a share of the measured step.
    """

    framework: str
    runs: int = 0
    sources: int = 0
    median_error: float | None = None

    @property
    def words(self) -> str:
        """The same in words."""
        if self.median_error is None:
            return "none"
        return f"{100 * self.median_error:.0f} % off (median of {self.runs})"


def unseen_runs_of(job: Job) -> UnseenRuns:
    """What became of predictions of runs of the job's framework (``make bands``)."""
    name = framework_of(job)
    known = shipped_facts("step_errors").get("first_sight", {})
    return UnseenRuns(name, **known.get(name, {}))
