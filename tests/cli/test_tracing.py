"""clustersim trace: tables, JSON and a picture of a profile beside its prediction."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.validate.test_trace_compare import JOB, REAL


@pytest.fixture
def own_job(write):
    return write(yaml.safe_dump(JOB))


def test_the_tables_list_gaps_by_phase_and_kind(clustersim, own_job):
    outcome = clustersim("trace", "compare", REAL, own_job)
    assert outcome.code == 0
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[0][-2:] == ["rank", "0"]
    assert lines[1] == ["measured", "predicted", "gap", "of", "the", "step"]
    assert lines[2][:3] == ["step", "183", "ms"]
    assert outcome.out.splitlines()[-1].startswith("The step takes 90.5 ms (98 %) longer")
    names = [line[0] for line in lines[3:-1] if line]
    assert names[:2] == ["forward", "gemm"]
    assert names.index("forward") < names.index("backward") < names.index("optimizer")
    assert names[-1] == "all_reduce"
    assert "its operators" in outcome.err


def test_json_holds_the_same_as_numbers(clustersim, own_job):
    outcome = clustersim("trace", "compare", REAL, own_job, "--json")
    document = json.loads(outcome.out)
    assert document["schema_version"] == 1
    assert document["trace"] == {"step": 0, "steps": [0], "is_gpu": False, "device": ""}
    total_s = document["measured_step_s"]
    assert sum(gap["measured_s"] for gap in document["gaps"]) == pytest.approx(total_s)
    assert [gap["phase"] for gap in document["phases"]] == ["forward", "backward", "optimizer"]
    assert document["communication"][0]["kind"] == "all_reduce"


def test_both_timelines_are_drawn(clustersim, own_job, tmp_path):
    picture = tmp_path / "gaps.svg"
    outcome = clustersim("trace", "compare", REAL, own_job, "--plot", picture)
    assert f"wrote {picture}" in outcome.err
    assert "than the measured one" in picture.read_text()


def test_what_is_no_trace_is_the_users_to_mend(clustersim, own_job, tmp_path):
    foreign = tmp_path / "t.json.gz"
    foreign.write_bytes(REAL.read_bytes()[:5000])
    outcome = clustersim("trace", "compare", foreign, own_job)
    assert (outcome.code, outcome.out) == (2, "")
    assert "is cut off" in outcome.err
    outcome = clustersim("trace", "compare", REAL, own_job, "--step", "3")
    assert (outcome.code, outcome.out) == (2, "")
    assert "it has 0" in outcome.err


@pytest.mark.parametrize(
    ("path", "rule"), [("t.txt", ".json.gz"), ("none/t.json", "does not exist")]
)
def test_a_run_refuses_to_leave_its_trace_nowhere(clustersim, own_job, tmp_path, path, rule):
    outcome = clustersim("validate", "torch", own_job, "--trace", tmp_path / path)
    assert (outcome.code, outcome.out) == (2, "")
    assert rule in outcome.err
