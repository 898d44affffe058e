"""Does every command that takes a file say what is wrong with it, and what would do?"""

from __future__ import annotations

import os

import pytest

GIVEN = ("--gpus", 8, "--seq-len", 1024, "--global-batch", 8)

COMMANDS = {
    "job": ("run", "bad.yaml"),
    "second job": ("compare", "JOB", "bad.yaml"),
    "campaign": ("capacity", "JOB", "--tokens", "1T", "--campaign", "bad.yaml"),
    "profile of a job": ("run", "JOB", "--set", "cluster.profile=bad.yaml"),
    "model of a job": ("run", "JOB", "--set", "model=bad.yaml"),
    "configuration as model": ("run", "JOB", "--set", "model=bad.json"),
    "schedule of a job": ("run", "JOB", "--set", "plan.schedule=bad.csv"),
    "load of experts": ("run", "JOB", "--set", "plan.expert_load={file: bad.txt}"),
    "schedule": ("schedule", "show", "bad.csv"),
    "compared schedule": ("schedule", "compare", "1f1b", "bad.csv"),
    "shown profile": ("profile", "show", "bad.yaml", "--yaml"),
    "checked profile": ("profile", "check", "bad.yaml"),
    "published runs": ("validate", "published", "bad.csv"),
    "collectives": ("validate", "collectives", "bad.csv"),
    "kernels": ("validate", "kernels", "bad.csv"),
    "measured table": ("calibrate", "collectives", "bad.csv", "--profile", "h100-sxm-80gb"),
    "traces of ranks": ("replay", "bad.0.et"),
    "profiler's trace": ("trace", "compare", "bad.json", "JOB"),
    "hf": ("import", "hf", "bad.json"),
    "megatron": ("import", "megatron", "bad.sh"),
    "deepspeed": ("import", "deepspeed", "bad.json", "--model", "gpt2", *GIVEN),
    "torchtitan": ("import", "torchtitan", "bad.toml", "--gpus", 8),
    "python": ("import", "torchtitan", "bad.py:f", "--gpus", 8),
    "nemo": ("import", "nemo", "bad.yaml"),
    "accelerate": ("import", "accelerate", "bad.yaml", "--model", "gpt2", *GIVEN),
}
"""One per kind of file that a command reads."""

WRITERS = {
    "missing": lambda path: None,
    "folder": os.mkdir,
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(255, -1, -1)) * 8),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_cannot_be_read_is_named_with_what_is_wrong_and_the_way_out(
    clustersim, job_file, tmp_path, monkeypatch, kind, name
):
    monkeypatch.chdir(tmp_path)
    words = [job_file if word == "JOB" else str(word) for word in COMMANDS[name]]
    bad = next(part for word in words for part in str(word).split("=") if "bad." in part)
    bad = bad.removeprefix("{file: ").removesuffix("}").removesuffix(":f")
    WRITERS[kind](tmp_path / bad)
    outcome = clustersim(*words)
    assert outcome.code == 2
    head, *faults = outcome.err.splitlines()
    assert head == "1 error in the input:"
    [fault] = faults
    assert bad in fault
    assert "; give " in fault or "; record " in fault
    assert not any(jargon in fault for jargon in ("Errno", "codec", "Expecting", "line 1"))
