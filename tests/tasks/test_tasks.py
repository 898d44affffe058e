"""Can a new user do what they came for? Each task of ``tasks.yaml`` is done as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from simulator.cli import main

TASKS = yaml.safe_load(Path(__file__).with_name("tasks.yaml").read_text(encoding="utf-8"))


def test_there_are_twenty_tasks():
    assert len({task["task"] for task in TASKS}) == len(TASKS) >= 20


@pytest.mark.parametrize("task", TASKS, ids=[task["task"] for task in TASKS])
def test_a_new_users_task_is_done_as_written(task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    for name, text in task.get("files", {}).items():
        Path(name).write_text(text, encoding="utf-8")
    for command in task["commands"]:
        line, _, file = command["run"].partition(" > ")
        with pytest.raises(SystemExit) as stopped:
            main(shlex.split(line))
        out, err = capsys.readouterr()
        if file:
            Path(file).write_text(out, encoding="utf-8")
        printed = f"{out}\n{err}"
        assert int(stopped.value.code or 0) == command.get("exit", 0), printed
        missing = [each for each in command.get("prints", []) if not re.search(each, printed)]
        assert not missing, printed
