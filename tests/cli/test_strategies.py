"""clustersim strategies."""

from __future__ import annotations

import json

import pytest

ONE = ("--set", "plan={}", "--nodes", "1")


def test_every_strategy_is_a_row_and_a_sentence(clustersim, job_file):
    outcome = clustersim("strategies", job_file, *ONE)
    assert outcome.code == 0
    for name in ("DP", "PS", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP", "HSDP", "Offload"):
        rows = [line for line in outcome.out.splitlines() if line.startswith(f"{name} ")]
        assert len(rows) == 2


def test_the_document_has_figures_or_a_reason(clustersim, job_file):
    out = clustersim("strategies", job_file, "--set", "plan={}", "--nodes", "1,2", "--json").out
    one, two = json.loads(out)["comparisons"]
    assert (one["gpus"], two["gpus"]) == (8, 16)
    assert one["strategies"][0]["step_time_s"] > 0
    assert one["strategies"][0]["fullest"] == "GPU 0"
    (hybrid,) = [each for each in two["strategies"] if each["name"] == "HSDP"]
    assert hybrid["changes"]["plan.zero_group"] == 8
    (infinity,) = [each for each in two["strategies"] if each["name"] == "Infinity"]
    assert infinity["changes"]["plan.offload"] == {"optimizer": "cpu", "parameters": "cpu"}
    refused = two["strategies"][0]
    assert "one node only" in refused["refused"]
    assert "step_time_s" not in refused
    for each in two["strategies"][1:]:
        assert sum(each["breakdown_s"].values()) == pytest.approx(each["step_time_s"])


def test_a_picture_is_written(clustersim, job_file, tmp_path):
    picture = tmp_path / "new" / "strategies.svg"
    outcome = clustersim("strategies", job_file, *ONE, "--plot", picture)
    assert outcome.code == 0
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("nodes", ["", "0", "1,x", "-1", "1.5"])
def test_nodes_are_whole_numbers(clustersim, job_file, nodes):
    outcome = clustersim("strategies", job_file, f"--nodes={nodes}")
    assert outcome.code == 2
    assert "--nodes" in outcome.err


def test_nothing_that_fits_ends_with_1(clustersim, job_file):
    outcome = clustersim("strategies", job_file, *ONE, "--set", "cluster.device.memory=1 GiB")
    assert outcome.code == 1
    assert "No strategy fits;" in outcome.err
