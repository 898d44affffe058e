"""Is it true that whatever the page on extending names is one file, one line and one test?

The page is done in a copy of the package: a block of Python whose first line names a file is that
new file; a ``diff`` block changes a file that exists; then the tests of the page run there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import EXTENDING, ROOT

BLOCK = re.compile(
    r"^```(?P<language>python|diff)\n# (?P<path>[\w./-]+\.\w+)\n(?P<body>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
PACKAGE = ("simulator", "workloads", "hardware_profiles", "pyproject.toml")


def patched(text: str, diff: str) -> str:
    """The text with the ``+`` lines of a diff below its other lines, each found after the last.

    Raises:
        AssertionError: A line that the diff shows is not there.
    """
    lines, at = text.splitlines(), 0
    for shown in diff.splitlines():
        mark, line = shown[:1] or " ", shown[1:]
        if mark == "+":
            lines.insert(at, line)
            at += 1
            continue
        assert line in lines[at:], f"no line {line!r}"
        at = lines.index(line, at) + (mark == " ")
        if mark == "-":
            del lines[at]
    return "\n".join(lines) + "\n"


def do_page(folder: Path, page: str) -> list[str]:
    """Write and change the files that a page names, below a folder; returns its tests."""
    tests = []
    for block in BLOCK.finditer(page):
        path = folder / block["path"]
        if block["language"] == "diff":
            text = patched(path.read_text(encoding="utf-8"), block["body"])
        else:
            assert not path.exists(), f"{block['path']} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            text = block["body"]
        path.write_text(text, encoding="utf-8")
        if path.name.startswith("test_"):
            tests.append(block["path"])
    return tests


def run_there(folder: Path, *words: str) -> str:
    """What a command of Python prints in the copy.

    Raises:
        AssertionError: It fails.
    """
    environment = {**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_the_page_says_can_be_done_as_it_stands(tmp_path):
    for name in PACKAGE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    tests = do_page(tmp_path, EXTENDING.read_text(encoding="utf-8"))
    run_there(
        tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
        "-o", "addopts=", *tests,
    )  # fmt: skip
    schema = run_there(tmp_path, "-m", "simulator", "schema", "job")
    assert all(f'"{name}"' in schema for name in ("lifo", "lion", "gossip", "fourier"))


def test_a_page_that_changes_a_line_that_is_not_there_is_refused():
    assert patched("a\nb\n", " a\n+c\n-b\n") == "a\nc\n"
    with pytest.raises(AssertionError, match="no line 'd'"):
        patched("a\nb\n", " d\n+c\n")
