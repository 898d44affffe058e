"""What does a shell offer when the tab key is pressed?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulator.cli.completion import (
    complete_change,
    complete_job,
    complete_offers,
    complete_serving,
    joined_assignments,
)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("plan.sched", ["plan.schedule="]),
        ("plan.recompute=f", ["plan.recompute=full"]),
        (
            "plan.sequence_parallel=",
            ["plan.sequence_parallel=true", "plan.sequence_parallel=false"],
        ),
        ("model=qwen3-8", ["model=qwen3-8b"]),
        ("cluster.profile=h200-s", ["cluster.profile=h200-sxm-141gb"]),
        ("cluster.device.memory_b", ["cluster.device.memory_bandwidth="]),
        ("batch.g", ["batch.global="]),
        ("plan.tp=", []),
        ("nothing", []),
    ],
)
def test_fields_and_their_values_are_offered(typed, offered):
    assert complete_change(typed) == offered


def test_blocks_are_offered_one_level_at_a_time():
    assert {"plan", "batch", "model=", "cluster"} <= set(complete_change(""))


def test_shipped_files_of_serving_and_of_offers_are_offered():
    assert complete_serving("llama3") == ["llama3-70b-8xh100"]
    assert complete_offers("three") == ["three-clouds"]


def test_shipped_jobs_and_job_files_are_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt-ours.yaml").touch()
    (tmp_path / "gpt-notes.txt").touch()
    assert complete_job("gpt-") == ["gpt-ours.yaml"]
    assert complete_job("gpt3-13") == ["gpt3-13b-1xv100-zero-offload"]


def test_words_that_bash_parts_at_an_equals_sign_are_one():
    words = [
        "clustersim",
        "run",
        "--set",
        "plan.zero",
        "=",
        "1",
        "--set",
        "plan.schedule",
        "=",
        "zb",
    ]
    joined = ["clustersim", "run", "--set", "plan.zero=1", "--set", "plan.schedule=zb"]
    assert joined_assignments(words, len(words) - 1) == (joined, 5)
    assert (
        joined_assignments(["clustersim", "run", "--set", "plan.zero", "="], 4)[0][-1]
        == "plan.zero="
    )
    assert joined_assignments(["clustersim", "run", ""], 2) == (["clustersim", "run", ""], 2)


@pytest.mark.parametrize(
    ("variables", "offered"),
    [
        (
            {
                "_CLUSTERSIM_COMPLETE": "complete_bash",
                "COMP_WORDS": "clustersim\nrun\njob.yaml\n--set\nplan.recompute\n=\nse",
                "COMP_CWORD": "6",
            },
            "selective",
        ),
        (
            {
                "_CLUSTERSIM_COMPLETE": "complete_zsh",
                "_TYPER_COMPLETE_ARGS": "clustersim models count qwen3-8",
            },
            "qwen3-8b",
        ),
    ],
)
def test_a_shell_is_answered_without_loading_what_computes(variables, offered):
    code = (
        "import sys\n"
        "from simulator.cli import main\n"
        "try:\n    main([])\n"
        "finally:\n"
        "    heavy = {'torch', 'pandas', 'matplotlib', 'scipy', 'simpy', 'jinja2', 'rich.table'}\n"
        "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert offered in done.stdout
    assert done.stderr.strip().endswith("[]")
