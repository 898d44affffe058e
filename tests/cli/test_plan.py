"""Does clustersim plan rank what fits, say what was pruned, and answer when nothing fits?"""

from __future__ import annotations

import json
import shlex

import pytest

FEW = ("--vary", "plan.tp=1,2", "--vary", "plan.pp=1,2", "--vary", "batch.micro=1,2")


def test_the_fastest_plans_are_ranked(clustersim, job_file):
    outcome = clustersim("plan", job_file, *FEW, "--top", "3", "--workers", "1")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[1].split()[:5] == ["#", "tp", "pp", "vpp", "cp"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "3"]
    assert "valid plans" in outcome.err
    assert "slower by their lower bound" in outcome.err
    assert "break a rule" in outcome.err


def test_the_printed_options_give_the_printed_step(clustersim, job_file):
    found = json.loads(clustersim("plan", job_file, *FEW, "--top", "1", "--json").out)
    lines = clustersim("plan", job_file, *FEW, "--top", "1", "--workers", "1").out.splitlines()
    options = shlex.split(lines[-1].partition(": ")[2])
    step = json.loads(clustersim("run", job_file, *options, "--json").out)
    best = found["choices"][0]
    assert step["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-12)
    assert step["tokens_per_s_per_gpu"] == pytest.approx(best["tokens_per_s_per_gpu"], rel=1e-12)


def test_plans_that_do_not_fit_are_counted_and_not_chosen(clustersim, job_file):
    memory = ("--set", "cluster.device.memory=14 GiB")
    found = json.loads(clustersim("plan", job_file, *FEW, *memory, "--json").out)
    assert found["pruned"]["too_large"] > 0
    assert all(choice["peak_device_bytes"] <= 14 * 2**30 for choice in found["choices"])


def test_no_plan_that_fits_is_an_answer_with_the_nearest_that_would(clustersim, job_file):
    memory = ("--set", "cluster.device.memory=5 GiB")
    outcome = clustersim("plan", job_file, *FEW, *memory)
    assert (outcome.code, outcome.out) == (1, "")
    assert "No plan fits" in outcome.err
    nearest = next(line for line in outcome.err.splitlines() if "Nearest" in line)
    options = shlex.split(nearest.partition(": ")[2])
    assert clustersim("run", job_file, *memory, *options).code == 0


def test_a_field_that_cannot_be_varied_is_the_users_to_mend(clustersim, job_file):
    outcome = clustersim("plan", job_file, "--vary", "cluster.gpus=8,16")
    assert outcome.code == 2
    assert "cannot be varied" in outcome.err
