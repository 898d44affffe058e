"""Which test notices a mutation first?"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.mutations import Mutation, mutated
from tests.mutants.plugin import Turns
from tests.mutants.swapping import LoadedFunctions

_NEAREST, _NEAREST_S = 6, 10.0
"""Test files that are asked first, and the processor time that they get together [s]."""

_FURTHER, _FURTHER_S = 12, 30.0
"""Those that are asked where these pass."""

_GOLDEN_S = 30.0

_ENDLESS_S, _ASLEEP_S = 60, 900.0
"""Processor time beyond its budget, and time on the clock, after which a run never ends, which is
noticed; a busy machine is slow."""

_GOLDEN = "tests/golden/test_golden.py::test_no_number_of_a_golden_job_moves"
_BROKEN = "pytest ended with"
_ENDLESS = "the time limit"
_OPTIONS = (
    "-x", "-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider", "--rootdir", ".",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
"""The last one, because a library that is loaded before is not rewritten, which matters nowhere."""

_LIBRARIES = ("hypothesis", "pandas", "torch")


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
    def is_golden(self) -> bool:
        """Whether a kept number noticed; then nobody else was asked."""
        return self.noticed_by.startswith("tests/golden/")


class Judge:
    """Runs tests on mutations of one copy of the repository, in forks of this process.

    The process belongs to the judge: it works in the copy, whose package it has loaded.

    Attributes:
        root: The copy.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
        os.chdir(root)
        sys.path.insert(0, str(root))
        _forget("simulator", "tests")
        for name in (*_LIBRARIES, *_modules(root)):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self._golden = _Golden()
        self._functions = LoadedFunctions(root / "simulator")
        self._fails_anyway: dict[str, bool] = {}
        gc.freeze()  # Forks share what is never collected.

    def outcome(
        self, path: str, mutation: Mutation, tests: Sequence[str], *, asks_golden: bool = True
    ) -> Outcome:
        """What tests say of a mutation that is made in the copy, and taken back.

        Golden results are asked first: most mutations move a number of theirs in a second.

        Args:
            path: The file, from the root.
            mutation: What is changed in it.
            tests: Files of tests, the nearest first.
            asks_golden: Whether golden results count.
        """
        file = self.root / path
        source = file.read_text(encoding="utf-8")
        changed = mutated(source, mutation)
        file.write_text(changed, encoding="utf-8")
        _forget_compiled(file)

        def change() -> None:
            if not self._functions.swap(file, changed, mutation.line):
                _forget("simulator")

        further = tests[_NEAREST : _NEAREST + _FURTHER]
        try:
            noticed_by = (
                (asks_golden and self.golden_failure(change))
                or self.test_failure(tests[:_NEAREST], _NEAREST_S, change)
                or self.test_failure(further, _FURTHER_S, change)
            )
        finally:
            file.write_text(source, encoding="utf-8")
            _forget_compiled(file)
        texts = mutation.before.strip(), mutation.after.strip()
        return Outcome(path, mutation.line, mutation.what, *texts, noticed_by or "")

    def golden_failure(self, change: Callable[[], None]) -> str:
        """The first golden job whose numbers are not those that were kept; empty where all are."""

        def run() -> str:
            change()
            golden = self._golden
            if "simulator" not in sys.modules:
                _forget("tests")
                golden = _Golden()
            return golden.first_moved()

        return _in_a_fork(run, _GOLDEN_S, self.root / "noticed.txt")

    def test_failure(
        self, files: Sequence[str], budget_s: float, change: Callable[[], None]
    ) -> str:
        """The first test of some files that fails, but not without the change, too.

        Raises:
            RuntimeError: The tests could not run.
        """
        left = list(files)
        while left:
            found = self._first_failure(left, budget_s, change)
            if found in ("", _ENDLESS):
                return found
            if found not in self._fails_anyway:
                again = self._first_failure([found], budget_s, lambda: None)
                self._fails_anyway[found] = bool(again)
            if not self._fails_anyway[found]:
                return found
            left.remove(found.partition("::")[0])
        return ""

    def _first_failure(
        self, tests: Sequence[str], budget_s: float, change: Callable[[], None]
    ) -> str:
        def run() -> str:
            change()
            _forget("tests")
            turns = Turns(budget_s)
            code = int(pytest.main([*_OPTIONS, *tests], plugins=[turns]))
            return turns.failed or (f"{_BROKEN} {code}" if code else "")

        found = _in_a_fork(run, budget_s, self.root / "noticed.txt")
        if found.startswith(_BROKEN):
            raise RuntimeError(f"{found} on {' '.join(tests)} in {self.root}")
        return found


class _Golden:
    """The golden jobs and what was kept of them."""

    def __init__(self) -> None:
        self._results = importlib.import_module("tests.golden.results")
        self._jobs = {name: self._results.golden_job(name) for name in self._results.job_names()}
        self._kept = self._results.kept_results()

    def first_moved(self) -> str:
        """The first job that fails or gives other numbers than it did; empty where none does."""
        for name, job in self._jobs.items():
            try:
                now = self._results.result_fields(self._results.sim.simulate(job))
            except Exception:
                return f"{_GOLDEN}[{name}]"
            if self._results.moved(self._kept[name], now):
                return f"{_GOLDEN}[{name}]"
        return ""


def _modules(root: Path) -> Iterator[str]:
    """Every module of the package, by its name."""
    for path in sorted((root / "simulator").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] != "__main__":
            yield ".".join(parts).removesuffix(".__init__")


def _in_a_fork(run: Callable[[], str], budget_s: float, said: Path) -> str:
    """What a function returns in a process of its own, which ends after it."""
    said.write_text("", encoding="utf-8")
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        used_s = int(time.process_time() + budget_s)
        resource.setrlimit(resource.RLIMIT_CPU, (used_s + _ENDLESS_S, used_s + _ENDLESS_S))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        text = f"{_BROKEN} before it began"
        try:
            text = run()
        finally:
            said.write_text(text, encoding="utf-8")
            os._exit(0)
    if _ended(child) == -signal.SIGKILL:
        return _ENDLESS
    return said.read_text(encoding="utf-8")


def _forget(*packages: str) -> None:
    """Load modules anew when they are imported next, but not those of this tool."""
    for name in list(sys.modules):
        if name.split(".")[0] in packages and not name.startswith("tests.mutants"):
            del sys.modules[name]


def _forget_compiled(file: Path) -> None:
    """Two sources of one size and second would pass for one."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _ended(child: int) -> int:
    """How a process ended; killed where it took too long."""
    end_s = time.monotonic() + _ASLEEP_S
    while time.monotonic() < end_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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
