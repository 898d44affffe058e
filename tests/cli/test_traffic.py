"""Does clustersim traffic list what ranks say to each other, by kind, group and link?"""

from __future__ import annotations

import json

import pytest


def test_one_table_per_kind_of_stage_adds_up_to_its_last_line(clustersim, job_file):
    outcome = clustersim("traffic", job_file, "--set", "plan.pp=4", "--set", "cluster.gpus=16")
    assert (outcome.code, outcome.err) == (0, "")
    assert "stage 0, per rank and step" in outcome.out
    assert "stage 1 to stage 2, per rank and step" in outcome.out
    assert "through scale_up  through fabric" in outcome.out


def test_json_holds_exact_bytes_per_class(clustersim, job_file):
    document = json.loads(clustersim("traffic", job_file, "--json").out)
    assert [each["name"] for each in document["classes"]] == ["stage 0", "stage 1"]
    for each in document["classes"]:
        for port, num_bytes in each["port_bytes"].items():
            totals = sum(total["port_bytes"].get(port, 0.0) for total in each["totals"])
            assert totals == pytest.approx(num_bytes)
    sends = [t for t in document["classes"][0]["totals"] if t["axis"] == "pp"]
    (send,) = sends
    assert (send["kind"], send["ranks"], send["count"]) == ("send_recv", 2, 8)
    assert send["sent_bytes"] == 8 * 2048 * 4096 * 2 / 2


def test_one_stage_is_listed_in_order_of_issue(clustersim, job_file):
    listed = clustersim("traffic", job_file, "--in-order", "1").out.splitlines()
    assert listed[2].split()[1:4] == ["dp", "all_gather", "4"]
    document = json.loads(clustersim("traffic", job_file, "--in-order", "1", "--json").out)
    assert len(document["collectives"]) == len(listed) - 3
    assert document["collectives"][-1]["name"] == "gradient_norm"


def test_a_stage_that_is_not_there_is_refused(clustersim, job_file):
    outcome = clustersim("traffic", job_file, "--in-order", "2")
    assert outcome.code == 2
    assert "pipeline stage of the job, 0 to 1" in outcome.err
