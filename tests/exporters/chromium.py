"""A real browser for tests.

Needs the package playwright and an installed Chromium (Debian: ``apt-get install chromium``);
without them a test that imports this module is skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
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
