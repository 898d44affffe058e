"""Does the command line say who is slow, who waits, and what it costs?"""

from __future__ import annotations

import json
import re

SLOW = ("--set", "perturbations=[{gpu: 5, slowdown: 0.2}]")


def test_the_slow_gpu_and_those_who_wait_for_it_are_named(clustersim, job_file):
    outcome = clustersim("run", job_file, *SLOW)
    assert outcome.code == 0
    assert "without perturbations" in outcome.out
    assert "20 % slower" in outcome.out
    assert "rank 5" in outcome.out


def test_json_says_which_ranks_each_class_stands_for(clustersim, job_file):
    document = json.loads(clustersim("run", job_file, *SLOW, "--json").out)
    classes = document["rank_classes"]
    assert len(classes) == len(document["memory"]) > 2
    (slow,) = [each for each in classes if each["cause"] == "20 % slower"]
    assert (slow["first_rank"], slow["ranks"]) == (5, 1)
    assert sum(each["ranks"] for each in classes) == 16


def test_json_says_what_the_perturbations_cost(clustersim, job_file):
    slowed, sound = (
        json.loads(clustersim("run", job_file, *more, "--json").out) for more in (SLOW, ())
    )
    cost = slowed["perturbation_cost"]
    assert cost["step_time_without_s"] == sound["step_time_s"]
    assert cost["lost_s"] == slowed["step_time_s"] - sound["step_time_s"] > 0
    assert cost["lost_share"] == slowed["step_time_s"] / sound["step_time_s"] - 1
    assert "perturbation_cost" not in sound


def test_every_gpu_by_itself_gives_the_same_numbers(clustersim, job_file):
    folded, unfolded = (
        json.loads(clustersim("run", job_file, *more, "--json").out)
        for more in ((), ("--unfolded",))
    )
    assert len(folded["rank_classes"]) == 2
    assert len(unfolded["rank_classes"]) == 16
    assert folded["step_time_s"] == unfolded["step_time_s"]


def test_pictures_and_memory_work_with_more_classes_than_stages(clustersim, job_file, tmp_path):
    outcome = clustersim(
        "run", job_file, *SLOW, "--plot", tmp_path, "--trace", tmp_path / "trace.json.gz"
    )
    assert outcome.code == 0
    assert {path.name for path in tmp_path.glob("*.*")} >= {"pipeline.png", "trace.json.gz"}
    memory = clustersim("memory", job_file, *SLOW)
    assert memory.code == 0
    assert "stage 1" in memory.out


def test_a_rank_that_is_not_there_is_bad_input(clustersim, job_file):
    outcome = clustersim("run", job_file, "--set", "perturbations=[{gpu: 99, slowdown: 0.2}]")
    assert outcome.code == 2
    assert "numbered 0 to 15" in outcome.err


def test_a_gpu_that_is_more_than_twice_as_slow_is_said_to_be_so(clustersim, job_file):
    slow = ("--set", "perturbations=[{gpu: 5, slowdown: 1.2}]")
    assert "takes 2.2 times as long" in clustersim("run", job_file, *slow).out


def test_a_slow_gpu_of_a_stage_that_waits_for_others_anyhow_costs_nothing_and_the_table_says_why(
    clustersim,
):
    slow = ("--set", "perturbations=[{gpu: 0, slowdown: 0.1}]")
    short = ("--set", "plan.tp=1", "--set", "plan.pp=4", "--set", "plan.first_stage_layers=2")
    outcome = clustersim("run", "llama3-8b-8xh100", *short, *slow)
    assert "(they cost 0.0 %: nothing waits for them)" in outcome.out
    (slack,) = [line for line in outcome.out.splitlines() if line.startswith("slack of stage 0 ")]
    assert re.search(r" at most \d\d\.\d % of a step, its bubble$", slack)
