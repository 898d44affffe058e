"""run, traffic and memory accept a capture in place of a job; other commands refuse it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from simulator.capture.file import write_capture
from simulator.capture.table import Exchange, Phase, Tensor
from tests.capture.made_up import GEMM, Step, capture_of


@pytest.fixture
def file(tmp_path):
    step = Step()
    step.exchange(Exchange("all_reduce", 0, 1 << 24, "dp", -1, False), after=[step.kernel()])
    step.block(1 << 30, 0)
    path = tmp_path / "step.capture"
    write_capture(capture_of(step), path)
    return str(path)


def test_run_gives_the_numbers_of_a_job(clustersim, file):
    done = clustersim("run", file, "--profile", "a100-sxm-80gb", "--gpus", "16", "--json")
    found = json.loads(done.out)
    known = {"step_time_s", "mfu", "hfu", "breakdown_s", "exposed_comm_s", "memory", "fits"}
    assert known <= found.keys()
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"])
    assert found["title"] == "train.py on 16 x a100-sxm-80gb"
    assert "torch.save was skipped" in done.err


def test_run_names_the_longest_operators_and_their_modules(clustersim, tmp_path):
    step = Step()
    short = GEMM._replace(
        inputs=(GEMM.inputs[0], Tensor("bfloat16", (4096, 16))), outputs=(), read_bytes=1
    )
    for call in (short, GEMM, GEMM):
        step.kernel(call, phase=Phase.BACKWARD)
    path = tmp_path / "step.capture"
    made = capture_of(step)
    table = replace(made.tables[0], module=np.array([2, 0, 1]), paths=("a.0.b", "a.11.b", "c"))
    write_capture(replace(made, tables=(table,)), path)
    most, least = json.loads(clustersim("run", str(path), "--json").out)["dearest_operators"]
    assert (most["module"], most["phase"], most["calls"]) == ("a.*.b", "backward", 2)
    assert least["module"] == "c"
    assert most["seconds"] > least["seconds"] > 0
    assert "a.*.b" in clustersim("run", str(path)).out


def test_traffic_lists_its_collectives(clustersim, file):
    (rank_class,) = json.loads(clustersim("traffic", file, "--json").out)["classes"]
    (total,) = rank_class["totals"]
    assert (total["kind"], total["ranks"], total["message_bytes"]) == ("all_reduce", 8, 1 << 24)


def test_memory_says_who_holds_what(clustersim, file):
    (stage,) = json.loads(clustersim("memory", file, "--json").out)["memory"]
    workspace_bytes = 2 * 32 << 20
    assert stage["by_owner"] == {"activations": 1 << 30, "workspaces": workspace_bytes}


@pytest.mark.parametrize("words", [["--unfolded"], ["--trace-ranks", "0"]])
def test_options_that_only_a_job_has_are_refused(clustersim, file, words):
    done = clustersim("run", file, *words)
    assert done.code == 2
    assert f"{words[0]}: is for jobs" in done.err


def test_its_page_and_its_headline_say_how_sure_a_step_is(clustersim, tmp_path, file):
    done = clustersim("run", file, "--html", str(tmp_path / "step.html"))
    page = (tmp_path / "step.html").read_text(encoding="utf-8")
    for text in (done.out, page):
        assert "80 % prediction interval of eager jobs" in text
        assert "likely to fit" in text
    assert "Longest operators on the GPU" in page
    assert "torch.save was skipped" in page


def test_the_accepted_risk_counts_for_a_capture_too(clustersim, file):
    assert clustersim("run", file, "--profile", "a100-sxm-80gb", "--risk", "0.4").code == 0


def test_fields_of_a_job_are_refused(clustersim, file):
    done = clustersim("run", file, "--set", "plan.tp=2")
    assert done.code == 2
    assert "a captured step is code" in done.err


@pytest.mark.parametrize("words", [["plan"], ["diagnose", "--step", "1 s"], ["capacity"]])
def test_commands_that_need_a_job_say_which_ones_read_a_capture(clustersim, file, words):
    done = clustersim(*words, file)
    assert done.code == 2
    assert "is a capture, which only run, traffic and memory read" in done.err


def test_a_capture_that_is_not_there_is_called_so(clustersim):
    done = clustersim("run", "step.capture")
    assert done.code == 2
    assert "clustersim capture TRAIN.py" in done.err


def test_a_script_that_is_not_there_is_refused(clustersim, tmp_path):
    done = clustersim("capture", "nowhere.py", "--world", "8", "--out", str(tmp_path / "x"))
    assert done.code == 2
    assert list(tmp_path.iterdir()) == []
