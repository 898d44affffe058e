"""Does clustersim balance print what it found, ready to be pasted?"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from simulator.cli.planning.variations import _verdict
from simulator.planning.changes.balance import Balance


@pytest.fixture
def heavy_head(write):
    """Eight layers on four stages, the last with a head as heavy as almost three layers."""
    return write(
        """
        model: {base: llama3.1-8b, layers: 8}
        cluster: {profile: h100-sxm-80gb, gpus: 8}
        batch: {global: 16, seq_len: 2048}
        plan: {pp: 4, account_for_embedding: true}
        """
    )


def test_both_layouts_and_the_gain_are_printed(clustersim, heavy_head):
    outcome = clustersim("balance", heavy_head)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["even", "balanced"]
    assert "% shorter" in outcome.out


def test_the_printed_options_give_the_printed_step(clustersim, heavy_head):
    options = shlex.split(clustersim("balance", heavy_head).out.splitlines()[-1])
    found = json.loads(clustersim("balance", heavy_head, "--json").out)
    assert f"plan.layout={found['layout']}".replace(" ", "") in options
    step = json.loads(clustersim("run", heavy_head, *options, "--json").out)
    assert step["step_time_s"] == found["step_time_s"]
    even = json.loads(clustersim("run", heavy_head, "--json").out)
    assert even["step_time_s"] == found["even_step_time_s"]
    assert found["saved_share"] > 0


def test_an_even_layout_that_is_best_is_said_to_be(clustersim, heavy_head):
    outcome = clustersim("balance", heavy_head, "--set", "model.vocab=128", "--set",
                         "plan.account_for_embedding=false")  # fmt: skip
    assert outcome.code == 0
    assert "The even layout is the best" in outcome.out
    assert "--set" not in outcome.out


def test_what_does_not_fit_exits_with_one(clustersim, heavy_head):
    outcome = clustersim("balance", heavy_head, "--set", "cluster.device.memory=4 GiB")
    assert outcome.code == 1
    assert "fits into memory" in outcome.err


def test_a_job_without_pipeline_is_the_users_to_mend(clustersim, heavy_head):
    outcome = clustersim("balance", heavy_head, "--set", "plan.pp=1")
    assert outcome.code == 2
    assert "plan.pp" in outcome.err


def test_a_gain_that_reads_as_nothing_is_not_to_be_taken():
    almost = Balance((5, 3), (4, 4), 0.9999, 1.0, True, True, 9, {"plan.layout": [5, 3]})
    said = _verdict(almost)
    assert said == "None of the 9 simulated layouts is worth the change."
    assert "--set" in _verdict(replace(almost, step_time_s=0.9))


def test_one_layout_is_not_the_best_of_one():
    alone = Balance((4, 4), (4, 4), 1.0, 1.0, True, True, 1, {})
    assert _verdict(alone) == "The even layout is the best; no other one was worth a simulation."
