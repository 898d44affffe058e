"""Does the README tell the truth?"""

from __future__ import annotations

import re

import pytest
import yaml

from simulator.spec.load import job_from_document
from tests.readme import PATH, ROOT, written_now

README = PATH.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def test_every_console_block_and_the_accuracy_table_show_what_is_printed_now():
    assert written_now(README) == README, "run make readme and review the difference"


@pytest.mark.parametrize("block", blocks("python"))
def test_every_python_block_runs(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_job_in_the_readme_is_sound(block):
    assert job_from_document(yaml.safe_load(block)).dp >= 1


def test_every_file_that_the_readme_names_exists():
    names = re.findall(r"`((?:simulator|workloads|hardware_profiles|reports)/[\w./-]+)`", README)
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []
