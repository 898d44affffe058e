"""clustersim rl: a step of reinforcement learning."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.planning.test_reinforcement import DOCUMENT


@pytest.fixture
def rl_file(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT), encoding="utf-8")
    return path


def test_a_step_is_told_by_its_phases_and_how_far_off_such_predictions_are(clustersim, rl_file):
    outcome = clustersim("rl", rl_file)
    assert outcome.code == 0
    for words in ("step time", "generation's tail", "log-probabilities", "training"):
        assert words in outcome.out
    assert "31 % too short" in outcome.err


def test_the_document_is_that_of_the_function(clustersim, rl_file):
    document = json.loads(clustersim("rl", rl_file, "--json").out)
    assert document["step_time_s"] == pytest.approx(sum(document["phases_s"].values()))


def test_pictures_and_pages_are_written(clustersim, rl_file, tmp_path):
    picture, page = tmp_path / "step.png", tmp_path / "step.html"
    apart = ("--set", "generation.gpus=8", "--set", "order=one-step-off")
    assert clustersim("rl", rl_file, *apart, "--plot", picture, "--html", page).code == 0
    assert picture.stat().st_size > 10_000
    assert "A step of reinforcement learning" in page.read_text(encoding="utf-8")


def test_a_job_of_training_is_told_from_one_of_reinforcement_learning(clustersim, rl_file):
    outcome = clustersim("run", rl_file)
    assert outcome.code == 2
    assert "describes reinforcement learning" in outcome.err
