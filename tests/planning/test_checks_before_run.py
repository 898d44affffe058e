"""What is worth a check before a run?"""

from __future__ import annotations

import math

import pytest

import simulator as sim


@pytest.fixture(scope="module")
def answer() -> sim.ChecksAnswer:
    job = sim.load_job("workloads/gpt2-1xa100.yaml", {"plan.recompute": "none"})
    return sim.checks(job, workers=1)


def test_the_first_check_is_the_one_of_the_largest_odds_times_effect(
    answer: sim.ChecksAnswer,
) -> None:
    weights = [each.weight for each in answer.found]
    assert weights == sorted(weights, reverse=True)


def test_a_cause_of_one_size_weighs_its_odds_times_the_logarithm_of_its_ratio(
    answer: sim.ChecksAnswer,
) -> None:
    odds = {"often": 3.0, "sometimes": 1.0, "seldom": 0.3}
    (full,) = [each for each in answer.found if each.words == "activations are recomputed in full"]
    assert full.weight == pytest.approx(odds[full.how_often] * math.log1p(full.step_change_share))


def test_a_check_says_what_the_changed_job_takes(answer: sim.ChecksAnswer) -> None:
    first = answer.found[0]
    changed = sim.simulate(answer.job.replace(first.change.fields))
    assert first.result.step_time_s == pytest.approx(changed.step_time_s)


def test_only_fields_that_the_job_gives_count_as_stated(answer: sim.ChecksAnswer) -> None:
    stated = {path for each in answer.found if each.is_stated for path in each.change.fields}
    assert "plan.recompute" in stated
    assert "plan.attention" not in stated
