"""clustersim diagnose: hypotheses, their likelihood, and what settles them."""

from __future__ import annotations

import json
import re

import pytest

from simulator.units import format_seconds


def test_hypotheses_are_said_with_what_settles_them(clustersim, job_file):
    outcome = clustersim("diagnose", job_file, "--step", "200ms", "--memory", "6GiB", "--top", "2")
    assert outcome.code == 0
    assert "reserved memory measured 6.00 GiB, predicted " in outcome.out
    assert "possible cause" in outcome.out
    assert "none: an ordinary prediction error" in outcome.out
    assert "1. " in outcome.out
    assert "To check: " in outcome.out
    assert "--trace" in outcome.err


def test_the_document_holds_every_hypothesis_with_its_fields(clustersim, job_file):
    outcome = clustersim("diagnose", job_file, "--step", "900 ms", "--error", "3%", "--json")
    document = json.loads(outcome.out)
    hypotheses = document["hypotheses"]
    total = document["nothing_probability"] + document["unlisted_probability"]
    assert total + sum(each["probability"] for each in hypotheses) == pytest.approx(1)
    assert document["memory_kind"] == "device"
    assert all(each["fields"] and each["check"] for each in hypotheses)
    assert document["measured_memory_bytes"] is None


def test_the_probabilities_that_are_shown_sum_to_one(clustersim, job_file):
    outcome = clustersim("diagnose", job_file, "--step", "900ms", "--top", "2")
    table = outcome.out.split("possible cause")[1].split("\n\n")[0].splitlines()[1:]
    shares = [float(re.findall(r"([0-9.]+) %", row)[-1]) for row in table]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert "the 80 % prediction interval" in outcome.out
    assert "device memory with it" in outcome.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--step", "soon"], "--step"),
        (["--step", "5"], 'such as "5 s"'),
        (["--step", "900 s"], "no prediction is so far off"),
        (["--step", "0.3 s", "--memory", "61 TiB"], "is more than a GPU has"),
        (["--step", "1 s", "--memory", "much"], "--memory"),
        (["--step", "1 s", "--memory-kind", "virtual"], "must be one of allocated"),
        (["--step", "1 s", "--phase", "forward"], "must be NAME=TIME"),
        (["--step", "1 s", "--phase", "sleep=1 s"], "must name a category"),
        (["--step", "1 s", "--phase", "optimiser=1 s"], "did you mean 'optimizer'?"),
        (["--step", "1 s", "--error", "a lot"], "must be a percentage"),
        (["--step", "1 s", "--phase", "host=0 s", "--trace", "t.json"], "remove --phase"),
    ],
)  # fmt: skip
def test_what_is_no_measurement_is_refused_by_name(clustersim, job_file, options, said):
    outcome = clustersim("diagnose", job_file, *options)
    assert outcome.code == 2
    assert said in outcome.err


def test_a_step_as_predicted_needs_no_explanation(clustersim, job_file):
    predicted = json.loads(clustersim("run", job_file, "--json").out)["step_time_s"]
    outcome = clustersim("diagnose", job_file, "--step", f"{1.01 * predicted} s")
    assert "no single cause is likelier than an error of the prediction." in outcome.out
    assert "To check: " not in outcome.out
    as_json = clustersim("diagnose", job_file, "--step", f"{1.01 * predicted} s", "--json")
    assert json.loads(as_json.out)["agrees"]


@pytest.mark.parametrize("step", ["900 ms", "400 ms"])
def test_no_cause_is_hidden_that_is_likelier_than_one_shown(clustersim, job_file, step):
    options = ("--step", step, "--top", "3")
    outcome = clustersim("diagnose", job_file, *options)
    found = json.loads(clustersim("diagnose", job_file, *options, "--json").out)["hypotheses"]
    rows = outcome.out.split("possible cause")[1].splitlines()[1:4]
    assert [row.split("  ")[0] for row in rows] == [each["change"] for each in found[:3]]
    (most,) = re.findall(r"each at most ([0-9.]+) %", outcome.out)
    assert float(most) <= min(float(re.findall(r"([0-9.]+) %", row)[-1]) for row in rows) + 0.1


def test_memory_that_is_far_off_says_what_each_kind_of_it_would_be(clustersim, job_file):
    step = json.loads(clustersim("run", job_file, "--json").out)
    held = max(each["peak_reserved_bytes"] for each in step["memory"])
    words = ("diagnose", job_file, "--step", f"{step['step_time_s']} s", "--error", "5%")
    low = clustersim(*words, "--memory", f"{held / 2**31} GiB").out
    assert "predicted of each kind: allocated" in low
    assert "--memory-kind" in low
    assert "kind" not in clustersim(*words, "--memory", f"{held / 2**30} GiB").out


def test_what_is_all_but_impossible_is_not_said_to_be_checked(clustersim, job_file):
    outcome = clustersim("diagnose", job_file, "--step", "900ms", "--memory", "1GiB")
    assert "something that is not on the list" in outcome.out
    assert "To check" not in outcome.out


def test_each_part_that_was_measured_is_said_beside_its_prediction(clustersim, job_file):
    parts = ("--phase", "optimizer=100 ms", "--phase", "backward=0.3 s")
    outcome = clustersim("diagnose", job_file, "--step", "900 ms", *parts)
    step = json.loads(clustersim("run", job_file, "--json").out)["breakdown_s"]
    for name, measured in (("optimizer", "100 ms"), ("backward", "300 ms")):
        said = f"{name} measured {measured}, predicted {format_seconds(step[name])}\n"
        assert said in outcome.out


def test_where_the_cause_is_not_listed_the_part_that_is_missed_most_is_named(clustersim, job_file):
    step = json.loads(clustersim("run", job_file, "--json").out)["breakdown_s"]
    parts = ("--phase", "optimizer=400 ms", "--phase", f"forward={step['forward']} s")
    outcome = clustersim("diagnose", job_file, "--step", "900 ms", "--error", "3%", *parts)
    said = (
        f"Look first at optimizer: measured 400 ms, predicted {format_seconds(step['optimizer'])}."
    )
    assert said in outcome.out
    assert "100.0 %" not in outcome.out
