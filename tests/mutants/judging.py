"""Which test notices a mutation first?"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.covering import CoveringTests, run_tests
from tests.mutants.mutations import Mutation, mutated

BUDGET_S = 30.0
"""What the tests of one mutation may take together while all pass; the quickest are taken."""

_LIMIT_S = 240.0
"""A mutation that makes tests take longer is noticed by that."""

_QUICK = ("-x", "-n", "0", "--tb=no")
_GOLDEN = ("tests/golden", "-k", "golden_job")


@dataclass(frozen=True)
class Outcome:
    """What the tests say of one mutation.

    Attributes:
        path, line: Where it is.
        what: The kind of mistake.
        before, after: The line without and with it.
        oracles: Tests with an answer from elsewhere that were ready to run.
        noticed_by: The first test that failed; empty where none did.
    """

    path: str
    line: int
    what: str
    before: str
    after: str
    oracles: int
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
        """Whether nothing but a kept number noticed."""
        return self.noticed_by.startswith("tests/golden/")


def outcome(root: Path, path: str, mutation: Mutation, tests: CoveringTests) -> Outcome:
    """What the tests say of a mutation that is made in a copy of the repository, and taken back."""
    file = root / path
    source = file.read_text(encoding="utf-8")
    file.write_text(mutated(source, mutation), encoding="utf-8")
    try:
        oracles = tests.of_line(path, mutation.line, BUDGET_S)
        noticed_by = _first_failure_among(root, oracles) or first_failure(root, _GOLDEN)
    finally:
        file.write_text(source, encoding="utf-8")
    texts = mutation.before.strip(), mutation.after.strip()
    return Outcome(path, mutation.line, mutation.what, *texts, len(oracles), noticed_by)


def _first_failure_among(root: Path, tests: Sequence[str]) -> str:
    if not tests:
        return ""
    listed = root / "chosen-tests.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    files = sorted({test.partition("::")[0] for test in tests})
    return first_failure(root, files, {"MUTANTS_TESTS": listed})


def first_failure(
    root: Path, words: Sequence[str], environment: dict[str, object] | None = None
) -> str:
    """The first test of a pytest run that fails; empty where all pass."""
    try:
        done = run_tests(root, [*_QUICK, *words], environment or {}, _LIMIT_S)
    except subprocess.TimeoutExpired:
        return "the time limit"
    if done.returncode == 0:
        return ""
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"exit {done.returncode}"


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
