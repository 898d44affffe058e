"""clustersim limits and memory --savings."""

from __future__ import annotations

import json
import re


def test_limits_are_given_with_their_step(clustersim, job_file):
    document = json.loads(clustersim("limits", job_file, "--json").out)
    fields = [limit["field"] for limit in document["limits"]]
    assert fields == ["batch.micro", "batch.seq_len", "model.layers"]
    for limit in document["limits"]:
        assert limit["largest"] >= limit["now"]


def test_the_largest_microbatch_comes_with_the_batch_that_it_is_one_of(clustersim, job_file):
    outcome = clustersim("limits", job_file)
    said = outcome.err.splitlines()[-1]
    micro, batch = (word.rpartition("=")[2] for word in said.split() if "=" in word)
    changes = ("--set", f"batch.micro={micro}", "--set", f"batch.global={batch}")
    assert clustersim("run", job_file, *changes).code == 0


def test_limits_of_a_job_that_does_not_fit_end_with_1(clustersim, job_file):
    outcome = clustersim("limits", job_file, "--set", "cluster.device.memory=4 GiB")
    assert outcome.code == 1
    assert "runs out of memory with a probability above 5.0 %" in outcome.err


def test_savings_are_part_of_the_memory_document(clustersim, job_file):
    document = json.loads(clustersim("memory", job_file, "--savings", "--json").out)
    assert document["savings"]
    assert all(saving["saved_bytes"] > 0 for saving in document["savings"])


def test_savings_are_a_table_of_changes(clustersim, job_file):
    out = clustersim("memory", job_file, "--savings").out
    assert "what would save most" in out
    table = out.split("what would save most")[1]
    assert "plan." in table
    assert re.search(r"[+-]\d+\.\d %$", table, re.MULTILINE)


def test_no_memory_is_said_of_a_value_where_none_fits(clustersim, job_file):
    small = ("--set", "cluster.device.memory=2 GiB")
    outcome = clustersim("limits", job_file, *small)
    row = next(line for line in outcome.out.splitlines() if line.startswith("batch.micro"))
    assert "none" in row
    assert "GiB" not in row
    assert "%" not in row
