"""What does pytest do for ``make mutants`` beyond what it always does?

It writes down how long tests take, and runs the tests that a file lists, in that order.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write how long a test took."""
    durations = os.environ.get("MUTANTS_DURATIONS")
    if durations and report.when == "call" and report.passed:
        line = json.dumps({"test": report.nodeid, "seconds": report.duration})
        with Path(durations).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that are listed."""
    listed = os.environ.get("MUTANTS_TESTS")
    if listed:
        names = Path(listed).read_text(encoding="utf-8").splitlines()
        order = {name: number for number, name in enumerate(names)}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )
