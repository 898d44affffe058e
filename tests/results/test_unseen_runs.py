"""What a run is told of predictions at first sight, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from reports.make.fit.first_sight_facts import first_sight_errors
from simulator.described.load import load_job
from simulator.facts import shipped_facts
from simulator.results.unseen_runs import UnseenRuns, unseen_runs_of


@dataclass
class _Run:
    framework: str
    source: str
    measured_s: float
    predicted_s: float
    in_view: bool = False


def test_runs_in_view_do_not_count_and_errors_are_shares_of_the_measured_step():
    runs = [
        _Run("torch", "a", 2.0, 1.0), _Run("torch", "a", 1.0, 1.1), _Run("torch", "b", 1.0, 1.2),
        _Run("torch", "c", 1.0, 9.0, in_view=True), _Run("jax", "d", 1.0, 1.0, in_view=True),
    ]  # fmt: skip
    ((name, found),) = first_sight_errors(runs).items()
    assert (name, found["runs"], found["sources"]) == ("torch", 3, 2)
    assert found["median_error"] == pytest.approx(0.2)


def test_a_job_is_told_what_became_of_runs_of_its_framework():
    found = unseen_runs_of(load_job("llama3-70b-64xh100"))
    known = shipped_facts("step_errors")["first_sight"]["megatron-core"]
    assert found == UnseenRuns("megatron-core", **known)
    assert found.words.startswith(f"{100 * found.median_error:.0f} % off (median of ")


def test_of_a_framework_that_was_never_predicted_unseen_there_is_none():
    assert UnseenRuns("litgpt").words == "none"
    assert UnseenRuns("litgpt", 3, 1, 0.104).words == "10 % off (median of 3)"
