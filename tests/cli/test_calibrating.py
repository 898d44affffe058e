"""Does calibrate collectives fit, print, write and refuse as it says?"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("scipy")

from simulator.described.load import load_profile
from tests.nccl_output import Bench, text_output

BASE = ("--profile", "h100-sxm-80gb")
SIZES = tuple(2**power for power in range(10, 30, 2))


@pytest.fixture
def log(tmp_path):
    """All-gathers inside one node."""
    path = tmp_path / "all_gather.txt"
    path.write_text(text_output(Bench("all_gather"), SIZES))
    return path


def test_tables_go_to_stdout_and_what_is_left_to_stderr(clustersim, log):
    outcome = clustersim("calibrate", "collectives", log, *BASE)
    assert outcome.code == 0
    assert "network.scale_up.latency" in outcome.out
    assert "all_gather" in outcome.out
    assert "fabric stays as in h100-sxm-80gb" in outcome.err


def test_a_fitted_profile_is_complete_and_sound(clustersim, log, tmp_path):
    path = tmp_path / "new" / "mine.yaml"
    outcome = clustersim("calibrate", "collectives", log, *BASE, "--out", path)
    assert f"wrote {path}" in outcome.err
    assert clustersim("profile", "check", path).code == 0
    source = load_profile(str(path)).provenance["network.scale_up.latency"]
    assert "all_gather.txt" in source.reference


def test_json_holds_rows_parameters_and_residuals(clustersim, log):
    document = json.loads(clustersim("calibrate", "collectives", log, *BASE, "--json").out)
    assert len(document["rows"]) == document["summary"]["n"] == len(SIZES)
    assert {row["field"].split(".")[1] for row in document["parameters"]} == {"scale_up"}
    assert document["files"][0]["libraries"] == ["NCCL 2.28.3"]
    assert "host-0" not in json.dumps(document)


def test_a_picture_of_the_fit_is_written(clustersim, log, tmp_path):
    path = tmp_path / "fit.png"
    assert clustersim("calibrate", "collectives", log, *BASE, "--plot", path).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_truncated_file_ends_with_2_and_says_where(clustersim, log):
    log.write_text(log.read_text().split("# Out of bounds")[0])
    outcome = clustersim("calibrate", "collectives", log, *BASE)
    assert (outcome.code, outcome.out) == (2, "")
    assert "all_gather.txt: line 27: all_gather_perf of line 3 was cut off" in outcome.err
    assert "--partial" in outcome.err
    assert clustersim("calibrate", "collectives", log, *BASE, "--partial").code == 0


def test_another_systems_profile_ends_with_2(clustersim, log):
    outcome = clustersim("calibrate", "collectives", log, "--profile", "mi300x")
    assert (outcome.code, outcome.out) == (2, "")
    assert "measured on H100 80GB HBM3, and mi300x is another GPU" in outcome.err
