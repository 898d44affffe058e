"""What would the pages of the documentation say if they were written now?

``python -m tests.pages`` (or ``make docs``) puts the real outputs, and the accuracy table, into
README, CONTRIBUTING and every page of ``docs/``; review the difference. A test compares.

A page is read from top to bottom in a folder of its own that looks like the repository:

- ``console``: commands after ``$``, each followed by what it prints on both streams. One that
  fails has a comment above its block: ``<!-- exits with 2 -->``.
- ``python``: run, all blocks of a page with the same names; a ``text`` block right below shows
  what it prints.
- A first line that is a comment with the name of a file, such as ``# job.yaml``, writes the
  block to that file, so that later commands find it. Other ``yaml`` blocks are jobs.
- ``sh``: what needs a GPU, a network or root. It is not run; its commands, options and make
  targets must exist.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from simulator.cli import main
from simulator.described.load import job_from_document

ROOT = Path(__file__).parent.parent
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "SKILL.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
EXTENDING = ROOT / "docs" / "extending.md"
"""Changes the package; ``tests/test_extending.py`` does what it says in a copy."""
FOREIGN_PROGRAMS = {"dask", "nvidia-smi", "pip"}
"""What ``sh`` blocks may call beside our own commands."""

_BLOCK = re.compile(
    r"(?P<expected><!-- exits with (?P<code>\d) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<body>.*?)^```$"
    r"(?P<shown>\n\n^```text\n.*?^```$)?",
    flags=re.DOTALL | re.MULTILINE,
)
_ACCURACY = re.compile(r"<!-- accuracy: ([\w ]+) -->.*?<!-- end -->", flags=re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*(?:\\\n.*)*)$", flags=re.MULTILINE)
_FILE_NAME = re.compile(r"\A# ([\w./-]+\.\w+)\n")
_FIRST_LINES = re.compile(r"(.*?) \| head -n (\d+)")


def written_now(page: Path) -> str:
    """The page with the outputs and figures of this moment.

    Raises:
        AssertionError: A block does something else than its page promises.
    """
    text = page.read_text(encoding="utf-8")
    if page == EXTENDING:
        return text
    with _folder_like_the_repository():
        text = _BLOCK.sub(_Reader(page.name).read, text)
    return _ACCURACY.sub(_section, text)


@contextlib.contextmanager
def _folder_like_the_repository() -> Iterator[None]:
    """Work in a new folder, whose modules can be imported, with links to all that we have."""
    loaded = set(sys.modules)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for entry in ROOT.iterdir():
            if not entry.name.startswith("."):
                Path(entry.name).symlink_to(entry)
        sys.path.insert(0, name)
        try:
            yield
        finally:
            sys.path.remove(name)
            for module in set(sys.modules) - loaded:
                if (getattr(sys.modules[module], "__file__", None) or "").startswith(name):
                    del sys.modules[module]


def _section(marked: re.Match[str]) -> str:
    """A section of the accuracy report, between the comments that ask for it."""
    report = (ROOT / "reports" / "accuracy.md").read_text(encoding="utf-8")
    section = report.partition(f"## {marked[1]}\n\n")[2].partition("\n## ")[0]
    return f"<!-- accuracy: {marked[1]} -->\n{section.strip()}\n<!-- end -->"


@dataclass
class _Reader:
    """Who reads a page and does what it says, in the current folder.

    Attributes:
        page: Its name, for messages.
        names: What its Python blocks have defined so far.
    """

    page: str
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def read(self, block: re.Match[str]) -> str:
        """Do what one block says; returns it with what it shows now."""
        language, body, whole = block["language"], block["body"], block.group()
        named = _FILE_NAME.match(body)
        if named:
            path = Path(named[1])
            is_ours = path.resolve().is_relative_to(ROOT)
            assert not is_ours, f"{self.page} writes to {path} of the repository"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        if language == "console":
            shown = self._session(body, int(block["code"] or 0))
            return f"{block['expected'] or ''}```console\n{shown}\n```{block['shown'] or ''}"
        if language == "python":
            printed = self._printed(body)
            if block["shown"]:
                return f"```python\n{body}```\n\n```text\n{printed.rstrip()}\n```"
        if language == "sh":
            for command in body.replace("\\\n", " ").splitlines():
                self._check(shlex.split(command, comments=True))
        elif language == "yaml" and not named:
            job_from_document(yaml.safe_load(body))
        return whole

    def _session(self, body: str, expected: int) -> str:
        commands = _COMMAND.findall(body)
        assert commands, f"{self.page}: a console block without a command"
        outcomes = [_outcome(command) for command in commands]
        wanted = [0] * (len(commands) - 1) + [expected]
        for command, (code, text), right in zip(commands, outcomes, wanted, strict=True):
            assert code == right, f"{self.page}: {command} exits with {code}: {text}"
        shown = zip(commands, outcomes, strict=True)
        return "\n".join(f"$ {command}\n{text}".rstrip() for command, (_, text) in shown)

    def _printed(self, body: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(body, self.page, "exec"), self.names)
        return printed.getvalue()

    def _check(self, words: list[str]) -> None:
        """A command that is not run: is there such a thing, with such options?"""
        match words:
            case []:
                pass
            case ["make", target, *settings] if all("=" in each for each in settings):
                makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
                assert f"\n{target}:" in makefile, f"{self.page}: no make {target}"
            case ["clustersim", *rest]:
                said = io.StringIO()
                assert _run([*rest, "--help"], said, said) == 0, f"{self.page}: {said.getvalue()}"
            case ["python" | ".venv/bin/python", "-m", module, *_]:
                assert importlib.util.find_spec(module), f"{self.page}: no {module}"
            case ["python", archive, *_] if archive.endswith(".pyz"):
                pass  # packed by a command beside it
            case [program, *_]:
                assert program in FOREIGN_PROGRAMS, f"{self.page}: {program}"


def _outcome(command: str) -> tuple[int, str]:
    """Exit code of a command, and what a terminal would show of both streams."""
    first_lines = _FIRST_LINES.fullmatch(command)
    words = shlex.split(first_lines[1] if first_lines else command)
    match words:
        case ["clustersim", *rest, ">", target]:
            kept, said = io.StringIO(), io.StringIO()
            code = _run(rest, kept, said)
            Path(target).write_text(kept.getvalue(), encoding="utf-8")
        case ["clustersim", *rest] if first_lines:
            kept, said = io.StringIO(), io.StringIO()
            code = _run(rest, kept, said)
            passed = kept.getvalue().splitlines(keepends=True)[: int(first_lines[2])]
            said = io.StringIO("".join([*passed, said.getvalue()]))
        case ["clustersim", *rest]:
            said = io.StringIO()
            code = _run(rest, said, said)
        case ["cat", path]:
            code, said = 0, io.StringIO(Path(path).read_text(encoding="utf-8"))
        case _:
            raise AssertionError(f"no way to run {command}; show it in a block of sh")
    return code, said.getvalue()


def _run(words: list[str], stdout: io.StringIO, stderr: io.StringIO) -> int:
    """Exit code of our command, which says nothing of its progress, however busy the machine is."""
    silent = patch("simulator.cli.console._BETWEEN_LINES_S", math.inf)
    with silent, contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            main(words)
        except SystemExit as stopped:
            return int(stopped.code or 0)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    for page in PAGES:
        page.write_text(written_now(page), encoding="utf-8")
