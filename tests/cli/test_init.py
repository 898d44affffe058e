"""Does `clustersim init` write a job that runs?"""

from __future__ import annotations

import io

import pytest
import yaml

from simulator.described.load import load_job
from simulator.results.fit_probability import Fit, fit_of
from simulator.results.simulation import run_step


@pytest.fixture
def answers(monkeypatch):
    def type_in(*lines):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return type_in


def test_the_job_that_is_written_fits_and_says_what_was_asked_for(clustersim, tmp_path):
    file = tmp_path / "job.yaml"
    words = ["--model", "qwen3-8b", "--cluster", "a100-sxm-80gb", "--gpus", 4, "--yes"]
    assert clustersim("init", file, *words).code == 0
    document = yaml.safe_load(file.read_text())
    assert document["model"] == "qwen3-8b"
    assert document["cluster"] == {"profile": "a100-sxm-80gb", "gpus": 4}
    assert run_step(load_job(file)).fits


def test_five_answers_make_a_job(clustersim, tmp_path, answers):
    answers("qwen3-0.6b", "rtx-4090", "1", "16 x 1024", "safest")
    file = tmp_path / "job.yaml"
    said = clustersim("init", file)
    assert [f"{number}/5" in said.err for number in range(1, 6)] == [True] * 5
    assert said.out.strip() == ""
    assert load_job(file).batch.tokens == 16 * 1024


def test_a_wrong_answer_is_explained_and_asked_again(clustersim, tmp_path, answers):
    answers("qwen3-06b", "qwen3-0.6b", "", "12", "8", "many", "8x512", "")
    said = clustersim("init", tmp_path / "job.yaml")
    assert said.code == 0
    assert "did you mean 'qwen3-0.6b'" in said.err
    assert "must be whole nodes of 8 GPUs; give 8 or 16" in said.err
    assert "for example 64 x 4096" in said.err


def test_where_nobody_answers_the_option_is_named(clustersim, tmp_path, answers):
    answers()
    said = clustersim("init", tmp_path / "job.yaml")
    assert said.code == 2
    assert "--yes" in said.err
    assert list(tmp_path.iterdir()) == []
    assert ":1 error" not in said.err


def test_a_file_is_overwritten_only_by_force(clustersim, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("mine")
    said = clustersim("init", file, "--model", "qwen3-0.6b", "--yes")
    assert (said.code, file.read_text()) == (2, "mine")
    assert "--force" in said.err
    assert (
        clustersim("init", file, "--model", "qwen3-0.6b", "--gpus", 1, "--yes", "--force").code == 0
    )
    assert load_job(file).model.name == "qwen3-0.6b"


def test_a_folder_is_no_file_to_write_even_by_force(clustersim, tmp_path):
    said = clustersim("init", tmp_path, "--yes", "--force")
    assert said.code == 2
    assert "is a folder" in said.err
    assert "job.yaml" in said.err


def test_the_simplest_plan_is_the_frameworks_default_where_that_fits(clustersim, tmp_path):
    file = tmp_path / "job.yaml"
    clustersim("init", file, "--model", "qwen3-0.6b", "--aim", "simplest", "--yes")
    assert yaml.safe_load(file.read_text())["plan"] == {}


def test_where_no_plan_fits_the_job_is_written_and_the_exit_code_says_so(clustersim, tmp_path):
    file = tmp_path / "job.yaml"
    words = ["--model", "llama3-70b", "--cluster", "rtx-4090", "--gpus", 1, "--yes"]
    said = clustersim("init", file, *words)
    assert said.code == 1
    assert "No plan fits on 1 GPU" in said.err
    assert f"clustersim advise {file}" in said.err
    assert not run_step(load_job(file)).fits


def test_the_fastest_plan_is_as_likely_to_fit_as_a_run_that_is_said_to_fit(clustersim, tmp_path):
    """What init calls fitting, run must not call tight."""
    file = tmp_path / "job.yaml"
    clustersim("init", file, "--yes")
    assert fit_of(run_step(load_job(file)).fits_probability) is Fit.FITS
