"""Does clustersim advise agree with clustersim plan, and say how to take what it found?"""

from __future__ import annotations

import json
import re
import shlex

import pytest

FEW = ("--vary", "plan.tp=1,2", "--vary", "plan.pp=1,2", "--vary", "batch.micro=1,2")


def test_the_first_strategy_is_the_plan_that_a_search_finds_and_can_be_pasted(clustersim, job_file):
    outcome = clustersim("advise", job_file, *FEW, "--workers", "1")
    assert outcome.code == 0
    options = next(
        line for line in outcome.out.splitlines() if line.startswith("To use strategy 1: ")
    )
    plan = clustersim("plan", job_file, *FEW, "--workers", "1", "--top", "1", "--no-why").out
    assert options.replace("strategy 1", "plan 1") in plan.splitlines()
    pasted = shlex.split(options.partition(": ")[2])
    step = json.loads(clustersim("run", job_file, *pasted, "--json").out)
    found = json.loads(clustersim("advise", job_file, *FEW, "--workers", "1", "--json").out)
    best = found["strategies"][0]["choice"]
    assert step["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-12)


def test_a_jobs_own_plan_that_is_faster_than_the_first_strategy_is_named(clustersim, job_file):
    one_slow = ("--vary", "plan.tp=2", "--vary", "plan.pp=2", "--vary", "batch.micro=1")
    fast = ("--set", "plan.tp=1", "--set", "plan.pp=1")
    outcome = clustersim("advise", job_file, *one_slow, *fast, "--workers", "1")
    (line,) = (each for each in outcome.out.splitlines() if "own plan" in each)
    assert re.fullmatch(r"The job's own plan takes .+ less than strategy 1\.", line)


def test_a_jobs_own_plan_that_is_no_faster_needs_no_word(clustersim, job_file):
    assert "own plan" not in clustersim("advise", job_file, *FEW, "--workers", "1").out


def test_less_risk_leaves_more_memory_free(clustersim, job_file):
    words = ("advise", job_file, *FEW, "--workers", "1", "--json")
    best = json.loads(clustersim(*words).out)["strategies"][0]["choice"]
    tight = ("--set", f"cluster.device.memory={1.3 * best['peak_device_bytes'] / 2**30} GiB")
    found = json.loads(clustersim(*words, *tight, "--risk", "0.02").out)["strategies"]
    sure = [each["choice"]["fits_probability"] for each in found if each["choice"]]
    assert min(sure) >= 0.98


def test_no_strategy_that_fits_is_an_answer(clustersim, job_file):
    small = ("--set", "cluster.device.memory=2 GiB")
    outcome = clustersim("advise", job_file, *FEW, *small, "--workers", "1")
    assert outcome.code == 1
    assert "No strategy fits" in outcome.err


def test_one_machine_is_answered_with_what_people_do_on_one(clustersim, write, tmp_path):
    job = write(
        """
        model: llama3-8b
        cluster: {profile: rtx-4090, gpus: 1}
        batch: {global: 2, seq_len: 2048}
        plan: {stack: trl, zero: 0}
        """
    )
    outcome = clustersim("advise", job, "--json")
    assert outcome.code == 0
    answer = json.loads(outcome.out)
    assert [rung["name"] for rung in answer["rungs"]][-2:] == ["LoRA", "QLoRA"]
    assert answer["nearest"]["fits"]
    best = tmp_path / "best.yaml"
    lines = clustersim("advise", job, "--write", best).out.splitlines()
    assert any("--set plan.lora.base_precision=nf4" in line for line in lines)
    assert json.loads(clustersim("run", best, "--json").out)["fits"]


def test_a_strategy_that_a_setting_of_the_job_rules_out_names_the_setting(clustersim, write):
    job = write(
        """
        model: {base: llama3.1-8b, layers: 4}
        cluster: {profile: h100-sxm-80gb, gpus: 8}
        batch: {global: 16, seq_len: 2048}
        plan: {stack: torchtitan, zero: 3, reshard_after_forward: false}
        """
    )
    found = json.loads(clustersim("advise", job, *FEW, "--workers", "1", "--json").out)
    said = {each["family"]["name"]: each["obstacle"] for each in found["strategies"]}
    assert "plan.reshard_after_forward does not apply" in said["DDP"]
