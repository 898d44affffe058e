"""Makes ``reports/look/``: how the pages of ``--html``, the studio and the site of the docs look.

Each command runs on a small job, and an installed Chromium takes the picture. Run as ``python -m
reports.make.galleries.page_pictures FOLDER [NAME...]``; by default all pages are made. Those of the
site are of ``build/site``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from reports.make.galleries.small_bitmap import save_with_few_colors

_JOB = {
    "model": "llama3.1-8b",
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
    "batch": {"global": 128, "seq_len": 8192},
    "plan": {"tp": 2},
    "campaign": {
        "goodput": 0.9,
        "tokens": "1T",
        # Prices are assumed: they show how money is printed.
        "systems": {
            "h100-sxm-80gb": {"on_demand": "2.5 USD/h"},
            "a100-sxm-80gb": {"on_demand": "1.4 USD/h"},
        },
    },
}
_OFFERS = Path("workloads") / "offers" / "three-clouds.yaml"
COMMANDS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "plan": ("plan", "{job}", "--top", "8", "--set", "cluster.gpus=64"),
        "capacity": (
            "capacity", "{job}", "--systems", "h100-sxm-80gb,a100-sxm-80gb",
            "--gpus", "64,128,256", "--deadline", "30d", "--set", "batch.global=1024",
        ),
        "sweep": ("sweep", "{job}", "--grid", "plan.tp=1,2,4,8", "--grid", "plan.pp=1,2,4"),
        "advise": ("advise", "{job}", "--set", "cluster.gpus=32"),
        "strategies": ("strategies", "{job}"),
        "sensitivity": ("sensitivity", "{job}"),
        "rent": ("rent", str(_OFFERS)),
    }
)  # fmt: skip
"""What makes each page, but for ``--html``."""

STUDIO: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "studio-wide": {"viewport": {"width": 1440, "height": 900}},
        "studio-narrow": {"viewport": {"width": 390, "height": 844}},
        "studio-dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    }
)
"""Browsers in which the studio is opened."""
SITE: Mapping[str, str] = MappingProxyType(
    {"docs-home": "index.html", "docs-glossary": "docs/glossary.html"}
)
"""Pages of the site."""
_SITE_FOLDER = Path("build") / "site"

_WIDTH, _HEIGHT = 1280, 900
_COLORS = 200
"""Enough for text, bars and their edges, at a third of the bytes. The studio keeps all: a palette
gives some of its small marks one colour."""
_ANSWERED = "window.studio !== undefined && studio.asked > 0 && studio.shown === studio.asked"


def write_pictures(folder: Path, names: Sequence[str]) -> None:
    """Make some pages and take a picture of each."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        _write_answers(page, folder, [name for name in names if name in COMMANDS])
        _write_studio(browser, folder, [name for name in names if name in STUDIO])
        for name in (name for name in names if name in SITE):
            page.goto((_SITE_FOLDER / SITE[name]).resolve().as_uri())
            _shoot(page, folder / f"{name}.png", is_whole=False)
        browser.close()


def _write_answers(page: Page, folder: Path, names: Sequence[str]) -> None:
    """Run commands and take a picture of the page that each writes."""
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch) / "job.yaml"
        job.write_text(yaml.safe_dump(_JOB, sort_keys=False), encoding="utf-8")
        for name in names:
            html = Path(scratch) / f"{name}.html"
            words = [word.format(job=job) for word in COMMANDS[name]]
            command = [sys.executable, "-m", "simulator", *words, "--html", str(html)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            page.goto(html.as_uri())
            _shoot(page, folder / f"{name}.png")


def _write_studio(browser: Browser, folder: Path, names: Sequence[str]) -> None:
    """Take pictures of the studio as it opens, with one variant pinned beside a change of it."""
    if not names:
        return
    with _studio() as address:
        for name in names:
            page = browser.new_page(**STUDIO[name])
            page.goto(address)
            _wait_for(page, _ANSWERED)
            page.click("#pin")
            page.locator("#c-plan-vpp").fill("10")
            page.locator("#c-plan-vpp").press("Tab")
            _wait_for(page, _ANSWERED)
            _wait_for(page, "document.getElementById('copied').textContent.includes('vpp: 10')")
            page.mouse.move(0, 0)
            height = page.evaluate("document.activeElement.blur(), document.body.scrollHeight")
            # What stays in the window while the page scrolls is then where it is without scrolling.
            width = STUDIO[name]["viewport"]["width"]
            page.set_viewport_size(ViewportSize(width=width, height=height))
            page.wait_for_timeout(500)
            _shoot(page, folder / f"{name}.png", few_colors=False)


def _wait_for(page: Page, condition: str) -> None:
    """Wait; the page forbids what Playwright's own wait_for_function does inside it."""
    while not page.evaluate(condition):
        page.wait_for_timeout(100)


@contextmanager
def _studio() -> Iterator[str]:
    """The address of a studio that runs meanwhile."""
    command = [sys.executable, "-m", "simulator", "studio", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _shoot(page: Page, picture: Path, *, is_whole: bool = True, few_colors: bool = True) -> None:
    page.screenshot(path=picture, full_page=is_whole)
    if few_colors:
        save_with_few_colors(picture, picture, _COLORS)


if __name__ == "__main__":
    target, *chosen = sys.argv[1:]
    write_pictures(Path(target), chosen or [*COMMANDS, *STUDIO, *SITE])
