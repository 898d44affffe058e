"""A real browser for tests.

Needs the package playwright and an installed Chromium (Debian: ``apt-get install chromium``);
without them a test that imports this module is skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
NEEDS_CHROMIUM = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")

PATIENCE_MS = 120_000
"""On a busy machine a browser takes its time."""
_QUIET = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Any]:
    """An open browser without a window."""
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=PROGRAM, args=_QUIET, timeout=PATIENCE_MS)
        yield opened
        opened.close()


class WatchedPage:
    """A page under test, with what went wrong on it.

    Args:
        browser: What opens it.
        wrong: Kinds of messages on its console that are errors.
        options: Of its tab.
    """

    def __init__(self, browser: Any, wrong: Sequence[str] = ("error",), **options: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        self.page.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self._wrong = wrong
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("dialog", lambda dialog: self.errors.append("a dialog"))

    def _note(self, message: Any) -> None:
        if message.type in self._wrong:
            self.errors.append(message.text)

    def ask(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def until(self, condition: str) -> None:
        """Ask again and again; the driver's own way would need what the policy forbids."""
        for _ in range(PATIENCE_MS // 10):
            if self.ask(condition):
                return
            self.page.wait_for_timeout(10)
        pytest.fail(f"never: {condition}")
