"""What is a student told whose model does not fit?"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.planning.changes.advice import explain_misfit
from simulator.planning.changes.helpful_changes import nearest_fit
from simulator.planning.changes.small_machine import is_small_machine, ladder
from simulator.planning.changes.trials import Trials
from simulator.results.simulation import run_step


def small(model: str, profile: str, gpus: int, **plan: Any) -> Job:
    return job_from_document(
        {
            "model": model,
            "cluster": {"profile": profile, "gpus": gpus},
            "batch": {"global": 2 * gpus, "seq_len": 2048},
            "plan": {"stack": "trl", "zero": 0, **plan},
        }
    )


@pytest.fixture(scope="module")
def one_card() -> Job:
    return small("llama3-8b", "rtx-4090", 1)


def test_one_consumer_card_is_told_to_train_adapters_on_four_bit_weights(one_card):
    found = nearest_fit(one_card)
    assert found.nearest is not None
    assert found.nearest.fits
    assert found.nearest.changes["plan.lora.base_precision"] == "nf4"
    assert not [path for path in found.nearest.changes if path.startswith("cluster")]


def test_every_rung_is_said_with_what_it_costs(one_card):
    text = explain_misfit(one_card, run_step(one_card, "replay"))
    rungs = ["recompute", "8-bit states", "LoRA", "QLoRA"]
    said = [line.strip().split(":")[0] for line in text.splitlines() if line.startswith("  ")]
    assert said == rungs
    assert "--set plan.lora.rank=16" in text


def test_a_rung_that_is_not_sure_to_fit_says_how_likely_it_is(one_card):
    found = ladder(Trials(one_card))
    tight = {
        name: f"tight ({100 * trial.fits_probability:.0f} % likely to fit)"
        for name, trial in zip(found.rungs, found.trials, strict=True)
        if 0.05 < trial.fits_probability < 0.95
    }
    text = explain_misfit(one_card, run_step(one_card, "replay"))
    said = dict(line.strip().split(": ") for line in text.splitlines() if line.startswith("  "))
    assert tight
    assert all(said[name].endswith(words) for name, words in tight.items())


def test_a_rung_that_is_not_needed_is_taken_back(one_card):
    """The states of adapters are small, whatever their format."""
    found = ladder(Trials(one_card))
    assert "8-bit states" in found.rungs
    assert found.answer is not None
    assert "plan.optimizer" not in found.answer.changes


def test_a_command_without_every_remedy_of_its_list_says_so(one_card):
    search = nearest_fit(one_card)
    assert search.ladder is not None
    text = explain_misfit(one_card, run_step(one_card, "replay"))
    assert "LoRA and QLoRA train adapters only" in text
    whole = [trial.changes for trial in search.ladder.trials]
    assert ("leaves out the remedies" in text) == (search.nearest.changes not in whole)


def test_two_cards_shard_a_model_that_one_cannot_hold():
    job = small("llama2-13b", "rtx-4090", 4)
    found = nearest_fit(job)
    assert found.nearest is not None
    assert found.nearest.changes["plan.zero"] == 3


def test_several_nodes_are_no_small_machine():
    assert not is_small_machine(small("llama3-8b", "a100-sxm-80gb", 16))
