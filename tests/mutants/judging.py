"""Which test notices a mutation first?"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.mutants.mutations import Mutation, mutated

NEAREST, NEAREST_S = 6, 10.0
"""Test files that are asked first, and the processor time that they get together [s]."""

FURTHER, FURTHER_S = 16, 40.0
"""Those that are asked where nothing has noticed, golden results included."""

_LIMIT_S = 900.0
"""Who takes longer waits for what never comes, and is noticed by that; a busy machine is slow."""

_GOLDEN = ("tests/golden", "-k", "golden_job")
_PRELOADED = ("hypothesis", "numpy", "pandas", "pydantic", "simpy", "yaml", "torch")


@dataclass(frozen=True)
class Outcome:
    """What the tests say of one mutation.

    Attributes:
        path, line: Where it is.
        what: The kind of mistake.
        before, after: The line without and with it.
        noticed_by: The first test that failed; empty where none did.
    """

    path: str
    line: int
    what: str
    before: str
    after: str
    noticed_by: str

    @property
    def room(self) -> str:
        """The folder of ``simulator/`` that it is in."""
        return self.path.split("/")[1]

    @property
    def survived(self) -> bool:
        """Whether no test noticed."""
        return not self.noticed_by

    @property
    def is_golden_only(self) -> bool:
        """Whether a kept number noticed before any test with an answer from elsewhere."""
        return self.noticed_by.startswith("tests/golden/")


def outcome(root: Path, path: str, mutation: Mutation, tests: Sequence[str]) -> Outcome:
    """What tests say of a mutation that is made in a copy of the repository, and taken back.

    Args:
        root: The copy.
        path: The file, from the root.
        mutation: What is changed in it.
        tests: Files of tests, the nearest first.
    """
    file = root / path
    source = file.read_text(encoding="utf-8")
    file.write_text(mutated(source, mutation), encoding="utf-8")
    _forget_compiled(file)
    try:
        noticed_by = (
            first_failure(root, tests[:NEAREST], NEAREST_S)
            or first_failure(root, _GOLDEN, FURTHER_S)
            or first_failure(root, tests[NEAREST : NEAREST + FURTHER], FURTHER_S)
        )
    finally:
        file.write_text(source, encoding="utf-8")
        _forget_compiled(file)
    texts = mutation.before.strip(), mutation.after.strip()
    return Outcome(path, mutation.line, mutation.what, *texts, noticed_by)


def _forget_compiled(file: Path) -> None:
    """Two sources of one size and second would pass for one."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def first_failure(root: Path, words: Sequence[str], budget_s: float) -> str:
    """The first test of a pytest run that fails; empty where all pass."""
    if not words:
        return ""
    said = root / "failed.txt"
    said.write_text("", encoding="utf-8")
    child = os.fork()
    if not child:
        _run_tests(root, words, budget_s, said)
    code = _ended(child)
    if code is None:
        return "the time limit"
    return said.read_text(encoding="utf-8") or ("" if code == 0 else f"exit {code}")


def _run_tests(root: Path, words: Sequence[str], budget_s: float, said: Path) -> NoReturn:
    """Pytest in a process that has loaded the libraries, but nothing of ours; never returns."""
    os.setpgid(0, 0)
    os.chdir(root)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    code = 3
    with contextlib.suppress(BaseException):
        import pytest

        from tests.mutants.plugin import Turns

        for name in [name for name in sys.modules if name.split(".")[0] in ("simulator", "tests")]:
            del sys.modules[name]
        sys.path.insert(0, str(root))
        os.environ["PYTHONPATH"] = str(root)
        turns = Turns(budget_s)
        options = ["-x", "-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider", "--rootdir", "."]
        code = int(pytest.main([*options, *words], plugins=[turns]))
        said.write_text(turns.failed, encoding="utf-8")
    os._exit(code)


def _ended(child: int) -> int | None:
    """How a process ended; None where it was ended because it took too long."""
    end_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < end_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def load_libraries() -> None:
    """Load once what every run of tests would load anew."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            __import__(name)


def copied(root: Path, copy: Path) -> Path:
    """A copy of all files that belong to the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout
    shutil.rmtree(copy, ignore_errors=True)
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy / name)
    return copy
