"""Does a diagnosis find what a run does without saying?"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import simulator as sim
from simulator.cells import read_table
from simulator.errors import InputError
from simulator.facts import shipped_facts
from simulator.planning.observed_run import Observation, PredictionErrors, StepNumbers, phase_times
from simulator.planning.run_diagnosis import diagnose, errors_of, hidden_changes, suspects
from simulator.planning.unlisted_cause import unlisted_log_likelihood
from simulator.program.ir import Category
from simulator.results.simulation import run_step
from simulator.results.step_error import job_error
from simulator.results.students_t import skewed_t_quantile

ERRORS = PredictionErrors(common=0.015, each=0.03, memory=0.03)


@pytest.fixture(scope="module")
def job():
    document = {
        "model": "llama3.2-1b",
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
        "batch": {"global": 32, "micro": 4, "seq_len": 4096},
        "plan": {"tp": 2, "stack": "megatron-core"},
    }
    return sim.load_job(document)


@pytest.fixture(scope="module")
def before(job):
    return run_step(job)


@pytest.fixture(scope="module")
def tried(job, before):
    return suspects(job, before)


def test_what_may_be_hidden_is_the_same_wherever_it_is_simulated(job, before, tried):
    with ThreadPoolExecutor(1) as executor:
        assert suspects(job, before, executor=executor, processes=2) == tried


def test_no_timeline_is_kept_of_what_may_be_hidden(tried):
    assert {type(numbers) for each in tried for _, _, numbers in each.sizes} == {StepNumbers}


def diagnosed(job, before, tried, changed):
    """The hypotheses for a run that was really the changed job, all of it measured exactly."""
    after = run_step(job.replace(changed))
    phases = {category.value: seconds for category, seconds in after.breakdown_s.items()}
    times = phase_times(phases, after.step_time_s * (1 + 1e-9))
    observation = Observation(after.step_time_s, after.peak_reserved_bytes, times=times)
    return diagnose(job, before, tried, observation, ERRORS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"plan.recompute": "full"}, "activations are recomputed in full"),
        ({"plan.sequence_parallel": False}, "sequence parallelism is off"),
        ({"plan.stack.step_host": "200 ms"}, "every step waits for its data or its log"),
        ({"perturbations": [{"gpu": "0-7", "slowdown": 0.2}]}, "all GPUs are throttled or shared"),
    ],
)
def test_a_change_that_nobody_mentioned_is_the_likeliest_hypothesis(
    job, before, tried, changed, words
):
    found = diagnosed(job, before, tried, changed)
    assert found.hypotheses[0].words.startswith(words)


@pytest.mark.parametrize(
    "plan",
    [
        {"stack": "megatron-lm-2021", "zero": 0, "precision": "fp16"},
        {"stack": "deepspeed", "zero": 3},
        {"stack": "torch-fsdp", "zero": 3},
    ],
)
def test_a_slow_host_is_slow_in_all_that_it_does(plan):
    """Layers of 8 x 64 tokens leave a device nothing to do but wait, so a step is host work."""
    document = {
        "model": {"base": "gpt2", "layers": 24},
        "cluster": {"profile": "a100-sxm-80gb", "gpus": 1},
        "batch": {"global": 8, "micro": 8, "seq_len": 64},
        "plan": {"clip_gradients": False, **plan},
    }
    job = sim.load_job(document)
    slow = next(each for each in hidden_changes(job, 1.0) if "more slowly" in each.words)
    slower = job.replace(slow.variants[-1].fields)
    assert "4 times" in slow.variants[-1].words
    at_least = 4 * 0.85  # the update and the loss are the device's
    assert run_step(slower).step_time_s > at_least * run_step(job).step_time_s


def test_a_run_as_predicted_hides_nothing(job, before, tried):
    found = diagnosed(job, before, tried, {})
    assert found.nothing_probability > max(each.probability for each in found.hypotheses)
    assert found.is_explained


def test_probabilities_sum_to_one(job, before, tried):
    found = diagnose(job, before, tried, Observation(1.1 * before.step_time_s), ERRORS)
    total = sum(each.probability for each in found.hypotheses)
    total += found.nothing_probability + found.unlisted_probability
    assert total == pytest.approx(1)


def test_a_step_ten_times_as_long_is_explained_by_no_single_change(job, before, tried):
    found = diagnose(job, before, tried, Observation(10 * before.step_time_s), ERRORS)
    assert not found.is_explained


@pytest.mark.parametrize("ratio", [0.2, 0.9, 1.1, 10.0])
def test_the_surprise_of_a_step_is_the_square_of_its_logarithm_in_standard_deviations(
    job, before, ratio
):
    errors = PredictionErrors(common=0.03, each=0.04, memory=0.02, smallest_share=0.0)
    observation = Observation(ratio * before.step_time_s)
    expected = (math.log(ratio) / 0.05) ** 2
    assert observation.surprise(job, before, errors) == pytest.approx(expected)


@pytest.mark.parametrize("ratio", [0.1, 0.2, 5.0, 10.0])
def test_an_ordinary_error_does_not_explain_a_step_five_times_off(job, before, tried, ratio):
    observation = Observation(ratio * before.step_time_s)
    found = diagnose(job, before, tried, observation, errors_of(job, before))
    assert found.nothing_probability < 0.02
    assert found.is_inside is False


@pytest.mark.parametrize("ratio", [0.1, 0.2])
def test_a_step_faster_than_any_change_makes_it_has_a_cause_that_is_not_listed(
    job, before, tried, ratio
):
    observation = Observation(ratio * before.step_time_s)
    found = diagnose(job, before, tried, observation, errors_of(job, before))
    assert found.unlisted_probability > 0.9
    assert not found.is_explained


def test_a_run_that_is_faster_is_explained_by_what_is_faster_alone(job, before, tried):
    found = diagnose(job, before, tried, Observation(0.9 * before.step_time_s), ERRORS)
    assert found.better_than_nothing
    for each in found.better_than_nothing:
        assert each.result.step_time_s < before.step_time_s


def test_a_wait_and_an_error_of_the_scale_that_all_parts_share_are_told_apart(job, before):
    """Where all parts are 10 % longer, a common error explains them at once, not each alone."""
    parts = {category.value: 1.1 * seconds for category, seconds in before.breakdown_s.items()}
    whole = sum(parts.values())
    observation = Observation(whole, times=phase_times(parts, whole * (1 + 1e-9)))
    shared = PredictionErrors(common=0.1, each=0.01, memory=1)
    apart = PredictionErrors(common=0.01, each=0.01, memory=1)
    assert observation.surprise(job, before, shared) < 2
    assert observation.surprise(job, before, apart) > 9


def test_a_hidden_change_joins_the_perturbations_that_a_job_has(job):
    slowed = job.replace(perturbations=[{"gpu": 3, "slowdown": 0.5}])
    lists = [
        variant.fields["perturbations"]
        for hidden in hidden_changes(slowed, 1.0)
        for variant in hidden.variants
        if "perturbations" in variant.fields
    ]
    assert lists
    assert all(each[0]["gpu"] == 3 for each in lists)


def test_every_entry_of_the_list_says_how_common_it_is_and_what_settles_it():
    facts = shipped_facts("hidden_changes")
    for entry in facts["changes"]:
        assert entry["odds"] in facts["odds"]
        assert entry["check"].endswith((".", "?"))
        sizes = [variant.get("size") for variant in entry["variants"]]
        assert len(set(sizes)) == len(sizes)


def test_every_change_of_a_real_pair_is_on_the_list():
    pairs = read_table(Path("reports/data/hidden_change_pairs.csv"), ("change",))
    listed = {entry["change"] for entry in shipped_facts("hidden_changes")["changes"]}
    assert {pair["change"] for pair in pairs} <= listed


def test_errors_are_those_of_the_models_behind_band_and_probability_to_fit(job, before):
    """A band reaches the quantile of nine tenths times one standard deviation."""
    errors = errors_of(job, before)
    _, slow_s = before.step_time_band_s
    error = job_error(job)
    reach = skewed_t_quantile(0.9, error.freedom, error.skew)
    assert slow_s / before.step_time_s == pytest.approx(math.exp(reach * errors.common))
    spread = before.memory_spread
    assert (errors.memory, errors.memory_centre) == (spread.scale, spread.centre)
    usual_bytes = before.peak_device_bytes * math.exp(spread.centre)
    observation = Observation(before.step_time_s, usual_bytes, "device")
    assert observation.surprise(job, before, errors) == pytest.approx(0.0, abs=1e-9)


def test_a_share_that_is_given_holds_for_step_and_memory(job, before):
    errors = errors_of(job, before, 0.03)
    assert (errors.common, errors.memory) == (0.03, 0.03)


def test_a_phase_that_no_breakdown_has_is_refused():
    with pytest.raises(InputError, match="must name a category"):
        phase_times({"sleeping": 1.0}, 2.0)
    with pytest.raises(InputError, match="not be longer than the step"):
        phase_times({"forward": 3.0}, 2.0)


def test_a_backward_that_is_logged_alone_holds_what_is_recomputed_in_it(job):
    full = job.replace(**{"plan.recompute": "full"})
    step = run_step(full)
    backward_s, recompute_s = (
        step.breakdown_s[Category(each)] for each in ("backward", "recompute")
    )
    alone = phase_times({"backward": 1.0}, 2.0).predicted_s(full, step)
    assert alone == {"backward": backward_s + recompute_s}
    apart = phase_times({"backward": 1.0, "recompute": 0.5}, 2.0).predicted_s(full, step)
    assert apart == {"backward": backward_s, "recompute": recompute_s}


def test_a_part_that_no_listed_change_moves_so_has_a_cause_that_is_not_listed(job, before, tried):
    """All of the step is as predicted but for its forward and its update."""
    parts = {category.value: seconds for category, seconds in before.breakdown_s.items()}
    parts["optimizer"] *= 20
    parts["forward"] *= 0.5
    whole = sum(parts.values())
    observation = Observation(whole, times=phase_times(parts, whole * (1 + 1e-9)))
    found = diagnose(job, before, tried, observation, ERRORS)
    assert found.unlisted_probability > 0.95


def test_a_change_that_is_left_out_of_the_list_is_not_ascribed_to_another(job, before, tried):
    left = [each for each in tried if "recomputed in full" not in each.hidden.words]
    assert diagnosed(job, before, left, {"plan.recompute": "full"}).unlisted_probability > 0.9


def test_the_density_of_an_unlisted_cause_sums_to_one(job, before):
    """Over all logarithms of measured steps; on its scale that is the width of usual errors."""
    errors = PredictionErrors(common=0.2, each=0.1, memory=0.1, smallest_share=0.0)
    logs = np.arange(-40, 40, 0.01)
    densities = [
        math.exp(unlisted_log_likelihood(Observation(step_s), job, before, errors))
        for step_s in before.step_time_s * np.exp(logs)
    ]
    usual = math.sqrt(2 * math.pi) * math.hypot(0.2, 0.1)
    assert sum(densities) * 0.01 / usual == pytest.approx(1, rel=1e-3)
