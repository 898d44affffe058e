"""Which tests reach a line, and how long does each take?

One run of the tests with coverage, whose contexts are the tests. Lines that run as a module is
loaded (constants) and functions that remember their results are reached by more tests than are
seen; for those stand the tests that reach other lines of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property, partial
from itertools import accumulate, zip_longest
from pathlib import Path

from coverage import CoverageData

OURS = ("-p", "tests.mutants.plugin", "-p", "no:cacheprovider", "-q")
"""How pytest is run: the plugin writes durations down and takes its orders."""

_FAR_TESTS = {
    "golden", "mutants", "importers", "calibrate", "bench",
    "test_pages.py", "test_tutorial.py", "test_reference.py", "test_packaging.py",
    "test_architecture.py",
}  # fmt: skip
"""Folders and files of tests that know no answer about the core, or take too long to ask."""

_RULES = "[run]\nsource = {}\nbranch = false\ndata_file = {}\n"


class _Run:
    """One run of tests, and where what it saw is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "coverage"
        self.durations = path / "durations.jsonl"

    @cached_property
    def files(self) -> Mapping[str, str]:
        """The state of each test file that was run, by its path."""
        return json.loads((self.path / "files.json").read_text(encoding="utf-8"))


class CoveringTests:
    """What runs of the tests with coverage have seen; of each test file the last one counts."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        last = {name: number for number, run in enumerate(runs) for name in run.files}
        self._duration_s: dict[str, float] = {}
        self._contexts: defaultdict[str, defaultdict[int, set[str]]]
        self._contexts = defaultdict(partial(defaultdict, set))
        for number, run in enumerate(runs):
            self._read_durations(run.durations)
            self._read_contexts(run.data, {name for name in last if last[name] == number})

    def _read_durations(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            self._duration_s[one["test"]] = one["seconds"]

    def _read_contexts(self, path: Path, counted: Set[str]) -> None:
        data = CoverageData(str(path))
        data.read()
        for measured in data.measured_files():
            lines = self._contexts[_from_package(measured)]
            for line, contexts in data.contexts_by_lineno(measured).items():
                tests = (context.rpartition("|")[0] for context in contexts)
                lines[line].update(
                    test
                    for test in tests
                    if test in self._duration_s and test.partition("::")[0] in counted
                )

    def of_line(self, path: str, line: int, budget_s: float) -> list[str]:
        """Tests that would notice a change of a line, those that are quick and unlike first.

        Args:
            path: From the root of the repository.
            line: Counted from 1.
            budget_s: What the tests may take together [s].
        """
        lines = self._contexts[path]
        at_line = lines[line]
        in_file = set().union(*lines.values()) - at_line
        order = [*self._unlike_first(at_line), *self._unlike_first(in_file)]
        total_s = accumulate(self._duration_s[test] for test in order)
        return [test for test, end_s in zip(order, total_s, strict=True) if end_s <= budget_s]

    def _unlike_first(self, tests: Iterable[str]) -> list[str]:
        """One case of each test function, then another one of each; the quickest first."""
        cases: defaultdict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=self._duration_s.__getitem__):
            cases[test.partition("[")[0]].append(test)
        rounds = zip_longest(*cases.values())
        return [test for each in rounds for test in each if test is not None]


def covering_tests(root: Path, folder: Path, rooms: Sequence[str], workers: int) -> CoveringTests:
    """The tests that reach each line of some rooms.

    All run once per state of the sources; after that only those whose file has changed.

    Args:
        root: The repository.
        folder: Where what was seen is kept.
        rooms: Folders of ``simulator/``.
        workers: Tests that run beside each other.
    """
    folder = folder / f"covering-{_state((root / 'simulator').rglob('*.py'))}"
    runs = [_Run(path) for path in sorted(folder.glob("run-*")) if (path / "files.json").exists()]
    now = _test_files(root)
    seen = {name: state for run in runs for name, state in run.files.items()}
    changed = [name for name, state in now.items() if seen.get(name) != state]
    if changed:
        run = _Run(folder / f"run-{len(runs)}")
        run.path.mkdir(parents=True, exist_ok=True)
        run.durations.unlink(missing_ok=True)
        source = ",".join(f"simulator/{room}" for room in rooms)
        rules = run.path / "rules"
        rules.write_text(_RULES.format(source, run.data), encoding="utf-8")
        words = [f"--cov-config={rules}", "--cov", "--cov-context=test", "--cov-report="]
        words += ["-n", str(workers), *changed]
        done = run_tests(root, words, {"MUTANTS_DURATIONS": run.durations})
        if done.returncode > 1:  # Failing tests are 1; those that could not run are more.
            raise RuntimeError(done.stdout + done.stderr)
        files = json.dumps({name: now[name] for name in changed})
        (run.path / "files.json").write_text(files, encoding="utf-8")
        runs.append(run)
    return CoveringTests(runs)


def _test_files(root: Path) -> dict[str, str]:
    """The state of each test file, by its path from the root."""
    return {
        path.relative_to(root).as_posix(): _state([path])
        for path in sorted((root / "tests").rglob("test_*.py"))
        if path.relative_to(root).parts[1] not in _FAR_TESTS
    }


def run_tests(
    root: Path,
    words: Sequence[str],
    environment: dict[str, object],
    limit_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Pytest in a process of its own on a copy of the repository.

    Raises:
        TimeoutExpired: It took longer than the limit.
    """
    ours = {"PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": 1, "OMP_NUM_THREADS": 1}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *OURS, *words],
        cwd=root,
        env=os.environ | {name: str(value) for name, value in (ours | environment).items()},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def _from_package(path: str) -> str:
    return re.sub(r"^.*/(?=simulator/)", "", path)


def _state(paths: Iterable[Path]) -> str:
    """A text that changes with any of the files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:12]
