"""Makes ``reports/look/``: how the pages look that commands write with ``--html``.

Each command runs on a small job, and an installed Chromium takes the picture. Run as ``python -m
reports.make.galleries.page_pictures FOLDER [NAME...]``; by default all pages are made.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import yaml
from playwright.sync_api import Page, sync_playwright

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

_WIDTH, _HEIGHT = 1280, 900
_COLORS = 200
"""Enough for text, bars and their edges; a page then takes a hundred kilobytes."""


def write_pictures(folder: Path, names: Sequence[str]) -> None:
    """Run the commands of some pages and take a picture of each."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        job = Path(scratch) / "job.yaml"
        job.write_text(yaml.safe_dump(_JOB, sort_keys=False), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        for name in names:
            html = Path(scratch) / f"{name}.html"
            words = [word.format(job=job) for word in COMMANDS[name]]
            command = [sys.executable, "-m", "simulator", *words, "--html", str(html)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            _shoot(page, html, folder / f"{name}.png")
        browser.close()


def _shoot(page: Page, html: Path, picture: Path) -> None:
    page.goto(html.as_uri())
    page.screenshot(path=picture, full_page=True)
    save_with_few_colors(picture, picture, _COLORS)


if __name__ == "__main__":
    target, *chosen = sys.argv[1:]
    write_pictures(Path(target), chosen or list(COMMANDS))
