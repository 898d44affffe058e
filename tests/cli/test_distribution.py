"""Does the command say of the spread of steps what the function says?"""

from __future__ import annotations

import json

import simulator as sim


def test_the_command_prints_what_the_function_says_and_draws_it(clustersim, tmp_path):
    changes = ["--set", "variation={compute: {sigma: 0.05}}", "--samples", "50"]
    shown = clustersim("distribution", "llama3-8b-8xh100", *changes, "--json")
    document = json.loads(shown.out)
    job = sim.load_job("llama3-8b-8xh100", {"variation": {"compute": {"sigma": 0.05}}})
    assert document["steps_s"] == sim.sample(job, 50).steps_s.tolist()
    picture = tmp_path / "spread.png"
    table = clustersim("distribution", "llama3-8b-8xh100", *changes, "--plot", str(picture))
    assert "stragglers" in table.out
    assert picture.stat().st_size > 10_000


def test_a_job_that_does_not_fit_ends_with_1(clustersim):
    words = ("--set", "variation={compute: {sigma: 0.05}}", "--samples", 10)
    outcome = clustersim("distribution", "llama3-8b-8xh100", *words, "--set", "plan.zero=0")
    assert "does not fit" in outcome.err
    assert outcome.code == 1


def test_a_job_in_which_nothing_varies_is_refused_with_an_example(clustersim):
    refused = clustersim("distribution", "llama3-8b-8xh100")
    assert refused.code == 2
    assert "variation" in refused.err
    assert "sigma" in refused.err


def test_more_steps_than_memory_holds_are_refused(clustersim):
    varied = ["--set", "variation={compute: {sigma: 0.05}}"]
    refused = clustersim("distribution", "llama3-8b-8xh100", *varied, "--samples", 2_000_000_000)
    assert refused.code == 2
    assert "samples = 2000000000: must be 1 to 1,000,000" in refused.err
