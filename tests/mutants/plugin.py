"""What does pytest do for ``make mutants`` beyond what it always does?

It takes one test of every file in turn, of each function its first case before all others and
properties, which draw many examples, behind what has one; it stops when its time is over, and says
what failed first.
"""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import zip_longest

import pytest


class Turns:
    """The order of the tests, and their end.

    Attributes:
        budget_s: Processor time that the tests may take together [s].
        failed: The first test, or file of tests, that failed; empty where none did.
    """

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What is quick and new first, and of that one test of every file in turn."""
        rounds: defaultdict[tuple[bool, bool], defaultdict[str, list[pytest.Item]]]
        rounds = defaultdict(lambda: defaultdict(list))
        known: set[str] = set()
        for item in items:
            function = item.nodeid.partition("[")[0]
            is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            rounds[function in known, is_property][function.partition("::")[0]].append(item)
            known.add(function)
        items[:] = [
            item
            for _, files in sorted(rounds.items())
            for turn in zip_longest(*files.values())
            for item in turn
            if item is not None
        ]
        self._end_s = time.process_time() + self.budget_s

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Stop before the next test where the time is over."""
        if time.process_time() > self._end_s:
            raise pytest.exit.Exception(f"time is over after {nodeid}", returncode=0)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember a file that cannot even be read."""
        self._remember(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a test that failed."""
        self._remember(report)

    def _remember(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
